"""The configurations of the drill's own servers, made from the shipped examples."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from commwatch_rehearsal.drill.configuration import (
    RECEIVER,
    alertmanager_configuration,
    keep_simulated,
    prometheus_configuration,
)
from commwatch_rehearsal.drill.pace import FAST, SHIPPED

ROOT = Path(__file__).parents[2]
ALERTMANAGER = (ROOT / "alerts/alertmanager.example.yml").read_text()
PROMETHEUS = (ROOT / "alerts/prometheus.example.yml").read_text()
HOOK = "http://127.0.0.1:12345"


def test_every_receiver_posts_to_the_drill_under_its_own_name() -> None:
    """No address, no secret and no service of the example is left."""
    shipped = yaml.safe_load(ALERTMANAGER)
    found = alertmanager_configuration(ALERTMANAGER, HOOK, SHIPPED)
    assert [one["name"] for one in found["receivers"]] == [one["name"] for one in shipped["receivers"]]
    assert RECEIVER in {one["name"] for one in found["receivers"]}
    for receiver in found["receivers"]:
        assert receiver.keys() <= {"name", "webhook_configs"}
        for hook in receiver.get("webhook_configs", ()):
            assert hook == {"url": f"{HOOK}/{receiver['name']}", "send_resolved": True}
    assert "global" not in found
    assert "templates" not in found


def test_routes_and_inhibitions_are_those_of_the_example() -> None:
    """But for repetitions, which would read as second pages; in the fast form with a fifteenth of each wait."""
    shipped = yaml.safe_load(ALERTMANAGER)
    found = alertmanager_configuration(ALERTMANAGER, HOOK, SHIPPED)
    assert found.get("inhibit_rules") == shipped.get("inhibit_rules")
    assert _without_repeats(found["route"]) == _without_repeats(shipped["route"])
    repeats = set(_repeats(found["route"]))
    assert repeats == {"3600s"}
    fast = alertmanager_configuration(ALERTMANAGER, HOOK, FAST)
    assert set(_repeats(fast["route"])) == {"3600s"}
    assert fast["route"]["group_wait"] == "2000ms"
    assert [one["matchers"] for one in fast["route"]["routes"]] == [
        one["matchers"] for one in shipped["route"]["routes"]
    ]


@pytest.mark.prometheus
@pytest.mark.parametrize("pace", [SHIPPED, FAST], ids=["shipped", "fast"])
def test_the_servers_take_their_configurations(tmp_path: Path, pace: Any) -> None:
    """amtool and promtool find nothing wrong."""
    paging = tmp_path / "alertmanager.yml"
    paging.write_text(json.dumps(alertmanager_configuration(ALERTMANAGER, HOOK, pace)))
    checked = subprocess.run(["amtool", "check-config", str(paging)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    targets = tmp_path / "targets.json"
    targets.write_text("[]")
    scraping = tmp_path / "prometheus.yml"
    configuration = prometheus_configuration(PROMETHEUS, [], str(targets), urlsplit("http://localhost:9093"), pace)
    keep_simulated(configuration)
    scraping.write_text(json.dumps(configuration))
    checked = subprocess.run(["promtool", "check", "config", str(scraping)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_prometheus_scrapes_what_the_list_of_nodes_says_at_the_pace() -> None:
    """Every 15 s, or every second; no target of the example is left."""
    for pace, interval in ((SHIPPED, "15000ms"), (FAST, "1000ms")):
        found = prometheus_configuration(PROMETHEUS, ["a.yaml"], "t.json", urlsplit("https://am.example/x"), pace)
        assert found["global"]["scrape_interval"] == found["global"]["evaluation_interval"] == interval
        (job,) = found["scrape_configs"]
        assert job["job_name"] == "commwatch"
        assert "static_configs" not in job
        assert job["file_sd_configs"] == [{"files": ["t.json"], "refresh_interval": "1s"}]
        (paging,) = found["alerting"]["alertmanagers"]
        assert paging == {"scheme": "https", "path_prefix": "/x", "static_configs": [{"targets": ["am.example"]}]}


def test_only_simulated_alerts_go_to_a_given_alertmanager() -> None:
    """The drill's own watchdog stays at home: it would keep the dead-man's switch of the site quiet."""
    found = prometheus_configuration(PROMETHEUS, [], "t.json", urlsplit("http://localhost:9093"), SHIPPED)
    assert "alert_relabel_configs" not in found["alerting"]
    keep_simulated(found)
    assert found["alerting"]["alert_relabel_configs"] == [
        {"source_labels": ["simulated"], "regex": "true", "action": "keep"}
    ]


def _without_repeats(route: dict[str, Any]) -> dict[str, Any]:
    below = [_without_repeats(one) for one in route.get("routes", ())]
    return {key: value for key, value in route.items() if key not in {"repeat_interval", "routes"}} | {"routes": below}


def _repeats(route: Mapping[str, Any]) -> Iterator[str]:
    """The repeat intervals of a route and of those below it."""
    if "repeat_interval" in route:
        yield route["repeat_interval"]
    for below in route.get("routes", ()):
        yield from _repeats(below)
