"""Evaluates all rules over one snapshot, each on its own, so that one that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Match
from commwatch.findings.history import CounterHistory
from commwatch.findings.rules.rule_set import Rule, RuleSet
from commwatch.node import hardware_events, recent_errors
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Snapshot

TIDY_SECONDS = 3600.0
"""Between two times at which counters of what is gone are forgotten."""

_RECENT_OF: Final = {**hardware_events.RECENT_OF, **recent_errors.METRICS}
"""By counter: the metric that alerts read."""

RuleFailed: TypeAlias = Callable[[str, Exception], None]
"""Told the name of a rule and why it failed."""


class RuleEngine:
    def __init__(
        self,
        rule_sets: Sequence[RuleSet],
        thresholds: Thresholds,
        history: CounterHistory,
        failed: RuleFailed,
    ) -> None:
        """
        Args:
            rule_sets: to run, in this order.
            history: of the counters that the rules watch; fed by each evaluation.
            failed: called with each rule that raised.
        """
        self._rules = tuple(rule for rules in rule_sets for rule in rules.rules)
        self._rule_of = {code: rule for rule in self._rules for code in rule.codes}
        self._judged = {code: judge for rules in rule_sets for code, judge in rules.judged.items()}
        self._thresholds = thresholds
        self._history = history
        self._told = failed
        self._node = Node()
        self.facts = Facts(self._node, history, 0.0)
        """Input of the rules at the last evaluation."""
        self._tidied = 0.0
        """When counters of what is gone were forgotten last, seconds since 1970."""
        self.failing: frozenset[str] = frozenset()
        """Rules that failed at the last evaluation."""

    def evaluate(self, snapshot: Snapshot, now: float) -> list[Match]:
        """All matches of the rules.

        Args:
            now: seconds since 1970.
        """
        self._node.show(snapshot)
        self._feed(snapshot, now)
        facts = self.facts = Facts(self._node, self._history, now)
        matches: list[Match] = []
        failing = set()
        for rule in self._rules:
            try:
                matches += [_declared(match, rule) for match in rule.evaluate(facts, self._thresholds)]
            except Exception as error:
                # A defect in one rule must be seen, and must not blind the others.
                failing.add(rule.name)
                self._told(rule.name, error)
        self.failing = frozenset(failing)
        return matches

    def _feed(self, snapshot: Snapshot, now: float) -> None:
        """Take the watched counters into the history."""
        present = []
        for metric in self._history.metrics:
            places = snapshot.holders.get(metric, ())
            unseen, recent = self._history.unseen_since(metric, now), _recent(metric, snapshot)
            for block in [snapshot.blocks[place] for place in places]:
                for position in block.layout.families[metric]:
                    value, labels = block.values[position], block.layout.series[position][1]
                    if value is not None:
                        lately = None if recent is None else recent.get(labels, 0.0)
                        self._history.take(metric, labels, value, now, unseen, lately)
            if places:
                present.append(metric)
        self._history.saw(present, now)
        self._history.forget(now)
        if now - self._tidied >= TIDY_SECONDS or now < self._tidied:
            self._tidied = now
            self._tidy(snapshot)

    def _tidy(self, snapshot: Snapshot) -> None:
        for metric in self._history.metrics:
            blocks = snapshot.family_blocks(metric)
            present = {block.layout.series[at][1] for block in blocks for at in block.layout.families[metric]}
            self._history.retain(metric, present)

    def is_judged(self, match: Match, facts: Facts | None = None) -> bool:
        """Whether its rule would have matched if it were so; its metrics were read.

        Args:
            match: of any evaluation.
            facts: of that evaluation; of the last one by default.
        """
        judge = self._judged.get(match.code)
        return judge is None or judge(facts or self.facts, self._thresholds, match.component)

    def first_counted(self, match: Match) -> float | None:
        """When the first of the counted events came, seconds since 1970; None where that is not known."""
        return self._history.first_rise(self._rule_of[match.code].metrics_counted, match.component.key)

    def reads_of(self, code: str) -> tuple[str, ...] | None:
        """The metrics that could show a code again; None where its rule has failed at the last evaluation."""
        rule = self._rule_of[code]
        return None if rule.name in self.failing else rule.metrics_read


def _recent(metric: str, snapshot: Snapshot) -> dict[tuple[str, ...], float] | None:
    """By how much series of a counter rose lately, as alerts read it; None where nothing says so."""
    name = _RECENT_OF.get(metric)
    if name is None:
        return None
    blocks = [snapshot.blocks[place] for place in snapshot.holders.get(name, ())]
    return {
        block.layout.series[place][1]: block.values[place] or 0.0
        for block in blocks
        for place in block.layout.families[name]
    }


def _declared(match: Match, rule: Rule) -> Match:
    if match.code not in rule.codes:
        raise ValueError(f"{match.code} is no code of {rule.name}")
    return match
