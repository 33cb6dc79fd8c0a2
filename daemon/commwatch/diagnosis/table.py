"""Checks as rows of a table, and findings in groups: equal ones of many parts become one; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from commwatch.diagnosis.check import BRANCHES, VERDICTS, Branch, Check, CheckVerdict
from commwatch.findings.finding import Cause, Finding, format_evidence
from commwatch.units import format_seconds, utc

BRANCH_NAMES: Mapping[Branch, str] = MappingProxyType({
    "topology": "Topology", "bandwidth": "Bandwidth", "pattern": "Pattern", "infiniband": "InfiniBand",
    "settings": "Settings", "stress": "Stress", "profile": "Profile",
})  # fmt: skip

Kind: TypeAlias = Literal["good", "warn", "bad"]
"""How each printer colours a verdict, a severity or a word."""
KINDS: Mapping[str, Kind] = MappingProxyType({
    "OK": "good", "Warning": "warn", "Critical": "bad", "Unknown": "warn", "passed": "good", "failed": "bad",
    "notice": "warn", "critical": "bad", "warning": "warn",
})  # fmt: skip
"""By word of the verdict, verdict of a check, severity; what is in none is neither good nor bad."""

_LONGEST_RUN: Mapping[CheckVerdict, int] = MappingProxyType({"failed": 8, "notice": 4})
"""So many rows of one quantity stay apart; of what needs no hands, two."""
_MOST_NOTES = 3
"""Of one row."""
_ALIKE = 3
"""Findings of one code from this number on are shown together."""
_MOST_BESIDE = 4
"""Of what was seen beside a finding."""
_NUMBER = re.compile(r"\D*?([0-9]+(?:\.[0-9]+)?)(?![0-9])")


class TableRow(NamedTuple):
    verdict: CheckVerdict
    what: str
    where: str
    """Empty for the whole node."""
    measured: str
    required: str
    checks: tuple[Check, ...]


def branch_rows(checks: Iterable[Check], *, every: bool = False) -> Iterator[tuple[Branch, list[TableRow]]]:
    """The rows of each branch that has any, the most important first.

    Args:
        every: one row for each check, also where many say the same.
    """
    by_branch: dict[Branch, list[Check]] = {}
    for check in checks:
        by_branch.setdefault(check.branch, []).append(check)
    for branch in BRANCHES:
        if own := by_branch.get(branch):
            yield branch, _rows(sorted(own, key=lambda check: VERDICTS.index(check.verdict)), every)


def notes_of(rows: Iterable[TableRow]) -> Iterator[tuple[TableRow, str]]:
    """The notes below the table, each once: failures with their next step, and reasons for missing measurements."""
    said: set[str] = set()
    for row in rows:
        if row.verdict in ("passed", "does not apply"):
            continue
        notes = dict.fromkeys(map(_note, row.checks))
        new = [note for note in notes if note and note not in said]
        said.update(new)
        for note in new[:_MOST_NOTES]:
            yield row, note
        if left := len(new[_MOST_NOTES:]):
            yield row, f"and {left} more such."


def _note(check: Check) -> str:
    steps = (check.detail, check.next_step if check.verdict in ("failed", "notice") else "")
    return " ".join(map(_sentence, filter(None, steps)))


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a name, and a full stop."""
    first = text.partition(" ")[0]
    begin = text[0].upper() if first.isalpha() and first.islower() else text[0]
    return f"{begin}{text[1:].rstrip('.')}."


def counted(checks: Sequence[Check]) -> str:
    """``1 failed, 23 passed, 4 not measured``."""
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in VERDICTS}
    plural: dict[CheckVerdict, str] = {
        "notice": "notices", "published mark": "published marks", "does not apply": "do not apply",
    }  # fmt: skip
    return ", ".join(
        f"{count} {plural.get(verdict, verdict) if count > 1 else verdict}"
        for verdict, count in counts.items()
        if count
    )


def also_seen(finding: Finding) -> str:
    """The other observations beside a finding, with their place, which may be unrelated to it."""
    words = [one.words for one in finding.also_seen[:_MOST_BESIDE]]
    left = len(finding.also_seen) - len(words)
    return "; ".join([*words, *([f"and {left} more"] if left else [])])


def finding_groups(findings: Iterable[Finding], *, every: bool = False) -> list[tuple[Finding, ...]]:
    """Findings that differ in nothing but the part and its numbers, together; the order is that of the first of each.

    Those of one kind with the same causes are one story; a job with evidence of its own is one by itself.

    Args:
        findings: most severe first.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        own = (finding.component.identity,) if every or finding.job_evidence else ()
        causes = (f"{cause.code} {cause.component.identity}" for cause in finding.causes)
        groups.setdefault((finding.severity, finding.code, finding.lead.next_step, *own, *causes), []).append(finding)
    return [
        part
        for group in groups.values()
        for part in ([tuple(group)] if len(group) >= _ALIKE else [(finding,) for finding in group])
    ]


def place_of(group: Sequence[Finding]) -> str:
    """Where a group of findings is: the part of a single one, else how many parts."""
    return group[0].component.words if len(group) == 1 else f"{len(group)} parts"


def facts_of(finding: Finding) -> str:
    """The evidence of one of several findings, in one line."""
    return "; ".join(filter(None, (finding.detail.rstrip("."), *map(format_evidence, finding.evidence))))


def age_of(finding: Finding, now: float) -> str:
    """How long it is open: ``60 min``."""
    return format_seconds(max(0.0, now - finding.since))


def began_words(cause: Cause, finding: Finding) -> str:
    """When a cause began, and how long before the last payload of the job that the finding is about."""
    if cause.since is None:
        return "since when is not known"
    before = finding.since - cause.since
    side = "before" if before >= 0 else "after"
    return f"since {utc(cause.since)}, {format_seconds(abs(before))} {side} the last payload"


def _rows(checks: Sequence[Check], every: bool) -> list[TableRow]:
    groups: dict[tuple[str, ...], list[Check]] = {}
    for check in checks:
        groups.setdefault((check.verdict, check.what, check.source), []).append(check)
    rows = []
    for group in groups.values():
        if every or len(group) <= _LONGEST_RUN.get(group[0].verdict, 2):
            rows += [_row([check]) for check in group]
        else:
            rows.append(_row(group))
    return rows


def _row(group: Sequence[Check]) -> TableRow:
    first, last = group[0], group[-1]
    where = first.where
    if len(group) > 1:
        where = f"{len(group)} parts, {first.where} to {last.where}" if first.where and last.where else f"{len(group)}"
    return TableRow(
        verdict=first.verdict,
        what=first.what,
        where=where,
        measured=_range([check.measured for check in group]),
        required=_range([check.required for check in group]),
        checks=tuple(group),
    )


def _range(texts: Sequence[str]) -> str:
    """One text for several: the same, or from the least to the greatest number where they differ in one."""
    if len(set(texts)) == 1:
        return texts[0]
    found = [_NUMBER.match(text) for text in texts]
    numbers = [(float(match[1]), match) for match in found if match is not None]
    around = {(match.string[: match.start(1)], match.string[match.end(1) :]) for _, match in numbers}
    if len(numbers) < len(texts) or len(around) > 1:
        return "various"
    least, most = min(numbers, key=lambda one: one[0])[1], max(numbers, key=lambda one: one[0])[1]
    # Characters next to the number belong to it: x8 to x16, but at least 8 to 16.
    begin = most.string.rfind(" ", 0, most.start(1)) + 1
    return f"{least.string[: least.end(1)]} to {most.string[begin:]}"
