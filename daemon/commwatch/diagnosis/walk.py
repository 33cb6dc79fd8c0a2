"""The walk of an expert over a node: each branch makes its checks of what is known; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from commwatch.diagnosis.bandwidth import bandwidth_checks
from commwatch.diagnosis.check import BRANCHES, Branch, Check
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.infiniband import infiniband
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.overall import verdict_of
from commwatch.diagnosis.pattern import pattern
from commwatch.diagnosis.profile import profile_checks
from commwatch.diagnosis.settings import settings
from commwatch.diagnosis.stress import stress
from commwatch.diagnosis.topology import topology_checks
from commwatch.findings.api_documents import FindingRecord
from commwatch.findings.finding import SEVERITIES
from commwatch.findings.rules.gpu_ways import gpus_of

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
    checks = tuple(check for branch in BRANCHES if branch in WALK for check in WALK[branch](known))
    findings = tuple(sorted(known.findings.findings, key=_gravity))
    return Diagnosis(
        version=known.findings.version,
        time=known.findings.time,
        simulated=known.findings.simulated,
        maintenance=known.findings.maintenance,
        scan=scan,
        verdict=verdict_of(findings, checks, known.findings, has_gpus=bool(gpus_of(known.facts))),
        looked_at=known.findings.looked_at,
        findings=findings,
        checks=checks,
        score=known.score.score,
        matrix=known.matrix,
    )


def _gravity(finding: FindingRecord) -> tuple[int, float]:
    return SEVERITIES.index(finding.severity), finding.since
