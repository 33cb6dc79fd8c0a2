"""A real Alertmanager over loopback with the example's routes, and the receivers that it posts to."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from commwatch.config.assets import asset
from commwatch_rehearsal.drill.programs import Program
from commwatch_rehearsal.drill.servers import find_program
from support.handler_server import serving
from support.waiting import PATIENCE_SECONDS, until

SHORT = {"0s": "0s", "5s": "1s", "30s": "2s", "1m": "2s", "50s": "2s"}
"""Waits of the example and what stands for them in the tests; every other one is an hour."""


@dataclass(frozen=True)
class Post:
    """Something that Alertmanager posted."""

    to: str
    """Path: the receiver's name, or ``slack`` or ``pagerduty``."""
    body: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """The alerts in it."""
        return sorted(one["labels"]["alertname"] for one in self.body["alerts"])


class Alertmanager:
    """A running server and what it has posted."""

    def __init__(self, folder: Path, document: Mapping[str, Any], posts: list[Post]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._base = f"http://{self.address}/api/v2"
        self._folder = folder
        self._posts = posts
        (folder / "alertmanager.yml").write_text(json.dumps(document), encoding="utf-8")
        self._start()

    def _start(self) -> None:
        # At the same address each time, where a Prometheus looks for it.
        self._program = Program(
            [
                find_program("alertmanager"),
                f"--config.file={self._folder / 'alertmanager.yml'}",
                f"--storage.path={self._folder / 'alertmanager'}",
                f"--web.listen-address={self.address}",
                "--cluster.listen-address=",
            ],
            self._folder / "alertmanager.log",
        )
        self.until(self._answers)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self._base}/status", timeout=PATIENCE_SECONDS).close()
        except urllib.error.URLError:
            return False
        return True

    def stop(self) -> None:
        """End it in order."""
        self._program.end()

    def restart(self) -> None:
        """End it in order and start it again on what it has kept."""
        self.stop()
        self._start()

    def post(
        self, *alerts: Mapping[str, str], resolved: bool = False, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Hand over alerts, each by its labels, as Prometheus does."""
        now = datetime.now(timezone.utc).isoformat()
        ends = {"endsAt": now} if resolved else {}
        body = [{"labels": dict(one), "annotations": dict(annotations or {}), **ends} for one in alerts]
        request = urllib.request.Request(
            f"{self._base}/alerts", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close()

    def posts(self, cluster: str, status: str = "firing") -> list[Post]:
        """The notifications about the alerts of one cluster, in their order, to receivers by webhook."""
        return [
            one
            for one in list(self._posts)
            if one.body.get("status") == status and one.body["groupLabels"].get("cluster") == cluster
        ]

    def messages(self, to: str) -> list[dict[str, Any]]:
        """What came for Slack or PagerDuty."""
        return [one.body for one in list(self._posts) if one.to == to]

    def silenced(self, cluster: str) -> dict[str, bool]:
        """The alerts of one cluster, by name and instance, each with whether another silences it now."""
        of_cluster = f"{self._base}/alerts?filter=cluster%3D%22{cluster}%22"
        with urllib.request.urlopen(of_cluster, timeout=PATIENCE_SECONDS) as answer:
            alerts = json.load(answer)
        return {
            " ".join(one["labels"][key] for key in ("alertname", "instance") if key in one["labels"]): bool(
                one["status"]["inhibitedBy"]
            )
            for one in alerts
        }

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until something holds; what it gave is returned."""
        return until(condition, describe=lambda: [(one.to, one.body.get("groupKey")) for one in self._posts])


def _short_waits(route: dict[str, Any]) -> None:
    for key in ("group_wait", "group_interval", "repeat_interval"):
        if key in route:
            route[key] = SHORT.get(route[key], "1h")
    for below in route.get("routes", ()):
        _short_waits(below)


def _receivers(shipped: Sequence[Mapping[str, Any]], sink: str, folder: Path) -> list[dict[str, Any]]:
    """The example's receivers: webhooks to the sink by name; Slack and PagerDuty of the pager with their templates."""
    receivers: list[dict[str, Any]] = []
    for one in shipped:
        receiver: dict[str, Any] = {"name": one["name"]}
        if len(one) > 1:
            receiver["webhook_configs"] = [{"url": f"{sink}/{one['name']}", "send_resolved": True}]
        receivers.append(receiver)
        if one["name"] != "page":
            continue
        (folder / "slack").write_text(f"{sink}/slack\n")
        (folder / "pagerduty").write_text("key-from-a-file\n")
        receiver["slack_configs"] = [{**one["slack_configs"][0], "api_url_file": str(folder / "slack")}]
        receiver["pagerduty_configs"] = [
            {**one["pagerduty_configs"][0], "routing_key_file": str(folder / "pagerduty"), "url": f"{sink}/pagerduty"}
        ]
    return receivers


@contextmanager
def _sink(posts: list[Post]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posts.append(Post(self.path.strip("/"), body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            del args

    with serving(Handler) as address:
        yield f"http://{address}"


@contextmanager
def alertmanager(folder: Path) -> Iterator[Alertmanager]:
    """A server with the example's routes, inhibitions and templates at short waits; gone afterwards."""
    example = asset("alerts/alertmanager.example.yml")
    document = yaml.safe_load(example.read_text(encoding="utf-8"))
    document["templates"] = [str(example.with_name(name)) for name in document["templates"]]
    _short_waits(document["route"])
    posts: list[Post] = []
    with _sink(posts) as sink:
        document["receivers"] = _receivers(document["receivers"], sink, folder)
        manager = Alertmanager(folder, document, posts)
        try:
            yield manager
        finally:
            manager.stop()
