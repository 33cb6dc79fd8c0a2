"""What Prometheus would have scraped over a day, and what promtool's rule engine makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Snapshot
from support.promtool_cases import duration_ms, needed_groups, promtool, shipped_groups

INSTANCE = "node1:28029"
_LABELS = f'job="commwatch",instance="{INSTANCE}"'
_NAME = re.compile(r"\bcommwatch_[a-z0-9_]+")
_GOT = re.compile(r'\{(alertname="[^}]*)\} ([0-9.E+]+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SLOW_SECONDS = 300.0
"""Groups of at least this interval are evaluated by it."""
_FIRING = {
    "name": "zz_after_all_others",
    "rules": [{"record": "day:alerts_firing:timestamp", "expr": 'timestamp(ALERTS{alertstate="firing"})'}],
}
"""promtool answers no question about more than 10,000 samples at once, so the times are recorded as series."""
_OF_EVERY_ALERT = {"alertname", "alertstate", "class", "instance", "job", "severity", "simulated"}


@cache
def families_read() -> Sequence[str]:
    """The metrics that the shipped rules read."""
    text = " ".join(rule["expr"] for group in shipped_groups() for rule in group["rules"])
    return tuple(sorted(name for name in set(_NAME.findall(text)) if name in CATALOGUE))


class _Run:
    """The values of a series: each run of equal ones, with the gaps between."""

    __slots__ = ("_count", "_parts", "_value", "last")

    def __init__(self, missing: int) -> None:
        self._parts = [f"_x{missing}"] if missing else []
        self._value, self._count = "", 0
        self.last = missing - 1
        """Place of the last value."""

    def add(self, place: int, value: str) -> None:
        gap = place - self.last - 1
        if self._count and (gap or value != self._value):
            self._flush()
        if gap and self.last >= 0 and self._parts[-1:] != ["stale"]:
            self._end(gap)
        self._value, self.last = value, place
        self._count += 1

    def _end(self, gap: int) -> None:
        self._parts.append("stale")
        if gap > 1:
            self._parts.append(f"_x{gap - 1}")

    def _flush(self) -> None:
        self._parts.append(self._value if self._count == 1 else f"{self._value}x{self._count - 1}")
        self._count = 0

    def text(self, places: int) -> str:
        """As promtool reads it, of a day with so many places."""
        parts = list(self._parts)
        if self._count:
            parts.append(self._value if self._count == 1 else f"{self._value}x{self._count - 1}")
        if self.last + 1 < places:
            parts.append("stale")
        return " ".join(parts)


class ScrapedDay:
    """The samples of one node, of the metrics that rules read."""

    def __init__(self, before: int) -> None:
        """
        Args:
            before: places before the day begins, at which Prometheus does not know the node.
        """
        self._before = before
        self._place = before - 1
        self._runs: dict[str, _Run] = {}
        self._prefixes: dict[str, _Run] = {}
        self._up = _Run(before)

    @property
    def places(self) -> int:
        """How many scrapes there were, with those before the day."""
        return self._place + 1

    @property
    def series_count(self) -> int:
        """Series that rules read."""
        return len(self._runs)

    def scrape(self, snapshot: Snapshot | None) -> None:
        """Take one exposition; None: the scrape failed."""
        self._place += 1
        self._up.add(self._place, "0" if snapshot is None else "1")
        if snapshot is None:
            return
        place, prefixes = self._place, self._prefixes
        for family in families_read():
            for block in snapshot.family_blocks(family):
                values, names = block.values, block.layout.prefixes
                for position in block.layout.families[family]:
                    value = values[position]
                    if value is None:
                        continue
                    run = prefixes.get(names[position])
                    if run is None:
                        run = prefixes[names[position]] = self._runs[_with_target(names[position])] = _Run(place)
                    run.add(place, repr(value))

    def input_series(self) -> list[dict[str, str]]:
        """As promtool wants it."""
        runs = {f"up{{{_LABELS}}}": self._up, **self._runs}
        return [{"series": series, "values": run.text(self.places)} for series, run in runs.items()]


def _with_target(prefix: str) -> str:
    """A series as Prometheus stores it, from its text on the page."""
    name, brace, labels = prefix.strip().partition("{")
    return f"{name}{{{_LABELS},{labels}" if brace else f"{name}{{{_LABELS}}}"


@dataclass(frozen=True)
class Fired:
    """An alert that fired."""

    name: str
    severity: str
    about: str
    """Its own labels."""
    first_seconds: float
    """After the day began."""


def alerts_fired(day: ScrapedDay, folder: Path, step_seconds: float, before_seconds: float) -> list[Fired]:
    """Evaluate all shipped rules over the whole day.

    promtool has one interval for all groups. So those of minutes, whose windows are long, are a test of their own.

    Args:
        day: what was scraped.
        folder: for promtool's files.
        step_seconds: between two scrapes, and between two evaluations of all but the slow groups.
        before_seconds: how long after promtool's 0 the day begins.
    """
    series = day.input_series()
    end_seconds = day.places * step_seconds
    found = {
        one
        for groups, interval in _tests(step_seconds)
        for one in _evaluate(groups, interval, series, (step_seconds, end_seconds), folder)
    }
    if not any(name == "CommwatchWatchdog" for name, *_ in found):
        raise RuntimeError("promtool did not evaluate the rules: the watchdog is silent")
    fired = [Fired(name, severity, about, at - before_seconds) for name, severity, about, at in found]
    return sorted(fired, key=lambda one: (one.first_seconds, one.name, one.about))


def _tests(step_seconds: float) -> list[tuple[list[dict[str, Any]], float]]:
    """Groups that are evaluated together, and the seconds between two evaluations."""
    shipped = shipped_groups()
    slow = [group for group in shipped if duration_ms(group["interval"]) >= 1000 * _SLOW_SECONDS]
    quick = [group for group in shipped if group not in slow]
    recorded = {rule["record"] for group in slow for rule in group["rules"] if "record" in rule}
    if any(name in rule["expr"] for name in recorded for group in quick for rule in group["rules"]):
        raise RuntimeError("a rule reads what a slow group records: it cannot be evaluated without it")
    alerts = [rule["alert"] for group in slow for rule in group["rules"] if "alert" in rule]
    return [(quick, step_seconds), (needed_groups(alerts), _SLOW_SECONDS)]


def _evaluate(
    groups: list[dict[str, Any]],
    interval: float,
    series: list[dict[str, str]],
    times: tuple[float, float],
    folder: Path,
) -> list[tuple[str, str, str, float]]:
    """Name, severity, own labels and first second of each alert of some groups that fired."""
    step_seconds, end_seconds = times
    rules, file = folder / "rules.yaml", folder / "day.yaml"
    rules.write_text(json.dumps({"groups": [*groups, _FIRING]}))
    end = f"{round(end_seconds)}s"
    case = {
        "interval": f"{step_seconds:g}s",
        "input_series": series,
        # What is found differs from nothing, so promtool tells it.
        "promql_expr_test": [{
            "expr": f"min_over_time(day:alerts_firing:timestamp[{end}])",
            "eval_time": end, "exp_samples": [],
        }],
    }  # fmt: skip
    test = {"rule_files": [str(rules)], "evaluation_interval": f"{interval:g}s", "tests": [case]}
    file.write_text(json.dumps(test))
    done = promtool("test", "rules", file)
    output = done.stdout
    if done.returncode and " got: " not in output:
        raise RuntimeError(f"promtool did not evaluate the rules: {output[-2000:]}")
    return [_fired(labels, float(at)) for labels, at in _GOT.findall(output)]


def _fired(text: str, first_seconds: float) -> tuple[str, str, str, float]:
    labels = dict(_LABEL.findall(text))
    about = ", ".join(f"{name} {value}" for name, value in labels.items() if name not in _OF_EVERY_ALERT)
    return labels["alertname"], labels.get("severity", ""), about, first_seconds
