"""The words of all sources on a job under the finding about it, in the order of trust; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, get_args

import msgspec

from commwatch.findings.causes import STOPPED
from commwatch.findings.finding import Finding
from commwatch.jobs.evidence import EvidenceSource, JobEvidence

WITHOUT_PROGRESS: Final = STOPPED | {"job_silent", "job_stopped"}
"""Codes of findings about a job that moves no data; each has the PCI address of the job's lowest GPU as its key."""
_TRUST: Final[tuple[str, ...]] = get_args(EvidenceSource)


def with_job_evidence(
    findings: Iterable[Finding], evidence: Mapping[str, Sequence[JobEvidence]]
) -> Iterable[Finding]:  # fmt: skip
    """The findings with further evidence on their jobs. Whatever it says, no finding goes, and none gets less severe.

    Args:
        findings: of all kinds.
        evidence: by the PCI address of the job's lowest GPU.
    """
    for one in findings:
        if one.code in WITHOUT_PROGRESS and (more := evidence.get(one.component.key)):
            words = sorted((*one.job_evidence, *more), key=_place)
            yield msgspec.structs.replace(one, job_evidence=tuple(words))
        else:
            yield one


def _place(evidence: JobEvidence) -> int:
    return _TRUST.index(evidence.source) if evidence.source in _TRUST else len(_TRUST)
