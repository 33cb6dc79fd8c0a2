"""The shipped examples as a site takes them: all together they page."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import yaml

from commwatch.__main__ import main
from commwatch.config.assets import asset
from support.alertmanager import alertmanager
from support.handler_server import serving
from support.prometheus import prometheus, quick_rules

ALERTS = asset("alerts")
NODE = """\
commwatch_simulated 0
commwatch_maintenance{reason="none"} 0
commwatch_nvlink_link_down{gpu="3", pci_bus_id="0000:5d:00.0", link="11"} 0
"""
"""What a node with an NVLink that is down exposes."""


class _Node(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(NODE)))
        self.end_headers()
        self.wfile.write(NODE.encode())

    def log_message(self, *args: object) -> None:
        del args


@pytest.mark.prometheus
def test_the_examples_of_site_prometheus_and_alertmanager_page_together(tmp_path: Path) -> None:
    """Rules of the site's example, scraped and labelled as in Prometheus', routed as in Alertmanager's: one page."""
    assert main(["rules", "--site", str(ALERTS / "site.example.yml"), "--output", str(tmp_path / "site")]) == 0
    settings = yaml.safe_load((ALERTS / "prometheus.example.yml").read_text(encoding="utf-8"))
    (job,) = settings["scrape_configs"]
    del job["scrape_timeout"]
    with serving(_Node) as node, alertmanager(tmp_path) as manager:
        job["static_configs"][0]["targets"] = [node]
        settings["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [manager.address]
        with prometheus(tmp_path, quick_rules(tmp_path, rendered=tmp_path / "site"), settings=settings):
            cluster = settings["global"]["external_labels"]["cluster"]
            manager.until(lambda: [post for post in manager.posts(cluster) if post.to == "page"])

            (page,) = [post for post in manager.posts(cluster) if post.to == "page"]
    assert page.names == ["CommwatchNvlinkDown"]
    assert page.body["groupLabels"] == {"cluster": cluster, "instance": node}


def test_the_labels_that_the_sites_example_asks_for_are_those_that_targets_have() -> None:
    """Rules do not see external labels: a matcher on one alone silences every alert."""
    settings = yaml.safe_load((ALERTS / "prometheus.example.yml").read_text(encoding="utf-8"))
    labels = settings["scrape_configs"][0]["static_configs"][0]["labels"]

    assert labels["cluster"] == settings["global"]["external_labels"]["cluster"]
    assert labels.keys() == {"cluster", "partition", "rack"}


def test_no_link_leads_to_an_example() -> None:
    """What is shipped links to the runbooks of the repository, in the Grafana of the compose file."""
    shipped = [*(ALERTS / "rules").glob("*.yaml"), *asset("grafana/dashboards").glob("*.json")]

    assert shipped
    assert [
        path.name for path in shipped if ".example" in path.read_text(encoding="utf-8").replace(".example.yml", "")
    ] == []
