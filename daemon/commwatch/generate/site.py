"""What a site changes in the alert rules without editing them: its own file, read, and done to the rendered rules."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from commwatch.config.yaml_file import Steps, YamlDocument, read_yaml

SEVERITIES = ("critical", "warning", "info")

_TEXT_KEYS = ("thresholds", "job", "matchers", "runbooks", "dashboards")
_SETS = ("core", "extended")
_KEYS = (*_TEXT_KEYS, "set", "alerts")
_ALERT_KEYS = ("severity", "nodes")
_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*(?:=~|!~|!=|=)"(?:[^"\\]|\\.)*"'
_MATCHERS = re.compile(rf"{_MATCHER}(?:, *{_MATCHER})*")
_JOB = re.compile(r'[^"\\@{}]+')
_EXPECTED = {"job": "the name of one job", "matchers": 'matchers such as cluster="a", rack!~"test.*"'}
_NODE_SEEN = "10m"
"""A target that discovery lost for a moment stays with its alert."""


@dataclass(frozen=True, slots=True)
class AlertChange:
    """What a site changes in one alert."""

    severity: str = ""
    """One of ``SEVERITIES``; empty: as shipped."""
    nodes: str = ""
    """Matchers on the labels of the targets to which the alert is confined; empty: all nodes."""


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A site's file: only what it names."""

    words: Mapping[str, str] = field(default_factory=dict)
    """``job``, ``matchers``, ``runbooks`` and ``dashboards``, as far as they are set."""
    thresholds: Path | None = None
    alert_set: str = "extended"
    """Which alerts are rendered: one of ``_SETS``."""
    alerts: Mapping[str, AlertChange] = field(default_factory=dict)


def read_site_file(path: Path, shipped: Mapping[str, bool]) -> SiteFile:
    """Read a site's file.

    Args:
        path: YAML; ``alerts/site.example.yml`` shows each key.
        shipped: the alerts that there are, each with whether it is about one node.

    Raises:
        ConfigError: with the line: unknown key or alert, wrong severity or matchers.
    """
    document = read_yaml(path)
    _refuse_unknown(document, (), document.values, _KEYS)
    words = {key: _text(document, (key,)) for key in _TEXT_KEYS if key in document.values}
    for key, form in (("job", _JOB), ("matchers", _MATCHERS)):
        if key in words and form.fullmatch(words[key]) is None:
            raise document.error((key,), f"cannot be {words[key]!r}; expected {_EXPECTED[key]}")
    thresholds = words.pop("thresholds", None)
    alert_set = _text(document, ("set",)) if "set" in document.values else "extended"
    if alert_set not in _SETS:
        raise document.error(("set",), f"is {alert_set}; expected {' or '.join(_SETS)}")
    return SiteFile(
        words,
        None if thresholds is None else path.parent / thresholds,
        alert_set,
        {name: _alert_change(document, name, shipped) for name in _mapping(document, ("alerts",), {})},
    )


def _alert_change(document: YamlDocument, name: str, shipped: Mapping[str, bool]) -> AlertChange:
    steps: Steps = ("alerts", name)
    if name not in shipped:
        close = difflib.get_close_matches(name, shipped, n=1)
        hint = f"did you mean {close[0]}?" if close else "docs/using/alerts.md has them all"
        raise document.error(steps, f"no such alert; {hint}")
    entry = _mapping(document, steps)
    _refuse_unknown(document, steps, entry, _ALERT_KEYS)
    words = {key: _text(document, (*steps, key)) for key in entry}
    severity, nodes = words.get("severity", ""), words.get("nodes", "")
    if "severity" in words and severity not in SEVERITIES:
        raise document.error((*steps, "severity"), f"is {severity}; expected {', '.join(SEVERITIES)}")
    if "nodes" in words and _MATCHERS.fullmatch(nodes) is None:
        raise document.error((*steps, "nodes"), f"cannot be {nodes!r}; expected {_EXPECTED['matchers']}")
    if "nodes" in words and not shipped[name]:
        raise document.error((*steps, "nodes"), "this alert is not about one node; `matchers` confine all")
    return AlertChange(severity, nodes)


def _refuse_unknown(document: YamlDocument, steps: Steps, found: Iterable[str], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise document.error((*steps, key), f"unknown key; {hint}")


def _at(document: YamlDocument, steps: Steps) -> Any:
    value: Any = document.values
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _mapping(document: YamlDocument, steps: Steps, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    value = _at(document, steps)
    if value is None and missing is not None and steps not in document.lines:
        return missing
    if not isinstance(value, dict):
        raise document.error(steps, "expected KEY: VALUE")
    return value


def _text(document: YamlDocument, steps: Steps) -> str:
    value = _at(document, steps)
    if not isinstance(value, str) or not value:
        raise document.error(steps, f"expected text, got {value!r}")
    return value


def alerts_about_nodes(rules: str) -> dict[str, bool]:
    """The alerts of a rule file or template, each with whether it is about one node: its description names one."""
    blocks = re.split(r"^ *- alert: ", rules, flags=re.MULTILINE)[1:]
    return {block.split("\n", 1)[0].strip(): "$labels.instance" in block for block in blocks}


def changed_rules(rules: str, changes: Mapping[str, AlertChange], job: str, keep_firing: str) -> str:
    """A rendered rule file with a site's changes; as it is where none of its alerts is named.

    Args:
        rules: the text of the file.
        changes: by alert.
        job: under which Prometheus scrapes the daemons.
        keep_firing: for how long an alert that becomes critical goes on after its fault, as Prometheus writes it.
    """
    if not changes.keys() & alerts_about_nodes(rules).keys():
        return rules
    document = yaml.safe_load(rules)
    for group in document["groups"]:
        for rule in group["rules"]:
            if (change := changes.get(rule.get("alert", ""))) is not None:
                _change(rule, change, job, keep_firing)
    header = rules.split("\n", 1)[0]
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000)
    return f"{header}\n# With the changes of this site.\n{text}"


def _change(rule: dict[str, Any], change: AlertChange, job: str, keep_firing: str) -> None:
    if change.severity and change.severity != rule["labels"]["severity"]:
        rule["labels"]["severity"] = change.severity
        if change.severity == "critical":
            rule["keep_firing_for"] = keep_firing
    if change.nodes:
        expression = rule["expr"].strip()
        rule["expr"] = (
            f"(\n{expression}\n)\nand on (cluster, job, instance)\n"
            f'last_over_time(up{{job="{job}", {change.nodes}}}[{_NODE_SEEN}])\n'
        )


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _represent(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)
