"""The verdict of a check by the rules of the findings on its part; nothing else makes a check fail; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.causes import join
from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch.findings.finding import SEVERITIES, Cause, Finding, format_evidence
from commwatch.findings.register import Incident
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.inventory import QUANTITIES
from commwatch.findings.rules.rule_set import Quantity, Rule
from commwatch.units import format_seconds

Record: TypeAlias = Finding | Cause

_RULES = tuple(rule for rules in RULE_SETS for rule in rules.rules)


class Matched(NamedTuple):
    record: Record
    is_open: bool
    """False: it has not lasted long enough to be a finding."""

    def is_about(self, quantity: Quantity) -> bool:
        """Whether a check of this quantity fails by it."""
        component = self.record.component
        if component.kind == "node" and component.key:
            return QUANTITIES.get(component.key) == quantity
        return self.record.code in CODES and quantity in CODES[self.record.code].quantities

    @property
    def words(self) -> str:
        """The title with its detail; of what is no finding yet also the evidence, and how long it must last."""
        words = ": ".join(filter(None, (self.record.title, self.record.detail.rstrip("."))))
        if self.is_open:
            return words
        wait = CODES[self.record.code].opens_after
        lasts = f": it must last {format_seconds(wait)}" if wait else ""
        return f"{words}, {'; '.join(map(format_evidence, self.record.evidence))} (not a finding yet{lasts})"


@dataclass(frozen=True, slots=True)
class Matches:
    records: tuple[Matched, ...]
    """Open or not yet, the worst first."""
    failing: Mapping[str, str]
    """Codes of unknown state, with their rule, which raised."""

    def __iter__(self) -> Iterator[Matched]:
        return iter(self.records)

    def only(self, records: Iterable[Matched]) -> Matches:
        """A choice of them."""
        return Matches(tuple(records), self.failing)

    def failed_of(self, quantity: Quantity) -> str:
        """Which rules of a quantity raised: ``a rule failed: probe.step``; empty without any."""
        names = dict.fromkeys(rule for code, rule in self.failing.items() if quantity in CODES[code].quantities)
        return f"a rule failed: {', '.join(names)}" if names else ""


def matched_by(findings: FindingsDocument, facts: Facts, thresholds: Thresholds) -> Matches:
    """All that is open, causes among it, and what the rules see in the current values and is not open; worst first.

    Args:
        findings: of the daemon, or of a full scan.
    """
    found: dict[tuple[str, str], Matched] = {}
    for finding in findings.findings:
        records: tuple[Record, ...] = (finding, *finding.causes)
        for record in records:
            found.setdefault((record.code, record.component.identity), Matched(record, is_open=True))
    failing: dict[str, str] = {}
    for rule in _RULES:
        seen = None if rule.name in findings.failing_rules else _seen_now(rule, findings.time, facts, thresholds)
        if seen is None:
            failing.update(dict.fromkeys(rule.codes, rule.name))
        for record in seen or ():
            found.setdefault((record.code, record.component.identity), Matched(record, is_open=False))
    in_order = sorted(found.values(), key=lambda one: (not one.is_open, SEVERITIES.index(one.record.severity)))
    return Matches(tuple(in_order), failing)


def _seen_now(rule: Rule, now: float, facts: Facts, thresholds: Thresholds) -> list[Finding] | None:
    """The findings of a rule at a time, seconds since 1970; None if it raised."""
    try:
        matches = list(rule.evaluate(facts, thresholds))
    except Exception:  # a defect in one rule must be seen, and must not blind the others
        return None
    incidents = [Incident(one, now if one.since is None else one.since, now) for one in matches]
    return [finding for incident in incidents for finding in join([incident])]


def judged(check: Check, matched: Matches, quantity: Quantity, parts: Collection[str] = ()) -> Check:
    """A check with the verdict of the rules, their words and their next step; none passes whose rule failed.

    Args:
        check: with what is measured and required, and its verdict where no rule sees anything.
        quantity: that it is about: it fails by the codes that name it.
        parts: identities or addresses of the components that it is about, with whatever the whole node lacks; empty:
            any.
    """
    seen = [one for one in matched if one.is_about(quantity) and (not parts or _is_of(one.record, parts))]
    if not seen:
        failed = matched.failed_of(quantity)
        if not failed or check.verdict not in ("passed", "notice"):
            return check
        verdict: CheckVerdict = "not measured" if check.verdict == "passed" else "notice"
        return msgspec.structs.replace(
            check, verdict=verdict, detail="; ".join(filter(None, (check.detail.rstrip("."), failed)))
        )
    is_fault = any(one.is_open and one.record.severity != "info" for one in seen)
    facts = [fact for one in seen for fact in one.record.evidence]
    origins = dict.fromkeys(fact.threshold_origin for fact in facts if fact.threshold_origin)
    words = dict.fromkeys(one.words for one in seen)
    return msgspec.structs.replace(
        check,
        verdict="failed" if is_fault else "notice",
        measured=check.measured or "; ".join(map(format_evidence, facts)) or seen[0].record.title,
        required=check.required or "no such finding",
        source=check.source or ", ".join(origins),
        detail="; ".join(filter(None, (check.detail.rstrip("."), *words))),
        next_step=seen[0].record.next_step,
    )


def _is_of(record: Record, parts: Collection[str]) -> bool:
    component = record.component
    if component.kind == "node" and component.key and not component.parts:
        return True
    return any(part == component.identity or part in component.parts for part in parts)
