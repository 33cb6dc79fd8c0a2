"""The record of each probe: read from the state directory, and shown on the node's page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from commwatch.config import settings
from commwatch.config.thresholds import Thresholds
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Skipped
from commwatch.probes.rank_plan import SkipReason
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.pair_record import PairHistory, PairRecord
from commwatch.probes.results.record import LatencyCourse, ProbeRecord
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Layout

_Kind = TypeVar("_Kind", bound=ProbeRecord)

_OF_USERS: Final[Mapping[SkipReason, str]] = {
    "gpu_busy": "a GPU is in use; the daemon's log says which",
    "scheduler_busy": "its scheduler does not have the node as free; the daemon's log says why",
}
"""Words instead of details that name processes, jobs or pods: everyone who reaches the endpoint reads them."""


def load_record(state: StateDirectory, plan: CyclePlan, probe: settings.Probe, thresholds: Thresholds) -> ProbeRecord:
    """The record of a probe, with what an earlier daemon knew."""
    name = f"probe-{plan.probe}"
    if plan.measure == "pairs":
        return state.restore(name, PairHistory, lambda history: _shown(PairRecord(plan, probe, thresholds, history)))
    return state.restore(name, ProbeHistory, lambda history: _shown(ProbeRecord(plan, probe, thresholds, history)))


def _shown(record: _Kind) -> _Kind:
    """A record that can be shown.

    Raises:
        ValueError: it cannot.
    """
    now = time.time()
    Layout((metric, labels) for metric, labels, _ in record.readings(now))
    record.words(now)
    record.latency_course()
    return record


def broken_off(error: Exception, now: float, occupied_seconds: float = 0.0) -> Failed:
    """The outcome of a cycle that commwatch itself could not complete.

    Args:
        now: seconds since 1970.
        occupied_seconds: for which ranks may have held their GPUs.
    """
    detail = f"{type(error).__name__}: {error}"
    return Failed(finished_at=now, occupied_seconds=occupied_seconds, reason="internal", detail=detail)


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """A probe's last result and its next run."""

    name: str
    backend: str
    last_result: str = ""
    """With its units; empty where there is none."""
    age_seconds: float | None = None
    """Since the last result."""
    next_run_seconds: float | None = None
    """Until the next run."""
    skip_reason: str = ""
    """Why the last run did not take place; empty if it did."""
    latencies: LatencyCourse | None = None
    """The last ones; None without any."""
    failed: bool = False
    """Whether the last cycle failed; then ``last_result`` has the reason."""


def status_of(
    name: str,
    record: ProbeRecord,
    now: float,
    *,
    result: CycleResult | None,
    skip: Skipped | None,
    next_run_at: float | None,
) -> ProbeStatus:
    """A probe for the node's page.

    Args:
        now: seconds since 1970, as all times.
        result: of the last cycle that ran.
        skip: why the last one did not start; None where it did.
        next_run_at: None where nothing is planned.
    """
    completed = record.history.last_completion_at
    failed = f"failed: {result.reason} ({result.detail})" if isinstance(result, Failed) else ""
    return ProbeStatus(
        name=name,
        backend=record.history.backend,
        last_result=failed or record.words(now),
        age_seconds=None if completed is None else max(0.0, now - completed),
        next_run_seconds=None if next_run_at is None else max(0.0, next_run_at - now),
        skip_reason="" if skip is None else f"{skip.reason}: {_OF_USERS.get(skip.reason, skip.detail)}",
        latencies=record.latency_course(),
        failed=bool(failed),
    )
