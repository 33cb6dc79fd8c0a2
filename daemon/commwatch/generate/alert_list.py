"""docs/reference/alerts.md, made from templates and thresholds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from commwatch.config.thresholds import Thresholds
from commwatch.generate.alert_rules import format_duration, templates

FILE = Path("docs/reference/alerts.md")
_SEVERITIES = {"critical": "pages", "warning": "tickets", "info": "no receiver"}
_SHARED = re.compile(r"state_fault_.*|(state_warning_for|event_window|last_seen_window|critical_keep_firing)_seconds")
"""Thresholds that many alerts have."""
_RULE = re.compile(r"^ *- (alert|record): (\S+)\n(.*?)(?=^ *- (?:alert|record|name): |\Z)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^ *#.*\n", re.MULTILINE)
_THRESHOLD = re.compile(r"@([a-z0-9_]+)(?::\w+)?@")
_SERIES = re.compile(r"\b\w+:\w+:\w+\b")

_INTRODUCTION = """\
<!-- Generated from the rules: change alerts/templates/ or alerts/thresholds.yaml, then run `make docs`. -->
# List of alerts

Each name leads to its runbook. The second line of an entry has its thresholds; those that many alerts share are not
listed: `state_fault_*`, `state_warning_for_seconds`, `event_window_seconds`, `critical_keep_firing_seconds`.
[Alerts](../using/alerts.md) explains the classes.
"""


def page(thresholds: Thresholds) -> str:
    """The whole file: a list for each severity and class."""
    rules = {name: (kind, text) for template in templates().values() for kind, name, text in _RULE.findall(template)}
    numbers: Mapping[str, float] = asdict(thresholds)
    alerts: dict[tuple[str, str], list[str]] = {}
    for name, (kind, text) in rules.items():
        if kind == "alert":
            alerts.setdefault((_severity(text), _class(text)), []).append(_row(name, rules, numbers))
    parts = [_INTRODUCTION]
    for severity, consequence in _SEVERITIES.items():
        parts.append(f"## {severity.capitalize()}: {consequence}\n")
        parts += [
            f"### {severity.capitalize()}, class {kind}\n\n{''.join(rows)}"
            for (of, kind), rows in sorted(alerts.items())
            if of == severity
        ]
    return "\n".join(parts)


def _severity(text: str) -> str:
    """Of an alert. One whose severity is that of the alerts that it counts is listed with the pages."""
    severity = text.partition("severity: ")[2].partition("\n")[0]
    return severity if severity in _SEVERITIES else "critical"


def _class(text: str) -> str:
    return text.partition("class: ")[2].partition("\n")[0]


def _row(name: str, rules: Mapping[str, tuple[str, str]], numbers: Mapping[str, float]) -> str:
    sentence = rules[name][1].lstrip().removeprefix("# ").partition("\n")[0]  # the first comment in the alert
    keys = dict.fromkeys(key for key in _keys(name, rules) if key in numbers and not _SHARED.fullmatch(key))
    limits = ", ".join(f"`{key}` {_value(key, numbers[key])}" for key in keys)
    return f"- [{name}](../../alerts/runbooks/{name}.md): {sentence}{limits and f'<br>{limits}'}\n"


def _keys(name: str, rules: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """The thresholds of a rule, and of the recorded series that it reads."""
    seen: list[str] = [name]
    for one in seen:
        text = _COMMENT.sub("", rules[one][1])
        yield from _THRESHOLD.findall(text)
        seen += [series for series in dict.fromkeys(_SERIES.findall(text)) if series in rules and series not in seen]


def _value(key: str, number: float) -> str:
    return format_duration(number) if key.endswith("_seconds") and number == int(number) else f"{number:g}"
