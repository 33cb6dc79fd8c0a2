"""What the panels ask: metrics that exist, of the node and the cluster that were chosen."""

from __future__ import annotations

import re

from commwatch_exporters.catalogue import CATALOGUE, family_of
from commwatch_exporters.metrics_page import PROCESS_METRICS
from support.dashboards import all_expressions, expressions_by_dashboard
from support.promtool_cases import alerts_of, shipped_groups

ALERTS = alerts_of(shipped_groups())
RECORDED = {rule["record"] for group in shipped_groups() for rule in group["rules"] if "record" in rule}

NEW_SERIES = {
    "commwatch_adapter_events_total", "commwatch_gpu_xid_events_total", "commwatch_nvswitch_sxid_events_total",
}  # fmt: skip
"""Counters of which each label value has a series from its first event on: an increase misses that one."""

_METRIC = re.compile(r"\b(?:(?:\w+:)?(?:commwatch|process)_\w+(?::\w+)?|ALERTS(?:_FOR_STATE)?|up)\b")
_SELECTOR = re.compile(rf"({_METRIC.pattern})\{{([^}}]*)\}}")
_STRING = re.compile(r'"[^"]*"')


def metrics_of(expression: str) -> list[str]:
    """The metrics that an expression reads, each as often as it does."""
    return _METRIC.findall(re.sub(r"(by|on|ignoring|group_left|without) ?\([^)]*\)", "", _STRING.sub('""', expression)))


def test_every_metric_exists() -> None:
    """Queries read the catalogue, what the rules record, alerts, and what Prometheus and every daemon have."""
    for expression in all_expressions():
        for name in metrics_of(expression):
            if name not in {"up", "ALERTS", "ALERTS_FOR_STATE", *PROCESS_METRICS, *RECORDED}:
                family_of(name)  # KeyError: no such metric


def test_every_selector_has_the_variables() -> None:
    """Each selector of each query asks for cluster, job and node as they are chosen."""
    for uid, expression in expressions_by_dashboard():
        selectors = _SELECTOR.findall(expression)
        # The first variables choose what the later ones are chosen by.
        if expression.startswith("label_values("):
            continue
        assert [name for name, _ in selectors] == metrics_of(expression), expression
        for name, matchers in selectors:
            wanted = ['job=~"$job']
            # What says that the rules are here is a constant of theirs.
            wanted += [] if name == "job:commwatch_rules:info" else ['cluster=~"$cluster']
            wanted += [] if name.partition(":")[0] in {"job", "job_fault", "software"} else [_node_matcher(uid)]
            assert all(one in matchers for one in wanted), f"{name}{{{matchers}}}"


def _node_matcher(uid: str) -> str:
    """Of several nodes a regular expression; of one its name as it stands, which may be an IPv6 address."""
    return 'instance=~"$instance' if uid == "commwatch-fleet" else 'instance="$instance"'


def test_targets_of_others_are_left_out() -> None:
    """What every target of a Prometheus has is asked of commwatch's alone: the job is All until one is chosen."""
    of_all = [one for one in all_expressions() if re.search(r"\b(up|process_\w+)\{", one)]

    assert len(of_all) > 3
    for expression in of_all:
        ours = re.findall(r"\band on \(cluster, job(?:, instance)?\) (?:\w+:)?commwatch_[\w:]+\{", expression)
        assert len(ours) == len(re.findall(r"\b(?:up|process_\w+)\{", expression)), expression


def test_counters_are_shown_as_rates() -> None:
    """A counter stands under rate, increase or changes, and rate has Grafana's own window."""
    for expression in all_expressions():
        for name, _ in _SELECTOR.findall(expression):
            is_counter = name in CATALOGUE and CATALOGUE[name].type == "counter"
            if is_counter and name not in NEW_SERIES:
                raw = re.search(rf"(?<!rate\()(?<!increase\()\b{name}\{{", expression)
                assert raw is None, expression
            if name in NEW_SERIES:
                assert " unless " in expression, expression
        windows = set(re.findall(r"\brate\([^\[]*\[([^\]]*)\]", expression))
        assert windows <= {"$__rate_interval"}, expression
