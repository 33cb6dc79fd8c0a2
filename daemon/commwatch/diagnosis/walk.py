"""The walk of an expert over a node: each branch makes its checks of what is known; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal, TypeAlias

import msgspec

from commwatch.diagnosis.bandwidth import bandwidth_checks
from commwatch.diagnosis.check import BRANCHES, Branch, Check
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.infiniband import infiniband
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.measures import measures_of
from commwatch.diagnosis.overall import overall
from commwatch.diagnosis.pattern import pattern
from commwatch.diagnosis.profile import profile_checks
from commwatch.diagnosis.settings import settings
from commwatch.diagnosis.stress import stress
from commwatch.diagnosis.topology import topology_checks
from commwatch.findings.api_documents import FindingRecord
from commwatch.findings.finding import SEVERITIES

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
    )


def _gravity(finding: FindingRecord) -> tuple[int, float]:
    return SEVERITIES.index(finding.severity), finding.since
