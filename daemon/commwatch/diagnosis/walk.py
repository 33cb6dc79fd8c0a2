"""The walk of an expert over a node: each branch makes its checks from the known facts; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from commwatch.diagnosis.bandwidth import bandwidth_checks
from commwatch.diagnosis.check import Check
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.infiniband import infiniband
from commwatch.diagnosis.jobs import jobs_first
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.marks.measures import measures_of
from commwatch.diagnosis.marks.results import gpu_name
from commwatch.diagnosis.pattern import FRESH_PROBE, pattern
from commwatch.diagnosis.profile import SITE_FLOOR, profile_checks
from commwatch.diagnosis.settings import settings
from commwatch.diagnosis.stress import stress
from commwatch.diagnosis.topology import topology_checks
from commwatch.findings.rules.gpu_ways import gpus_of
from commwatch.findings.verdict import Verdict, verdict_of

_WALK: tuple[Callable[[Known], Iterable[Check]], ...] = (
    topology_checks, bandwidth_checks, pattern, infiniband, settings, stress, profile_checks,
)  # fmt: skip
"""The functions that make the checks of each branch, in an expert's order."""


def diagnose(known: Known, scan: Literal["quick", "full"]) -> Diagnosis:
    """All checks, and what they come to."""
    findings = jobs_first(known.findings.findings, known)
    known = replace(known, findings=msgspec.structs.replace(known.findings, findings=findings))
    checks = tuple(check for branch in _WALK for check in branch(known))
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
        gpu_model=gpu_name(known.facts),
        gpus=len(known.facts.derived(gpus_of)),
        closed=known.findings.closed,
    )


def overall(known: Known, checks: Sequence[Check]) -> Verdict:
    """The verdict of every view, unless it is not grave and this command has measured more than the daemon.

    Args:
        known: what the daemon said, with its findings most severe first.
    """
    document = known.findings
    if known.scanned and document.grave:
        # The scan has evaluated by itself: its findings hold, however old the daemon's own evaluation is.
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
        or (check.branch == "profile" and (bool(known.asked.profile) or check.what.startswith(SITE_FLOOR)))
    )


def _check_words(check: Check) -> str:
    where = f" of {check.where}" if check.where else ""
    return f"{check.what}{where}: {check.measured}, required {check.required}"
