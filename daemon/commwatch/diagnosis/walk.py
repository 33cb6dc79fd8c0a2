"""The walk of an expert over a node: each branch makes its checks of what is known; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import msgspec

from commwatch.diagnosis.bandwidth import bandwidth_checks
from commwatch.diagnosis.check import BRANCHES, Branch, Check
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.infiniband import infiniband
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.measures import measures_of
from commwatch.diagnosis.pattern import pattern
from commwatch.diagnosis.pattern_scan import FRESH_PROBE
from commwatch.diagnosis.profile import profile_checks
from commwatch.diagnosis.settings import settings
from commwatch.diagnosis.stress import stress
from commwatch.diagnosis.topology import topology_checks
from commwatch.findings.finding import SEVERITIES, Finding
from commwatch.findings.verdict import Verdict, verdict_of

BranchChecks: TypeAlias = Callable[[Known], Iterable[Check]]

WALK: dict[Branch, BranchChecks] = {
    "topology": topology_checks,
    "bandwidth": bandwidth_checks,
    "pattern": pattern,
    "infiniband": infiniband,
    "settings": settings,
    "profile": profile_checks,
    "stress": stress,
}
"""By branch what makes its checks."""


def diagnose(known: Known, scan: Literal["quick", "full"]) -> Diagnosis:
    """All checks, and what they come to."""
    findings = tuple(sorted(known.findings.findings, key=_gravity))
    known = replace(known, findings=msgspec.structs.replace(known.findings, findings=findings))
    every = [check for branch in BRANCHES if branch in WALK for check in WALK[branch](known)]
    verdict, checks = overall(known, every)
    return Diagnosis(
        version=known.findings.version,
        time=known.findings.time,
        simulated=known.findings.simulated,
        maintenance=known.findings.maintenance,
        scan=scan,
        verdict=verdict,
        looked_at=known.findings.looked_at,
        findings=findings,
        checks=checks,
        score=known.score.score,
        matrix=known.matrix,
        measures=tuple(measures_of(known.facts)),
        closed=known.findings.closed,
    )


def _gravity(finding: Finding) -> tuple[int, float]:
    return SEVERITIES.index(finding.severity), finding.since


def overall(known: Known, checks: Sequence[Check]) -> tuple[Verdict, tuple[Check, ...]]:
    """The verdict that every face says, with the checks that go with it.

    A check fails where a finding stands: where none does, one that is not met is a notice. What this command alone was
    asked to measure, and the daemon does not know, fails by itself, and is a warning.

    Args:
        known: what the daemon said, with its findings most severe first.
        checks: of all branches.
    """
    document = known.findings
    if known.scanned and document.grave:
        # The scan has looked itself: what it found stands, however old the daemon's own look is.
        document = msgspec.structs.replace(document, looked_at=document.time)
    verdict = verdict_of(document, document.time)
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
