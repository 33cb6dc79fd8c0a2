"""A diagnosis as text for people: verdict, findings with evidence and next step, table of checks; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.diagnosis.check import BRANCHES, Check, CheckVerdict
from commwatch.diagnosis.document import Diagnosis, Word
from commwatch.documents import CauseRecord, FindingRecord
from commwatch.finding_words import format_evidence
from commwatch.styled import HEADING, Line, columns
from commwatch.units import format_seconds

WORD_STYLES: dict[Word, str] = {
    "healthy": "green", "notices": "green", "degraded": "yellow", "broken": "red", "unknown": "yellow",
}  # fmt: skip
CHECK_STYLES: dict[CheckVerdict, str] = {"passed": "green", "failed": "red", "notice": "yellow"}


def diagnosis_lines(document: Diagnosis) -> Iterator[Line]:
    """The whole answer."""
    if document.simulated is not None:
        yield [(f"Simulated node {document.simulated}: none of this is real.", "")]
        yield []
    if document.maintenance is not None:
        yield [(f"The daemon is paused ({document.maintenance}): nothing new is read.", "yellow")]
        yield []
    word = document.verdict.word
    yield [(f"{word.capitalize()}: ", f"bold {WORD_STYLES[word]}"), (document.verdict.line, "")]
    for finding in document.findings:
        yield []
        yield from _finding_lines(finding, document.time)
    for branch in BRANCHES:
        own = [check for check in document.checks if check.branch == branch]
        if own:
            yield []
            yield [(branch.capitalize() if branch != "infiniband" else "InfiniBand", HEADING)]
            yield from _check_lines(own)


def _finding_lines(finding: FindingRecord, now: float) -> Iterator[Line]:
    style = {"critical": "red", "warning": "yellow"}.get(finding.severity, "")
    yield [
        (f"{finding.severity}: ", style),
        (f"{finding.title}: {finding.component.component.words}", "bold"),
        (f", for {format_seconds(max(0.0, now - finding.since))}", ""),
    ]
    if finding.detail:
        yield [(f"  {finding.detail}", "")]
    for fact in finding.evidence:
        yield [(f"  {format_evidence(fact)}", "")]
    for place, cause in enumerate(finding.causes, start=1):
        yield from _cause_lines(place, cause)
    step = finding.causes[0].next_step if finding.causes else finding.next_step
    yield [("  next: ", "bold"), (step, "")]


def _cause_lines(place: int, cause: CauseRecord) -> Iterator[Line]:
    yield [(f"  cause {place}: {cause.title}: {cause.component.component.words}", ""), (f" ({cause.reason})", "dim")]
    for fact in cause.evidence:
        yield [(f"    {format_evidence(fact)}", "")]


def _check_lines(checks: Sequence[Check]) -> Iterator[Line]:
    heading = [(name, "dim") for name in ("verdict", "what", "where", "measured", "required")]
    rows = [
        [
            (check.verdict, CHECK_STYLES.get(check.verdict, "dim")),
            (check.what, ""),
            (check.where or "-", ""),
            (check.measured or "-", ""),
            (check.required or "-", ""),
        ]
        for check in checks
    ]
    yield from columns([heading, *rows])
    for check in checks:
        if check.verdict in ("failed", "notice") and (check.detail or check.next_step):
            yield [(f"  {check.where or check.what}: {' '.join(filter(None, (check.detail, check.next_step)))}", "")]
