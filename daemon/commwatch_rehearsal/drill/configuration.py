"""The configurations of the drill's own servers, made from the shipped examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, quote

import yaml

from commwatch_rehearsal.drill.pace import Pace, promql_duration, scaled_times

CLUSTER = "drill"
RECEIVER = "drill"
"""The receiver to which the example routes simulated alerts."""
JOB = "commwatch"
_WAITS = frozenset({"group_wait", "group_interval", "repeat_interval"})
_SHORTEST_REPEAT_SECONDS = 3600.0
"""Repetitions would read as second pages; a drill is shorter than this."""


def prometheus_configuration(
    example: str, rules: Sequence[str], targets: str, alertmanager: SplitResult, pace: Pace
) -> dict[str, Any]:
    """Prometheus' configuration.

    Args:
        example: alerts/prometheus.example.yml.
        rules: files of rules.
        targets: file that lists what to scrape.
        alertmanager: its address.
        pace: of scrapes and evaluations.
    """
    document: dict[str, Any] = yaml.safe_load(example)
    document["global"] |= {
        "scrape_interval": promql_duration(pace.interval),
        "scrape_timeout": promql_duration(min(10.0, pace.interval)),
        "evaluation_interval": promql_duration(pace.interval),
        "external_labels": {"cluster": CLUSTER},
    }
    document["rule_files"] = list(rules)
    document["alerting"] = {
        "alertmanagers": [
            {
                "scheme": alertmanager.scheme,
                "path_prefix": alertmanager.path or "/",
                "static_configs": [{"targets": [alertmanager.netloc]}],
            }
        ]
    }
    (job,) = (one for one in document["scrape_configs"] if one["job_name"] == JOB)
    for replaced in ("static_configs", "scrape_timeout", "scrape_interval"):
        job.pop(replaced, None)
    job["file_sd_configs"] = [{"files": [targets], "refresh_interval": "1s"}]
    document["scrape_configs"] = [job]
    return document


def keep_simulated(configuration: dict[str, Any]) -> None:
    """Let this Prometheus hand over only what is labelled as simulated.

    Else its own watchdog would keep the dead-man's switch of a given Alertmanager quiet.
    """
    keep = {"source_labels": ["simulated"], "regex": "true", "action": "keep"}
    configuration["alerting"]["alert_relabel_configs"] = [keep]


def alertmanager_configuration(example: str, receiver: str, pace: Pace) -> dict[str, Any]:
    """Alertmanager's configuration: the routes and inhibitions of the example, and one receiver for all.

    Every receiver of the example posts to the drill under its own name, so that a page that went to another one than
    it should is seen.

    Args:
        example: alerts/alertmanager.example.yml.
        receiver: address of the drill's receiver, ``http://HOST:PORT``.
        pace: of the waits.
    """
    document: dict[str, Any] = yaml.safe_load(example)
    for outside in ("global", "templates"):
        document.pop(outside, None)
    document["receivers"] = [
        {"name": one["name"]}
        | (
            {"webhook_configs": [{"url": f"{receiver}/{quote(one['name'])}", "send_resolved": True}]}
            if any(key.endswith("_configs") for key in one)
            else {}
        )
        for one in document["receivers"]
    ]
    scaled: dict[str, Any] = document if pace.is_shipped else scaled_times(document, _WAITS, pace)
    _hush_repeats(scaled["route"])
    return scaled


def _hush_repeats(route: dict[str, Any]) -> None:
    if "repeat_interval" in route:
        route["repeat_interval"] = f"{_SHORTEST_REPEAT_SECONDS:.0f}s"
    for below in route.get("routes", ()):
        _hush_repeats(below)
