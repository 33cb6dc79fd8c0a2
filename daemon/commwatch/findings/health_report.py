"""What a verdict is made of: the findings of the daemon as faults; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.finding import Cause, Finding
from commwatch.findings.rules.gpu import CALLS_FAIL
from commwatch.findings.rules.inventory import BY_CONFIGURATION
from commwatch.findings.verdict import Fault, Report

HANG_PASSES_SECONDS: Final = 60.0
"""A call about a GPU may return after as long: the driver waits up to 45 s for the GPU's own processor (Xid 119)."""


def report_of(document: FindingsDocument, preset: str = "") -> Report:
    """What is judged of the daemon's document.

    Args:
        document: its answer.
        preset: the simulated node that was asked for; the answer of one is simulated, whatever it says of itself.
    """
    return Report(
        looked_at=document.looked_at,
        simulated=document.simulated or preset or None,
        maintenance=document.maintenance,
        failing_rules=document.failing_rules,
        faults=tuple(_faults(document)),
        has_gpus=document.has_gpus,
        unanswered=document.unanswered,
        is_inventory_known=document.is_inventory_known,
        unread=document.unread,
    )


def _faults(document: FindingsDocument) -> Iterator[Fault]:
    """Findings, then the causes that stand below them, each once."""
    for one in document.findings:
        lead = one.lead
        words = "" if lead is one else f"{lead.title}: {lead.component.words}"
        yield _fault(one, since=one.since, lead=words)
    causes = {
        (cause.code, cause.component.identity): cause for one in document.findings for cause in one.causes
    }  # fmt: skip
    for cause in causes.values():
        yield _fault(cause)


def _fault(record: Finding | Cause, since: float | None = None, lead: str = "") -> Fault:
    """One record as it is judged.

    Args:
        record: of the daemon.
        since: of a finding; None of a cause.
        lead: see ``Fault``.
    """
    return Fault(
        code=record.code,
        title=record.title,
        severity=record.severity,
        where=record.component.words,
        since=since,
        last_seen=record.last_seen,
        is_cause=since is None,
        lead=lead,
        events=tuple(fact.event for fact in record.evidence),
        is_by_configuration=any(fact.what == BY_CONFIGURATION for fact in record.evidence),
        may_pass=record.code == "gpu_not_answering" and _has_just_hung(record),
    )


def _has_just_hung(record: Finding | Cause) -> bool:
    """Whether the calls about a GPU that do not return now may still return."""
    is_failing = any(fact.what == CALLS_FAIL for fact in record.evidence)
    return not is_failing and record.seen_seconds < HANG_PASSES_SECONDS
