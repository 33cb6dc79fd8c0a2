"""What a rule reads, made by hand: the numbers of one moment, and what counters showed before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias

from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.findings.codes import CODES, EVENTS, WATCHED
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Sighting
from commwatch.findings.history import CounterHistory
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import Look
from commwatch_exporters.snapshot import Series, Value
from support.pages import snapshot_of

# Any: a mapping's keys are invariant in the type system, and tests write tuples of one length.
Numbers: TypeAlias = Mapping[str, Mapping[Any, float]]
"""By metric: the number by label values, in the order of the catalogue's label names."""

NOW = 1_700_000_000.0
"""Seconds since 1970 of a look, where a test does not say otherwise."""


def facts_of(numbers: Numbers, history: Mapping[float, Numbers] | None = None, now: float = NOW) -> Facts:
    """What the rules read at one moment.

    Args:
        numbers: what is exposed now; a metric or a number of labels that the catalogue does not have is an error.
        history: earlier looks by how many seconds ago they were; counters that the rules watch are taken from them.
        now: seconds since 1970.
    """
    known = CounterHistory(WATCHED, EVENTS)
    for ago, earlier in sorted((history or {}).items(), reverse=True):
        _take(known, earlier, now - ago)
    _take(known, numbers, now)
    return Facts(snapshot_of(_series(numbers)), known, now)


def before(numbers: Numbers, rises: Numbers | None = None) -> Numbers:
    """The same numbers less what happened since: an earlier look for ``history``.

    Args:
        numbers: what is exposed now.
        rises: by how much single series rose since the earlier look; the others stood still.
    """
    risen = rises or {}
    return {
        metric: {labels: value - risen.get(metric, {}).get(labels, 0.0) for labels, value in series.items()}
        for metric, series in numbers.items()
    }


def seen_by(look: Look, facts: Facts, thresholds: Thresholds | None = None) -> list[Sighting]:
    """All that one rule sights; every code is on the list, and every threshold that it names in one word is one."""
    limits = thresholds or shipped()
    sightings = list(look(facts, limits))
    for sighting in sightings:
        assert sighting.code in CODES
        for fact in sighting.evidence:
            assert not fact.threshold_origin or fact.threshold is not None
            assert " " in fact.threshold_origin or not fact.threshold_origin or hasattr(limits, fact.threshold_origin)
    return sightings


def is_judged(sighting: Sighting, facts: Facts, thresholds: Thresholds | None = None) -> bool:
    """Whether a rule says that these facts would show what it sighted before."""
    [judge] = [rules.judged[sighting.code] for rules in RULE_SETS if sighting.code in rules.judged]
    return judge(facts, thresholds or shipped(), sighting.component)


def codes_of(sightings: Iterable[Sighting]) -> list[tuple[str, str]]:
    """Code and component of each sighting, for comparisons."""
    return [(sighting.code, sighting.component.identity) for sighting in sightings]


@cache
def shipped() -> Thresholds:
    """The thresholds that commwatch comes with."""
    return load_thresholds(None)


def _series(numbers: Numbers) -> dict[Series, Value]:
    return {(metric, labels): value for metric, series in numbers.items() for labels, value in series.items()}


def _take(known: CounterHistory, numbers: Numbers, now: float) -> None:
    for metric, series in numbers.items():
        if metric in WATCHED:
            for labels, value in series.items():
                known.take(metric, labels, value, now)
