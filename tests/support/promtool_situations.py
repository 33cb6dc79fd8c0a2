"""The promtool test of an alert in which each instance is a node in one situation, named after it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any

FIRING = "fires"
RESOLVING = "simulated"
"""A simulated node: its alert carries the label, and resolves."""
SILENT = ("just-below", "idle", "absent-data", "failed-scrape", "maintenance")
TEMPTED = ("just-below", "failed-scrape", "maintenance")
"""Silence there proves something only if the node exposes what the alert reads."""
OF_EVERY_NODE = {"commwatch_simulated", "commwatch_maintenance", "commwatch_gpu_busy", "commwatch_gpu_info"}

_COUNTED = "count by (instance, simulated) (ALERTS"
_SERIES = re.compile(r"(\w+)\{.*?instance=\"([^\"]+)\"")


def lacking_situations(test: Mapping[str, Any]) -> list[str]:
    """What a test does not show: in words, empty if it shows all that makes an alert trustworthy."""
    nodes: dict[str, dict[str, str]] = {}
    for one in test["input_series"]:
        metric, node = _series(one["series"])
        nodes.setdefault(node, {})[metric] = nodes.get(node, {}).get(metric, "") + one["values"]
    sets = [_instances(check) for check in test["promql_expr_test"] if _COUNTED in check["expr"]]
    silent = {node for node in nodes if node != "failed-scrape-between" and node.startswith(SILENT)}
    worded = {one["exp_labels"]["instance"] for check in test["alert_rule_test"] for one in check["exp_alerts"]}
    about = {metric for node in set[str]().union(*sets) for metric in nodes.get(node, ())}
    read = about - OF_EVERY_NODE
    # What is there only while something has risen tempts no healthy node.
    shown = {
        "all kinds of node": {FIRING, RESOLVING} <= nodes.keys()
        and all(any(node.startswith(kind) for node in silent) for kind in SILENT),
        "silence before the fault": not sets[0],
        "firing, with the label of a simulated node": any({FIRING, RESOLVING} <= one for one in sets),
        "resolving": any(
            {FIRING, RESOLVING} <= before and FIRING in after and RESOLVING not in after
            for before, after in combinations(sets, 2)
        ),
        "silence where it should be": silent.isdisjoint(set[str]().union(*sets)),
        "the exact words": FIRING in worded,
        "a simulated node": nodes.get(RESOLVING, {}).get("commwatch_simulated", "").startswith("1"),
        "a node in maintenance": nodes.get("maintenance", {}).get("commwatch_maintenance", "").startswith("1"),
        "a failed scrape": "stale" in nodes.get("failed-scrape", {}).get("commwatch_simulated", ""),
        "absent data": nodes.get("absent-data", {}).keys() == {"commwatch_simulated"},
        "silence of nodes that have what it reads": all(
            nodes[node].keys() & read for node in silent if node.startswith(TEMPTED)
        )
        or all(metric.endswith("_recent") for metric in read),
    }
    return [what for what, is_shown in shown.items() if not is_shown]


def _series(text: str) -> tuple[str, str]:
    """Metric and instance."""
    found = _SERIES.match(text)
    assert found is not None, text
    return found[1], found[2]


def _instances(check: Mapping[str, Any]) -> set[str]:
    """Nodes that a check expects to fire; the simulated one only with its label."""
    found = set()
    for one in check.get("exp_samples") or ():
        labels = dict(re.findall(r"(\w+)=\"([^\"]*)\"", one["labels"]))
        if (labels.get("simulated") == "true") == (labels["instance"] == RESOLVING):
            found.add(labels["instance"])
    return found
