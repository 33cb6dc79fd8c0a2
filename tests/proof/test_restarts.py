"""Restarts of Prometheus and of Alertmanager in the middle of an incident: no page is lost, none comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from support.alertmanager import Alertmanager, alertmanager
from support.handler_server import serving
from support.prometheus import QUICK, prometheus, quick_rules

pytestmark = pytest.mark.prometheus

GPU = 'gpu="3",pci_bus_id="0000:5d:00.0"'
PAGES = {"state": "CommwatchPcieWidthDropped", "event": "CommwatchPcieFatal"}
"""By the node that they are about: one lasts, the other is told for its 5 min, within which all restarts are."""
ENDING = {**QUICK, "[5m]": "[1s]", "[40s]": "[1s]", "keep_firing_for: 10m": "keep_firing_for: 500ms"}
"""The waits after which a page ends, so short that a test can see it."""


class Nodes:
    """What two nodes expose: a narrow slot until it is repaired, and a fatal error while it is recent."""

    def __init__(self) -> None:
        self.lanes = 8
        self.is_recent = True
        self.scrapes = 0
        self.address = ""

    def page(self, node: str) -> str:
        """The answer to a scrape of ``state`` or of ``event``."""
        lines = ["commwatch_simulated 0", 'commwatch_maintenance{reason="none"} 0', f"commwatch_gpu_busy{{{GPU}}} 1"]
        if node == "state":
            lines.append(f"commwatch_pcie_link_width_lanes{{{GPU}}} {self.lanes}")
            lines.append(f"commwatch_pcie_link_width_expected_lanes{{{GPU}}} 16")
        else:
            if self.is_recent:
                lines.append(f"commwatch_pcie_fatal_errors_recent{{{GPU}}} 1")
            self.scrapes += 1
        return "\n".join([*lines, ""])


@contextmanager
def exposed() -> Iterator[Nodes]:
    """The nodes behind one address of loopback; gone afterwards."""
    nodes = Nodes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = nodes.page(self.path.strip("/")).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            del args

    with serving(Handler) as nodes.address:
        yield nodes


def told(manager: Alertmanager, status: str) -> list[tuple[str, str, list[str]]]:
    """Whom Alertmanager has told of which node and alerts, sorted; the dead-man's switch apart."""
    posts = [post for post in manager.posts("example", status) if post.to != "dead-man"]
    return sorted((post.to, post.body["groupLabels"]["instance"], post.names) for post in posts)


def test_a_page_outlasts_each_restart_and_is_resolved_once(tmp_path: Path) -> None:
    """A state and an event page once each; neither restart repeats or ends them; after the repair each ends once."""
    once = [("page", node, [PAGES[node]]) for node in sorted(PAGES)]
    (tmp_path / "prometheus").mkdir()
    with alertmanager(tmp_path) as manager, exposed() as nodes:
        targets = [
            {"targets": [nodes.address], "labels": {"instance": node, "__metrics_path__": f"/{node}"}} for node in PAGES
        ]
        settings = {
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.address]}]}]},
            "scrape_configs": [{"job_name": "commwatch", "static_configs": targets}],
        }
        with prometheus(tmp_path / "prometheus", quick_rules(tmp_path), settings=settings) as server:
            manager.until(lambda: len(told(manager, "firing")) == len(PAGES))

            server.restart(resend_delay="500ms")
            scrapes = nodes.scrapes
            server.until(lambda: server.firing().keys() >= {*PAGES.values()})
            server.until(lambda: nodes.scrapes > scrapes + 1)
            assert (told(manager, "firing"), told(manager, "resolved")) == (once, [])

            manager.restart()
            manager.until(lambda: manager.silenced("example").keys() >= {f"{PAGES[node]} {node}" for node in PAGES})
            assert (told(manager, "firing"), told(manager, "resolved")) == (once, [])

            quick_rules(tmp_path, ENDING)
            server.reload()
            nodes.lanes, nodes.is_recent = 16, False
            manager.until(lambda: len(told(manager, "resolved")) == len(PAGES))
            assert (told(manager, "firing"), told(manager, "resolved")) == (once, once)
