"""The verdict of a check: what the rules of the findings say of its part; a check fails by no other judge; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.check import Check
from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.causes import join
from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch.findings.finding import SEVERITIES, Cause, Finding, format_evidence
from commwatch.findings.register import Incident
from commwatch.findings.rules import RULE_SETS
from commwatch.units import format_seconds

Record: TypeAlias = Finding | Cause


class Matched(NamedTuple):
    """What a rule sees of a part."""

    record: Record
    is_open: bool
    """False: it has not lasted long enough to be a finding."""

    @property
    def words(self) -> str:
        """The title with its detail; of what is no finding yet also the evidence, and how long it must last."""
        words = ": ".join(filter(None, (self.record.title, self.record.detail.rstrip("."))))
        if self.is_open:
            return words
        wait = CODES[self.record.code].opens_after
        lasts = f": it must last {format_seconds(wait)}" if wait else ""
        return f"{words}, {'; '.join(map(format_evidence, self.record.evidence))} (not a finding yet{lasts})"


def matched_by(findings: FindingsDocument, facts: Facts, thresholds: Thresholds) -> tuple[Matched, ...]:
    """All that is open, causes among it, and what the rules see in the current values and is not open; worst first.

    Args:
        findings: of the daemon, or of a full scan.
        facts: the current values; no counter has a past in them.
        thresholds: in force.
    """
    found: dict[tuple[str, str], Matched] = {}
    for finding in findings.findings:
        records: tuple[Record, ...] = (finding, *finding.causes)
        for record in records:
            found.setdefault((record.code, record.component.identity), Matched(record, is_open=True))
    for record in _seen_now(findings, facts, thresholds):
        found.setdefault((record.code, record.component.identity), Matched(record, is_open=False))
    return tuple(sorted(found.values(), key=lambda one: (not one.is_open, SEVERITIES.index(one.record.severity))))


def _seen_now(findings: FindingsDocument, facts: Facts, thresholds: Thresholds) -> Iterator[Finding]:
    for rule in (rule for rules in RULE_SETS for rule in rules.rules):
        if rule.name in findings.failing_rules:
            continue
        for one in rule.evaluate(facts, thresholds):
            since = findings.time if one.since is None else one.since
            yield from join([Incident(one, since, findings.time)])


def judged(check: Check, matched: Sequence[Matched], codes: Collection[str], parts: Collection[str] = ()) -> Check:
    """A check with the verdict of the rules, their words and their next step.

    Args:
        check: with what is measured and required, and its verdict where no rule sees anything.
        matched: what the rules see, the worst first.
        codes: of what makes this check fail.
        parts: identities of the components that it is about; empty: any.
    """
    seen = [one for one in matched if one.record.code in codes and (not parts or _is_of(one.record, parts))]
    if not seen:
        return check
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
        detail="; ".join(filter(None, (check.detail, *words))),
        next_step=seen[0].record.next_step,
    )


def _is_of(record: Record, parts: Collection[str]) -> bool:
    return any(part == record.component.identity or part in record.component.parts for part in parts)
