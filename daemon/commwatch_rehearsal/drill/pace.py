"""Shipped intervals and short ones: rules, paging and daemons at a fifteenth of their times.

The fast form shortens scrapes, evaluations, windows and waits alike, so that each window holds as many samples as it
does at the shipped intervals and each rule decides on the same number of evaluations. Only what keeps an alert firing
after its fault (``keep_firing_for``) is shortened more: it decides nothing about whether an alert fires.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import yaml

from commwatch.config.settings import Duration, Sources
from commwatch.config.thresholds import Thresholds
from commwatch.config.yaml_file import dump_rendered, load_rendered

SHIPPED_SECONDS = 15.0
"""Scrape and evaluation, as alerts/prometheus.example.yml and the rules have them."""
_SHORTEST_INTERVAL_SECONDS = 0.25
"""Of a collector in the fast form; the simulated node checks for other faults as often."""
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_DURATION = r"(?:\d+(?:ms|[smhdwy]))+"
_RANGE = re.compile(rf"\[({_DURATION})(?::({_DURATION})?)?\]")
_OFFSET = re.compile(rf"\boffset\s+(-?)({_DURATION})")
_DAEMON_SECONDS = ("event_window_seconds", "job_stuck_payload_seconds")
"""Thresholds of time that the daemon applies itself: how long it shows an event, and how long a job must have moved."""
_PLAIN_SECONDS = re.compile(r"@([a-z_]+_seconds)@")


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a drill goes."""

    name: str
    factor: float
    """Divisor of the shipped intervals, windows and waits."""
    held_factor: float
    """Divisor of the time for which critical alerts go on after their fault."""
    learn_seconds: float
    """How long a node must be stable until it knows what it should have; 10 min as shipped."""
    probe_seconds: float
    """Between two results of a probe; 15 min as shipped."""
    look_seconds: float
    """Seconds between two polls of the drill's servers, and so the accuracy of its times."""
    is_given: bool = False
    """Whether scrapes, rules and their intervals are those of a Prometheus of the user."""
    paging_factor: float = 1
    """Divisor of the waits of Alertmanager."""

    @property
    def is_shipped(self) -> bool:
        """Whether rules and paging run at the shipped intervals."""
        return self.factor == 1

    def seconds(self, shipped: float) -> float:
        """A shipped time at this pace."""
        return shipped / self.factor

    def paging_seconds(self, shipped: float) -> float:
        """A wait of Alertmanager at this pace."""
        return shipped / self.paging_factor

    @property
    def interval(self) -> float:
        """Seconds between two scrapes, and between two evaluations."""
        return self.seconds(SHIPPED_SECONDS)


SHIPPED = Pace("shipped", 1, 1, learn_seconds=5, probe_seconds=20, look_seconds=0.5)
FAST = Pace("fast", 15, 60, learn_seconds=1, probe_seconds=2, look_seconds=0.25, paging_factor=15)


def parse_promql_duration(text: str) -> float:
    """Seconds of a duration as Prometheus writes them: ``5m``, ``1h30m``, ``500ms``.

    Raises:
        ValueError: it is none.
    """
    if re.fullmatch(_DURATION, text) is None:
        raise ValueError(f"no duration: {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdwy])", text))


def promql_duration(seconds: float) -> str:
    """Seconds as a duration of Prometheus, to the millisecond."""
    return f"{max(1, round(seconds * 1000))}ms"


def scaled_expression(expression: str, factor: float) -> str:
    """An expression of Prometheus with its windows and offsets divided by a factor."""

    def shorter(text: str) -> str:
        return promql_duration(parse_promql_duration(text) / factor)

    def window(match: re.Match[str]) -> str:
        step = match[2] and shorter(match[2])
        is_subquery = ":" in match[0]
        return f"[{shorter(match[1])}{':' if is_subquery else ''}{step or ''}]"

    with_windows = _RANGE.sub(window, expression)
    return _OFFSET.sub(lambda match: f"offset {match[1]}{shorter(match[2])}", with_windows)


def scaled_rules(text: str, pace: Pace) -> str:
    """A file of rules at a pace; at the shipped one it is left as it is."""
    if pace.is_shipped:
        return text
    document = load_rendered(text)
    for group in document["groups"]:
        group["interval"] = promql_duration(pace.seconds(parse_promql_duration(group.get("interval", "15s"))))
        for rule in group["rules"]:
            rule["expr"] = scaled_expression(str(rule["expr"]), pace.factor)
            for key, factor in (("for", pace.factor), ("keep_firing_for", pace.held_factor)):
                if key in rule:
                    rule[key] = promql_duration(parse_promql_duration(rule[key]) / factor)
    return dump_rendered(document)


def scaled_template(template: str, thresholds: Thresholds, pace: Pace) -> str:
    """A template of rules in which the times that are compared as plain numbers of seconds are divided.

    The others are written as durations, which ``scaled_rules`` divides.
    """
    values: Mapping[str, float] = asdict(thresholds)
    return _PLAIN_SECONDS.sub(lambda match: f"{pace.seconds(values[match[1]]):g}", template)


def paced_thresholds(thresholds: Thresholds, pace: Pace) -> Thresholds:
    """The thresholds of the daemon: with its own times divided, as ``scaled_rules`` cannot."""
    paced: dict[str, Any] = {name: pace.seconds(getattr(thresholds, name)) for name in _DAEMON_SECONDS}
    return replace(thresholds, **paced)


def thresholds_file(thresholds: Thresholds, pace: Pace) -> str:
    """The file with which a daemon has them."""
    paced = paced_thresholds(thresholds, pace)
    return yaml.safe_dump({name: {"value": getattr(paced, name)} for name in _DAEMON_SECONDS})


def collector_intervals(pace: Pace) -> dict[str, dict[str, str]]:
    """The section ``sources`` of a node's configuration at a pace: each interval divided."""
    if pace.is_shipped:
        return {}
    sources = Sources()
    found: dict[str, dict[str, str]] = {}
    for name in sources.__struct_fields__:
        section = getattr(sources, name)
        intervals = {
            key: promql_duration(max(_SHORTEST_INTERVAL_SECONDS, pace.seconds(getattr(section, key))))
            for key in section.__struct_fields__
            if key.endswith("interval") and isinstance(getattr(section, key), Duration)
        }
        if intervals:
            found[name] = intervals
    return found


def scaled_times(value: Any, keys: frozenset[str], pace: Pace) -> Any:
    """A configuration with the durations under some keys divided, at any depth."""
    if isinstance(value, dict):
        return {
            key: promql_duration(pace.paging_seconds(parse_promql_duration(one)))
            if key in keys and isinstance(one, str)
            else scaled_times(one, keys, pace)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [scaled_times(one, keys, pace) for one in value]
    return value
