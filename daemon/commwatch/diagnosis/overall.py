"""What a diagnosis comes to: the verdict on the node, and what this command measured beside it; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.pattern_scan import FRESH_PROBE
from commwatch.findings.health_report import report_of
from commwatch.findings.verdict import Verdict, verdict_of


def overall(known: Known, checks: Sequence[Check]) -> tuple[Verdict, tuple[Check, ...]]:
    """The verdict that every face says, with the checks that go with it.

    A check fails where a finding stands: where none does, one that is not met is a notice. What this command alone was
    asked to measure, and the daemon does not know, fails by itself, and is a warning.

    Args:
        known: what the daemon said, with its findings most severe first.
        checks: of all branches.
    """
    report = report_of(known.findings)
    if known.scanned and report.grave:
        # The scan has looked itself: what it found stands, however old the daemon's own look is.
        report = replace(report, looked_at=known.findings.time)
    verdict = verdict_of(report, known.findings.time)
    if verdict.word in ("Warning", "Critical"):
        return verdict, tuple(checks)
    checks = tuple(_lowered(known, checks))
    if failed := [check for check in checks if check.verdict == "failed"]:
        others = len(failed) - 1
        more = f"; and {others} more failed check{'s' * (others > 1)}" if others else ""
        return Verdict("Warning", f"{_check_words(failed[0])}{more}"), checks
    return verdict, checks


def _lowered(known: Known, checks: Sequence[Check]) -> Iterator[Check]:
    for check in checks:
        is_own = (
            check.branch == "stress"
            or check.what == FRESH_PROBE
            or (check.branch == "profile" and bool(known.asked.profile))
        )
        yield check if is_own or check.verdict != "failed" else msgspec.structs.replace(check, verdict="notice")


def _check_words(check: Check) -> str:
    where = f" of {check.where}" if check.where else ""
    return f"{check.what}{where}: {check.measured}, required {check.required}"
