"""Findings about jobs that do not go on, with what this command learned about their processes; pure."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.diagnosis.known import Known
from commwatch.findings.causes import STOPPED
from commwatch.findings.finding import SEVERITIES, Finding
from commwatch.findings.job_evidence import WITHOUT_PROGRESS, with_job_evidence
from commwatch.jobs.evidence import EvidenceSource, SuspectedJob, first_gpu


def jobs_with_a_finding(known: Known) -> tuple[SuspectedJob, ...]:
    """The jobs that move no data for long enough to have a finding."""
    named = {one.component.key for one in known.findings.findings if one.code in WITHOUT_PROGRESS}
    return tuple(job for job in known.jobs if job.ranks and first_gpu(job) in named)


def jobs_with_words(known: Known, source: EvidenceSource) -> frozenset[str]:
    """The jobs on which the daemon has words of a source, by the PCI address of the lowest GPU."""
    return frozenset(
        one.component.key for one in known.findings.findings if any(word.source == source for word in one.job_evidence)
    )


def jobs_first(findings: Iterable[Finding], known: Known) -> tuple[Finding, ...]:
    """Findings with the evidence on their jobs: jobs without progress first, then the most severe, then the oldest."""
    return tuple(sorted(with_job_evidence(findings, known.job_evidence), key=_order))


def _order(finding: Finding) -> tuple[bool, int, float]:
    is_urgent = finding.code in STOPPED and finding.severity != "info"
    return (not is_urgent, SEVERITIES.index(finding.severity), finding.since)
