"""The record of each probe: read from the state directory, and shown on the node's page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from commwatch.config import settings
from commwatch.config.thresholds import Thresholds
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Skipped
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.pair_record import PairHistory, PairRecord
from commwatch.probes.results.record import LatencyCourse, ProbeRecord
from commwatch.state.directory import StateDirectory
from commwatch.units import format_seconds
from commwatch_exporters.snapshot import Layout

_Kind = TypeVar("_Kind", bound=ProbeRecord)


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


class Known(NamedTuple):
    """A probe's state since the start of the daemon."""

    result: CycleResult | None
    """Of the last cycle that ran."""
    skip: Skipped | None
    """Why the last one did not start; None where it did."""
    next_run_at: float | None
    """Seconds since 1970; None where nothing is planned."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The last results of a probe, as they are drawn; more is worse."""

    values: Sequence[float]
    """Oldest first, all in one unit."""
    baseline: float | None
    """The usual value, in the same unit; None if too few results exist."""
    limit: float | None
    """Values above it are marked; None without one."""
    words: str
    """The description of the picture."""


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
    baseline: str = ""
    """The usual value with its units; empty if it is not known."""
    trend: Trend | None = None
    failed: bool = False
    """Whether the last cycle failed; then ``last_result`` has the reason."""


def status_of(name: str, record: ProbeRecord, known: Known, now: float) -> ProbeStatus:
    """A probe for the node's page.

    Args:
        known: of its last turns.
        now: seconds since 1970.
    """
    last, skip, completed = known.result, known.skip, record.history.last_completion_at
    failed = f"failed: {last.reason} ({last.detail})" if isinstance(last, Failed) else ""
    course = record.latency_course()
    return ProbeStatus(
        name=name,
        backend=record.history.backend,
        last_result=failed or record.words(now),
        age_seconds=None if completed is None else max(0.0, now - completed),
        next_run_seconds=None if known.next_run_at is None else max(0.0, known.next_run_at - now),
        skip_reason="" if skip is None else f"{skip.reason}: {skip.detail}",
        baseline="" if course is None else _baseline_words(course),
        trend=None if course is None else _trend(course),
        failed=bool(failed),
    )


def _baseline_words(course: LatencyCourse) -> str:
    usual = "" if course.usual is None else format_seconds(course.usual)
    limit = "" if course.limit is None else f"limit {format_seconds(course.limit)}"
    return ", ".join(part for part in (usual, limit) if part)


def _trend(course: LatencyCourse) -> Trend:
    latest, limit = course.latest, course.limit
    words = f"last {len(latest)} latencies: {format_seconds(min(latest))} to {format_seconds(max(latest))}"
    if limit is not None:
        words += f", {sum(one > limit for one in latest) or 'none'} above the limit"
    return Trend(latest, course.usual, limit, words)
