"""What a rule reads, made by hand: the numbers of one moment, and what counters showed before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Match
from commwatch.findings.history import CounterHistory
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import Rule
from commwatch_exporters.node.model import Node
from commwatch_exporters.node.parts import Column, Identity, Part
from commwatch_exporters.snapshot import Series, Value
from support.pages import snapshot_of

_Kind = TypeVar("_Kind", bound=Part)

# Any: a mapping's keys are invariant in the type system, and tests write tuples of one length.
Numbers: TypeAlias = Mapping[str, Mapping[Any, float]]
"""By metric: the number by label values, in the order of the catalogue's label names."""

RULES = [rule for rules in RULE_SETS for rule in rules.rules]
RULE_OF = {code: rule for rule in RULES for code in rule.codes}
"""The rule of each code."""

HOUR, DAY = 3600.0, 86_400.0
"""Seconds."""

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
    return Facts(Node(snapshot_of(_series(numbers))), known, now)


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


class Declared(Facts):
    """The same facts for one rule, which may read what it declares; what is absent is not among them."""

    def __init__(self, facts: Facts, rule: Rule, absent: Collection[str] = ()) -> None:
        self._declared = _DeclaredNode(facts.node, rule, absent)
        super().__init__(self._declared, facts._history, facts.now)

    @property
    def read(self) -> set[str]:
        """What it asked for."""
        return self._declared.read

    def rising_since(self, column: Column[_Kind], part: _Kind, amount: float) -> float | None:
        return super().rising_since(column, part, amount) if self._declared.may_read(column.metric) else None

    def _rises(self, metric: str, window: float, **bounds: bool) -> Iterator[tuple[dict[str, str], float]]:
        return super()._rises(metric, window, **bounds) if self._declared.may_read(metric) else iter(())


def metrics_of_details(rule: Rule) -> tuple[str, ...]:
    """What adds to the matches of a rule and decides nothing."""
    return tuple(one.metric for one in rule.details)


class _DeclaredNode(Node):
    """The same node for one rule."""

    def __init__(self, node: Node, rule: Rule, absent: Collection[str]) -> None:
        super().__init__(node._snapshot)
        self._rule = rule
        self._absent = absent
        self.read: set[str] = set()

    def may_read(self, metric: str) -> bool:
        """Whether it is not among what is absent."""
        declared = {*self._rule.metrics_read, *metrics_of_details(self._rule)}
        assert metric in declared, f"{self._rule.name} does not declare {metric}"
        self.read.add(metric)
        return metric not in self._absent

    def series(self, metric: str) -> Iterator[tuple[Part, float]]:
        """The parts that have a number in a metric now, with it."""
        return super().series(metric) if self.may_read(metric) else iter(())

    def value(self, column: Column[Any], identity: Identity) -> float | None:
        """The number of one part."""
        return super().value(column, identity) if self.may_read(column.metric) else None


class DeclaredThresholds:
    """The thresholds for one rule, which may hold numbers against those that it declares."""

    def __init__(self, thresholds: Thresholds, rule: Rule) -> None:
        self._thresholds = thresholds
        self._rule = rule
        self.read: set[str] = set()
        """What it asked for."""

    def __getattr__(self, key: str) -> float:
        assert key in self._rule.thresholds, f"{self._rule.name} does not declare {key}"
        self.read.add(key)
        return cast(float, getattr(self._thresholds, key))


def seen_by(code: str, facts: Facts, thresholds: Thresholds | None = None) -> list[Match]:
    """All that the rule of a code matches: it reads what it declares, and without its details it matches the same.

    Every code is one of its own, and every threshold that it names in one word is one.
    """
    rule, limits = RULE_OF[code], thresholds or shipped()
    declared = cast(Thresholds, DeclaredThresholds(limits, rule))
    matches = list(rule.evaluate(Declared(facts, rule), declared))
    if matches and rule.details:
        bare = rule.evaluate(Declared(facts, rule, absent=metrics_of_details(rule)), declared)
        assert set(codes_of(bare)) == set(codes_of(matches)), f"{rule.name}: a detail decides"
    for match in matches:
        assert match.code in rule.codes
        assert match.evidence
        for fact in match.evidence:
            assert not fact.threshold_origin or fact.threshold is not None
            assert " " in fact.threshold_origin or not fact.threshold_origin or hasattr(limits, fact.threshold_origin)
    return matches


def codes_by(code: str, facts: Facts, thresholds: Thresholds | None = None) -> list[tuple[str, str]]:
    """Code and component of all that the rule of a code matches, as by ``seen_by``."""
    return codes_of(seen_by(code, facts, thresholds))


def seen_in(facts: Facts, thresholds: Thresholds | None = None) -> list[Match]:
    """All that all rules match, as by ``seen_by``."""
    return [one for rule in RULES for one in seen_by(rule.codes[0], facts, thresholds)]


def is_judged(match: Match, facts: Facts, thresholds: Thresholds | None = None) -> bool:
    """Whether a rule says that these facts would show what it matched before."""
    [judge] = [rules.judged[match.code] for rules in RULE_SETS if match.code in rules.judged]
    rule = RULE_OF[match.code]
    limits = cast(Thresholds, DeclaredThresholds(thresholds or shipped(), rule))
    return judge(Declared(facts, rule, absent=metrics_of_details(rule)), limits, match.component)


@cache
def xids_told() -> Mapping[str, Mapping[str, str]]:
    """Of which Xids the rules tell, by code, each with its evidence."""
    return _numbers_told("xid_fabric", "commwatch_gpu_xid_events_total", ("0", "0000:17:00.0"), range(1, 1000))


@cache
def sxids_told() -> Mapping[str, Mapping[str, str]]:
    """Of which SXids the rules tell, likewise."""
    return _numbers_told("sxid_fatal", "commwatch_nvswitch_sxid_events_total", ("0000:05:00.0",), range(10_000, 30_000))


def events_told(code: str) -> Mapping[str, str]:
    """Of which Xids or SXids the rule of a code tells, each with its evidence."""
    return (sxids_told() if code.startswith("sxid") else xids_told())[code]


def _numbers_told(code: str, metric: str, part: tuple[str, ...], numbers: range) -> Mapping[str, Mapping[str, str]]:
    now = {metric: {(*part, str(number)): 1.0 for number in numbers}}
    matches = seen_by(code, facts_of(now, {10.0: before(now, now)}))
    return {one.code: {fact.event.split()[1]: fact.what for fact in one.evidence} for one in matches}


def codes_of(matches: Iterable[Match]) -> list[tuple[str, str]]:
    """Code and component of each match, for comparisons."""
    return [(match.code, match.component.identity) for match in matches]


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
