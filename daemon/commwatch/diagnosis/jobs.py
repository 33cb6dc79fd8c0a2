"""Findings about jobs that do not go on, with what this command learned about their processes; pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from commwatch.diagnosis.known import Known
from commwatch.findings.causes import STOPPED
from commwatch.findings.finding import SEVERITIES, Finding
from commwatch.jobs.asked import first_gpu
from commwatch.jobs.evidence import SuspectedJob

_WITHOUT_PROGRESS = STOPPED | {"job_silent", "job_stopped"}


def jobs_with_a_finding(known: Known) -> tuple[SuspectedJob, ...]:
    """The jobs that move no data for long enough to have a finding."""
    named = {one.component.key for one in known.findings.findings if one.code in _WITHOUT_PROGRESS}
    return tuple(job for job in known.jobs if job.ranks and first_gpu(job) in named)


def jobs_first(findings: Iterable[Finding], known: Known) -> tuple[Finding, ...]:
    """Findings with the evidence on their jobs: jobs without progress first, then the most severe, then the oldest."""
    told = (
        msgspec.structs.replace(one, job_evidence=known.job_evidence.get(one.component.key, ()))
        if one.code in _WITHOUT_PROGRESS
        else one
        for one in findings
    )
    return tuple(sorted(told, key=_order))


def _order(finding: Finding) -> tuple[bool, int, float]:
    is_urgent = finding.code in STOPPED and finding.severity != "info"
    return (not is_urgent, SEVERITIES.index(finding.severity), finding.since)
