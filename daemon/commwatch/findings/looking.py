"""One look at the node: all rules over one snapshot, each on its own, so that one that fails stops no other.

A rule is a function of the numbers that it declares, of the history of the counters among them, of the time and of
thresholds that stay. While none of these numbers has changed, and it has asked neither for the time nor for a counter
that moved, it would sight the same again, and is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Sighting
from commwatch.findings.history import CounterHistory
from commwatch.findings.rules.rule_set import Rule, RuleSet
from commwatch.node.changes import Changes, Moved
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Layout, Snapshot

TIDY_SECONDS = 3600.0
"""Between two times at which counters of what is gone are forgotten."""

RuleFailed: TypeAlias = Callable[[str, Exception], None]
"""Told the name of a rule and why it failed."""


class Looking:
    """The rules, and what they read."""

    def __init__(
        self,
        rule_sets: Sequence[RuleSet],
        thresholds: Thresholds,
        history: CounterHistory,
        failed: RuleFailed,
        others: Iterable[str] = (),
    ) -> None:
        """
        Args:
            rule_sets: to run, in this order.
            thresholds: in force.
            history: of the counters that the rules watch; fed by each look.
            failed: called with each rule that raised.
            others: metrics that ``has_changed`` will be asked for beside those of the rules.
        """
        self._rules = tuple(rule for rules in rule_sets for rule in rules.rules)
        self._rule_of = {code: rule for rule in self._rules for code in rule.codes}
        self._judged = {code: judge for rules in rule_sets for code, judge in rules.judged.items()}
        self._thresholds = thresholds
        self._history = history
        self._told = failed
        self._node = Node()
        self.facts = Facts(self._node, history, 0.0)
        """What the rules read at the last look."""
        self._read_by = _read_by(self._rules)
        self._changes = Changes({*self._read_by, *history.metrics, *others})
        self._sighted: list[list[Sighting] | None] = [None] * len(self._rules)
        """What each rule would sight again while what it reads is the same; None where that is not known."""
        self._layouts: Sequence[Layout] = ()
        self._watched: Collection[str] = ()
        """Counters of the history that are there, as of these layouts."""
        self._tidied = 0.0
        """When counters of what is gone were forgotten last, seconds since 1970."""
        self.failing: frozenset[str] = frozenset()
        """Rules that failed at the last look."""

    def at(self, snapshot: Snapshot, now: float) -> list[Sighting]:
        """All that the rules sight.

        Args:
            snapshot: of this moment.
            now: seconds since 1970.
        """
        self._node.show(snapshot)
        moved = self._changes.take(snapshot.blocks, snapshot.layouts)
        for metric in self._changes.changed:
            for place in self._read_by.get(metric, ()):
                self._sighted[place] = None
        self._feed(snapshot, moved, now)
        facts = self.facts = Facts(self._node, self._history, now)
        sightings: list[Sighting] = []
        failing = set()
        for place, rule in enumerate(self._rules):
            sighted = self._sighted[place]
            if sighted is None:
                facts.is_timed = False
                try:
                    sighted = [_declared(sighting, rule) for sighting in rule.look(facts, self._thresholds)]
                except Exception as error:
                    # A defect in one rule must be seen, and must not blind the others.
                    failing.add(rule.name)
                    self._told(rule.name, error)
                    continue
                if not facts.is_timed:
                    self._sighted[place] = sighted
            sightings += sighted
        self.failing = frozenset(failing)
        return sightings

    def _feed(self, snapshot: Snapshot, moved: Iterable[Moved], now: float) -> None:
        """Take the watched counters into the history; numbers that did not move are passed over."""
        watched = self._history.metrics
        for one in moved:
            if one.metric in watched:
                self._feed_counter(one, now)
        if snapshot.layouts != self._layouts:
            self._layouts = snapshot.layouts
            here = {metric for layout in snapshot.layouts for metric in layout.families}
            self._watched = [metric for metric in watched if metric in here]
        self._history.saw(self._watched, now)
        self._history.forget(now)
        if now - self._tidied >= TIDY_SECONDS or now < self._tidied:
            self._tidied = now
            self._tidy(snapshot)

    def _feed_counter(self, moved: Moved, now: float) -> None:
        metric, block, earlier = moved
        series, values = block.layout.series, block.values
        unseen = self._history.unseen_since(metric, now)
        for position in block.layout.families[metric]:
            value = values[position]
            if value is not None and (earlier is None or value != earlier.values[position]):
                self._history.take(metric, series[position][1], value, now, unseen)

    def _tidy(self, snapshot: Snapshot) -> None:
        for metric in self._history.metrics:
            blocks = snapshot.family_blocks(metric)
            present = {block.layout.series[at][1] for block in blocks for at in block.layout.families[metric]}
            self._history.retain(metric, present)

    def has_changed(self, metrics: Iterable[str]) -> bool:
        """Whether one of these metrics may show another number at the last look than at the one before."""
        return not self._changes.changed.isdisjoint(metrics)

    def is_judged(self, sighting: Sighting, facts: Facts | None = None) -> bool:
        """Whether a look would have sighted it if it were so; its metrics were read.

        Args:
            sighting: of any look.
            facts: of that look; of the last one by default.
        """
        judge = self._judged.get(sighting.code)
        return judge is None or judge(facts or self.facts, self._thresholds, sighting.component)

    def reads_of(self, code: str) -> tuple[str, ...] | None:
        """The metrics that could show a code again; None where its rule has failed at the last look."""
        rule = self._rule_of[code]
        return None if rule.name in self.failing else rule.metrics_read


def _declared(sighting: Sighting, rule: Rule) -> Sighting:
    if sighting.code not in rule.codes:
        raise ValueError(f"{sighting.code} is no code of {rule.name}")
    return sighting


def _read_by(rules: Sequence[Rule]) -> dict[str, list[int]]:
    """By metric: places of the rules that read it."""
    found: dict[str, list[int]] = {}
    for place, rule in enumerate(rules):
        for metric in (*rule.metrics_read, *rule.metrics_of_details):
            found.setdefault(metric, []).append(place)
    return found
