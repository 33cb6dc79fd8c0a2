"""The cases of alerts/tests as promtool takes them: ``python -m commwatch.generate.alert_cases DIR`` writes them.

A file of cases has a line for each node, and a line for each answer that is expected of Prometheus:

``every``
    Between two evaluations, and between two scrapes unless ``scraped_every`` says otherwise (default: 15s).
``labels``
    Labels of series that need not be written out, each set of labels with its metrics.
``every_node``
    Series of each node that it does not have otherwise.
``nodes``
    By instance, the values of its series as promtool writes them, by metric. A metric may have further labels in
    brackets. A series ``none`` is not there.
``firing``
    By time, the nodes on which the alert fires, each once for each alert; or how many alerts fire on all nodes
    together. The alert of a simulated node must have its label.
``silent``
    Times at which there is no such alert.
``words``
    By time and labels, the exact description of an alert that fires, or a list of its summary and description;
    ``alert`` has the labels that all alerts of the file have, and ``summary`` their title, with ``$NAME`` for a label.
``checks``
    Any other question, as promtool has it (``promql_expr_test``).
``cases``
    In place of these, several cases by name. The keys beside ``cases`` hold for all of them. ``every_node`` and
    ``nodes`` of a case add to those, and replace them, series by series.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, TypeAlias

import yaml

from commwatch.config.assets import asset
from commwatch.generate.alert_rules import ON_NODE, Site, runbook_url

Labels: TypeAlias = dict[str, str]

_KEYS = frozenset({
    "alert", "checks", "every", "every_node", "firing", "labels", "nodes", "scraped_every", "silent", "summary",
    "words",
})  # fmt: skip
_NONE = "none"
_FIRST = ("node", "gpu", "nvlink", "nvlink_rates")
_LAST = ("recording", "peers", "traffic", "fleet_fault", "fleet")
"""Groups that others read are evaluated before these, and those of the fleet last, as a server finds them settled."""
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_RECORDED = re.compile(r"\b[a-z_]+:\w+:\w+\b")
_ALERT = re.compile(r"\bCommwatch\w+")


def document(file: Path) -> dict[str, Any]:
    """A file of cases as promtool's document, without the rules that it is about.

    Raises:
        ValueError: a key is none of those above.
    """
    text = file.read_text(encoding="utf-8")
    # Without types: 0x20 is 21 samples of 0, and no number.
    written: dict[str, Any] = yaml.load(text, yaml.CBaseLoader)  # noqa: S506 - the base loader makes text alone
    alert, every = file.stem, written.get("every", "15s")
    cases = written.pop("cases", None)
    for one in (written, *(cases or {}).values()):
        if unknown := one.keys() - _KEYS:
            raise ValueError(f"{file}: unknown: {', '.join(sorted(unknown))}")
    named = {alert: written} if cases is None else {f"{alert}: {name}": case for name, case in cases.items()}
    tests = [{"name": name, **_case(alert, written if cases is not None else {}, case)} for name, case in named.items()]
    return {"evaluation_interval": every, "tests": [{"interval": every, **test} for test in tests]}


def _case(alert: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    case = {**shared, **own}
    nodes = _nodes(shared, own)
    labels = {metric: text for text, metrics in case.get("labels", {}).items() for metric in metrics}
    simulated = {
        node
        for node, series in nodes.items()
        if any(key.startswith("commwatch_simulated") and values.startswith("1") for key, values in series.items())
    }
    asked = f'(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    alerts: list[tuple[str, list[dict[str, Any]]]] = [(time, []) for time in case.get("silent", ())]
    alerts += [(time, _worded(alert, case, words)) for time, words in case.get("words", {}).items()]
    made = {
        "interval": case.get("scraped_every"),
        "input_series": [
            {"series": _series(key, labels, node), "values": values}
            for node, series in nodes.items()
            for key, values in series.items()
        ],
        "alert_rule_test": [
            {"eval_time": time, "alertname": alert, "exp_alerts": expected} for time, expected in alerts
        ],
        "promql_expr_test": [
            *(_count(time, asked, expected, simulated) for time, expected in case.get("firing", {}).items()),
            *map(_check, case.get("checks", ())),
        ],
    }
    return {key: value for key, value in made.items() if value}


def _nodes(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The series of each node of a case, without those that are ``none``."""
    every: Mapping[str, str] = shared.get("every_node", {})
    every_of_case: Mapping[str, str] = own.get("every_node", {})
    common: Mapping[str, Labels] = shared.get("nodes", {})
    added: Mapping[str, Any] = own.get("nodes", {})
    series = {
        name: {**every, **common.get(name, {}), **every_of_case, **added.get(name, {})}
        for name in {**common, **added}
        if added.get(name) != _NONE
    }
    return {name: {key: text for key, text in one.items() if text != _NONE} for name, one in series.items()}


def _series(key: str, labels: Mapping[str, str], node: str) -> str:
    """The name of a series: ``metric{label="value"}`` with what it has in common with others."""
    metric, _, own = key.partition("{")
    of_node = {"job": "commwatch", **({"instance": node} if node else {})}
    return f"{metric}{{{_text({**of_node, **_read(labels.get(metric, '')), **_read(own)})}}}"


def _worded(alert: str, case: Mapping[str, Any], words: Mapping[str, str | list[str]]) -> list[dict[str, Any]]:
    """The alerts that are expected at a time, with all labels and annotations."""
    found = []
    for text, annotated in words.items():
        labels = {"job": "commwatch", "fault": alert, **case["alert"], **_read(text)}
        summary, description = (case["summary"], annotated) if isinstance(annotated, str) else annotated
        site, node = Site(), labels.get("instance", "")
        page = f"commwatch-node?var-job={labels['job']}&var-instance={node}" if node else "commwatch-fleet"
        annotations = {
            "summary": Template(summary).substitute(labels),
            "description": description,
            "runbook_url": runbook_url(site, alert, is_about_node=bool(node)).replace(
                ON_NODE, f"http://{node}{'' if ':' in node else ':28029'}/runbooks"
            ),
            "dashboard_url": f"{site.dashboards}/d/{page}",
        }
        found.append({"exp_labels": {key: one for key, one in labels.items() if one}, "exp_annotations": annotations})
    return found


def _count(time: str, asked: str, expected: str | Sequence[str], simulated: set[str]) -> dict[str, Any]:
    """The question which nodes, or how many alerts, fire."""
    if isinstance(expected, str):
        samples = [] if expected == "0" else [{"labels": "{}", "value": float(expected)}]
        return {"eval_time": time, "expr": f"count{asked}", "exp_samples": samples}
    samples = []
    for node, count in Counter(expected).items():
        labels = {"instance": node, **({"simulated": "true"} if node in simulated else {})}
        samples.append({"labels": f"{{{_text(labels)}}}", "value": float(count)})
    return {"eval_time": time, "expr": f"count by (instance, simulated) {asked}", "exp_samples": samples}


def _check(check: Mapping[str, Any]) -> dict[str, Any]:
    samples = [{"labels": one["labels"], "value": float(one["value"])} for one in check["exp_samples"]]
    return {**check, "exp_samples": samples}


def _read(labels: str) -> Labels:
    return dict(_LABEL.findall(labels))


def _text(labels: Mapping[str, str]) -> str:
    return ", ".join(f'{key}="{value}"' for key, value in labels.items())


# --- the rules ---


@cache
def shipped_groups() -> Sequence[dict[str, Any]]:
    files = sorted(asset("alerts/rules").glob("*.yaml"))
    return [group for file in files for group in yaml.load(file.read_text("utf-8"), yaml.CSafeLoader)["groups"]]


def needed_groups(alerts: Iterable[str]) -> list[dict[str, Any]]:
    """The groups with only some alerts and the recording rules that these read: all take promtool ten times as long."""
    wanted = set(alerts)
    rules = [rule for group in shipped_groups() for rule in group["rules"]]
    found = [rule for rule in rules if rule.get("alert") in wanted]
    names: set[str] = set()
    while found:
        more = {name for rule in found for name in _recorded(rule)} - names
        names |= more
        found = [rule for rule in rules if rule.get("record") in more]
    groups = [
        {
            **group,
            "rules": [rule for rule in group["rules"] if rule.get("alert") in wanted or rule.get("record") in names],
        }
        for group in shipped_groups()
    ]
    return [group for group in groups if group["rules"]]


def _recorded(rule: Mapping[str, Any]) -> Iterator[str]:
    yield from _RECORDED.findall(" ".join([rule["expr"], *rule.get("annotations", {}).values()]))


def _place(group: str) -> int:
    """When a group is evaluated, beside others."""
    name = group.removeprefix("commwatch_")
    if name in _FIRST:
        return _FIRST.index(name) - len(_FIRST)
    return _LAST.index(name) + 1 if name in _LAST else 0


def write(file: Path, folder: Path) -> Path:
    """Write a file of cases for ``promtool test rules``, which reads JSON as YAML, and the rules that it needs.

    Returns:
        The file of cases. That of the rules has the same name, in ``rules/`` beside it.
    """
    made = document(file)
    groups = needed_groups(_ALERT.findall(json.dumps(made)))
    rules, cases = folder / "rules" / f"{file.stem}.json", folder / f"{file.stem}.json"
    rules.parent.mkdir(parents=True, exist_ok=True)
    rules.write_text(json.dumps({"groups": groups}), encoding="utf-8")
    order = sorted((group["name"] for group in groups), key=_place)
    cases.write_text(json.dumps({"rule_files": [str(rules)], "group_eval_order": order, **made}), encoding="utf-8")
    return cases


if __name__ == "__main__":
    for one in sorted(asset("alerts/tests").glob("*.yaml")):
        write(one, Path(sys.argv[1]).resolve())
