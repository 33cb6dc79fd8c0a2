"""What the shipped rules and the shipped Alertmanager example make of a life: what fired when, and what was sent.

The rules are evaluated by promtool. Of Alertmanager, whose clock is that of the machine, routes, groups, waits and
inhibition are worked out here from its file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from commwatch.config.assets import asset
from support.promtool_cases import duration_ms, needed_groups, read_yaml, shipped_groups
from support.scraped_day import ScrapedDay

Labels: TypeAlias = frozenset[tuple[str, str]]

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_AT = re.compile(r"^    expr: .*, time: ([0-9hms]+),", re.MULTILINE)
_ALSO_OPEN = re.compile(r"Also open on this node: .*?\.(?= |$)")
_TEXT_EACH_SECONDS = 60.0
_FIRING = 'ALERTS{alertstate="firing",severity=~"critical|warning"}'
_NOT_OF_THE_NODE = {"__name__", "alertstate", "simulated"}


@dataclass
class Alert:
    """One alert by its labels, over a life."""

    labels: Mapping[str, str]
    times: list[float] = field(default_factory=list)
    """At which it fired, seconds since the boot."""
    text: str = ""
    """Summary and description, where they were asked for while it fired."""

    @property
    def name(self) -> str:
        """Of its rule."""
        return self.labels["alertname"]

    @property
    def severity(self) -> str:
        """``critical`` or ``warning``."""
        return self.labels["severity"]

    @property
    def own_text(self) -> str:
        """The text without its list of what else is open on the node: that names the parts of other alerts."""
        return _ALSO_OPEN.sub("", self.text)

    def stretches(self, step: float) -> list[tuple[float, float]]:
        """First and last time of each stretch without a gap."""
        found: list[tuple[float, float]] = []
        for time in self.times:
            if found and time - found[-1][1] <= step:
                found[-1] = (found[-1][0], time)
            else:
                found.append((time, time))
        return found


@cache
def _names(severities: str) -> Sequence[str]:
    rules = [rule for group in shipped_groups() for rule in group["rules"] if "alert" in rule]
    return [rule["alert"] for rule in rules if rule["labels"].get("severity") in severities.split()]


def alerts_of(
    scraped: ScrapedDay, folder: Path, step: float, before: float, severities: str = "critical warning"
) -> list[Alert]:
    """Each page and ticket that fires, with all times at which it does.

    Args:
        scraped: what Prometheus has scraped.
        folder: for promtool's files.
        step: seconds between two scrapes, and two evaluations.
        before: seconds of promtool's clock at which the node boots.
        severities: of the alerts that are asked for.
    """
    names = _names(severities)
    rules, file = folder / "rules.json", folder / "life.json"
    rules.write_text(json.dumps({"groups": needed_groups(names)}))
    times = [place * step for place in range(scraped.places)]
    texts = [time for time in times if time % _TEXT_EACH_SECONDS == 0]
    case = {
        "interval": f"{step:g}s",
        "input_series": scraped.input_series(),
        # What fires differs from nothing, so promtool prints it.
        "promql_expr_test": [{"expr": _FIRING, "eval_time": f"{time:g}s", "exp_samples": []} for time in times],
        "alert_rule_test": [
            {"eval_time": f"{time:g}s", "alertname": name, "exp_alerts": []} for time in texts for name in names
        ],
    }
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": f"{step:g}s", "tests": [case]}))
    environment = {**os.environ, "GOGC": "400", "TMPDIR": str(folder)}
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, env=environment)
    output = done.stdout + done.stderr
    if done.returncode and "got:" not in output:
        raise RuntimeError(f"promtool did not evaluate the rules: {output[-2000:]}")
    return _read(output, before)


def _read(output: str, before: float) -> list[Alert]:
    found: dict[Labels, Alert] = {}
    texts: dict[Labels, str] = {}
    labels: Labels = frozenset()
    now = 0.0
    for line in output.splitlines():
        if match := _AT.match(line):
            now = duration_ms(match[1]) / 1000 - before
        elif line.lstrip().startswith("got: {"):
            for sample in line.split('{__name__="ALERTS"')[1:]:
                labels = _labels(sample)
                found.setdefault(labels, Alert(dict(labels))).times.append(now)
        elif line.lstrip().startswith("Labels:{"):
            labels = _labels(line)
        elif line.lstrip().startswith("Annotations:{"):
            notes = dict(_LABEL.findall(line))
            texts[labels] = f"{notes.get('summary', '')} {notes.get('description', '')}"
    for key, alert in found.items():
        alert.times.sort()
        alert.text = texts.get(key, "")
    return sorted(found.values(), key=lambda one: (one.times[0], one.name, sorted(one.labels.items())))


def _labels(text: str) -> Labels:
    return frozenset((name, value) for name, value in _LABEL.findall(text) if name not in _NOT_OF_THE_NODE)


# --- Alertmanager ---


@dataclass(frozen=True)
class Sent:
    """A notification that tells of something new."""

    time: float
    """Seconds since the boot."""
    receiver: str
    new: tuple[int, ...]
    """Places in the list of alerts of those that it tells of for the first time."""


_MATCHER = re.compile(r'^\s*(\w+)\s*(=~|!~|!=|=)\s*"?(.*?)"?\s*$')


def _matches(matchers: Sequence[str], labels: Mapping[str, str]) -> bool:
    return all(_holds(matcher, labels) for matcher in matchers)


def _holds(matcher: str, labels: Mapping[str, str]) -> bool:
    found = _MATCHER.match(matcher)
    if found is None:
        raise ValueError(f"not a matcher: {matcher}")
    name, operator, wanted = found.groups()
    value = labels.get(name, "")
    is_same = re.fullmatch(wanted, value) is not None if "~" in operator else value == wanted
    return is_same != operator.startswith("!")


def _route(route: Mapping[str, Any], labels: Mapping[str, str], above: Mapping[str, Any]) -> Mapping[str, Any]:
    own = {**above, **{key: value for key, value in route.items() if key not in ("routes", "matchers")}}
    for child in route.get("routes", ()):
        if _matches(child.get("matchers", ()), labels):
            return _route(child, labels, own)
    return own


def _silences(rule: Mapping[str, Any], source: Mapping[str, str], target: Mapping[str, str]) -> bool:
    """Whether one alert silences another; one that is both source and target does not silence its like."""
    if not _matches(rule["source_matchers"], source) or not _matches(rule["target_matchers"], target):
        return False
    if _matches(rule["target_matchers"], source) and _matches(rule["source_matchers"], target):
        return False
    return all(source.get(name, "") == target.get(name, "") for name in rule.get("equal", ()))


def sent(alerts: Sequence[Alert], step: float) -> list[Sent]:
    """The notifications of a life that tell of something new, in the order of time."""
    settings = read_yaml(asset("alerts/alertmanager.example.yml"))
    routes = [_route(settings["route"], one.labels, {}) for one in alerts]
    silencers = [
        [source for source, other in enumerate(alerts) if source != target
         and any(_silences(rule, other.labels, one.labels) for rule in settings["inhibit_rules"])]
        for target, one in enumerate(alerts)
    ]  # fmt: skip
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, (alert, route) in enumerate(zip(alerts, routes, strict=True)):
        key = (route["receiver"], *(alert.labels.get(name, "") for name in route["group_by"]))
        groups.setdefault(key, []).append(place)
    firing = [set(one.times) for one in alerts]
    return sorted(
        (one for members in groups.values() for one in _sent(members, routes[members[0]], firing, silencers, step)),
        key=lambda one: one.time,
    )


def _sent(
    members: Sequence[int],
    route: Mapping[str, Any],
    firing: Sequence[set[float]],
    silencers: Sequence[Sequence[int]],
    step: float,
) -> Iterator[Sent]:
    """Of one group: after its wait first, and then at its interval where there is something new."""
    wait, interval = (duration_ms(route[key]) / 1000 for key in ("group_wait", "group_interval"))
    times = sorted(set().union(*(firing[one] for one in members)))
    notified: set[int] = set()
    flush: float | None = None
    last = float("-inf")
    for time in times:
        if time - last > step:  # nothing of the group fired between: what it had is resolved
            notified, flush = set(), time + wait
        last = time
        assert flush is not None
        until = time + step
        notified &= {one for one in members if time in firing[one]}
        while flush < until:
            here = {
                one for one in members
                if time in firing[one] and not any(time in firing[source] for source in silencers[one])
            }  # fmt: skip
            if new := here - notified:
                yield Sent(flush, route["receiver"], tuple(sorted(new)))
                notified |= new
            flush += interval
