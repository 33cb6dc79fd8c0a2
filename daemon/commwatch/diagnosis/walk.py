"""The walk of an expert over a node: each branch makes its checks of what is known; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    checks = tuple(check for branch in BRANCHES if branch in WALK for check in WALK[branch](known))
    return Diagnosis(
        version=known.findings.version,
        time=known.findings.time,
        simulated=known.findings.simulated,
        maintenance=known.findings.maintenance,
        scan=scan,
        verdict=overall(known, checks),
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


def overall(known: Known, checks: Sequence[Check]) -> Verdict:
    """The verdict that every face says, unless it is not grave and this command has measured more than the daemon.

    Args:
        known: what the daemon said, with its findings most severe first.
        checks: of all branches.
    """
    document = known.findings
    if known.scanned and document.grave:
        # The scan has looked itself: what it found stands, however old the daemon's own look is.
        document = msgspec.structs.replace(document, looked_at=document.time)
    verdict = verdict_of(document, document.time)
    failed = [check for check in checks if check.verdict == "failed" and _is_own(known, check)]
    if verdict.word in ("Warning", "Critical") or not failed:
        return verdict
    others = len(failed) - 1
    more = f"; and {others} more failed check{'s' * (others > 1)}" if others else ""
    return Verdict("Warning", f"{_check_words(failed[0])}{more}")


def _is_own(known: Known, check: Check) -> bool:
    """Whether this command alone was asked to measure it, and the daemon does not know."""
    return (
        check.branch == "stress"
        or check.what == FRESH_PROBE
        or (check.branch == "profile" and bool(known.asked.profile))
    )


def _check_words(check: Check) -> str:
    where = f" of {check.where}" if check.where else ""
    return f"{check.what}{where}: {check.measured}, required {check.required}"
