"""The record of each probe: read from the state directory, fed with outcomes, and shown in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from commwatch.config import settings
from commwatch.config.simulated import node_name
from commwatch.config.thresholds import Thresholds
from commwatch.node.topology.elements import ways_of
from commwatch.node.topology.ways import Parts
from commwatch.probes.node import Prospect
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Skipped
from commwatch.probes.results.expected import Expected, expected_of_pair
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.pair_record import (
    PairHistory,
    PairRecord,
    PairSurroundings,
    endpoints_of_gpus,
    endpoints_of_ranks,
    labels_of,
)
from commwatch.probes.results.record import LatencyCourse, ProbeRecord
from commwatch.probes.results.streak import is_current
from commwatch.state.directory import StateDirectory
from commwatch.units import format_percent, format_rate, format_seconds
from commwatch_exporters.node_page.records import ProbeStatus, Trend
from commwatch_exporters.snapshot import Layout

_MOST_SUSPECTS = 2
AnyRecord: TypeAlias = ProbeRecord | PairRecord
_Kind = TypeVar("_Kind", ProbeRecord, PairRecord)


def load_record(state: StateDirectory, plan: CyclePlan, probe: settings.Probe, thresholds: Thresholds) -> AnyRecord:
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
    last_words(record, now)
    record.latency_course()
    return record


def take_outcome(
    record: AnyRecord, result: CycleResult, prospect: Prospect, probe: settings.Probe, now: float
) -> None:  # fmt: skip
    """Judge the outcome of a cycle.

    Args:
        record: of the probe.
        result: of the cycle.
        prospect: the cycle as it was planned.
        probe: its configuration.
        now: seconds since 1970.
    """
    if isinstance(record, PairRecord):
        record.apply_pairs(result, surroundings(prospect, probe), now)
    else:
        paths = prospect.paths
        gpu_model = "" if paths is None else paths.common_name(range(prospect.plan.ranks))
        record.apply(result, prospect.expected(probe), prospect.names, now, paths, gpu_model=gpu_model)


def surroundings(prospect: Prospect, probe: settings.Probe) -> PairSurroundings:
    """The ends of the pairs of a cycle, and what lies between them."""
    plan, paths, topology = prospect.plan, prospect.paths, prospect.topology
    on_gpus = bool(prospect.gpus) and not plan.shares_gpus
    names = tuple(f"GPU{gpu.index}" for gpu in prospect.gpus)
    return PairSurroundings(
        endpoints=endpoints_of_gpus(prospect.gpus) if on_gpus else endpoints_of_ranks(plan.ranks),
        labels=labels_of(paths) if on_gpus else {},
        expected=_expected(prospect, probe),
        parts=None if topology is None or paths is None or not on_gpus else Parts(ways_of(topology, paths), names),
        simulated_node="" if plan.simulation is None else node_name(plan.simulation.preset),
    )


def _expected(prospect: Prospect, probe: settings.Probe) -> Mapping[tuple[int, int], Expected]:
    plan, paths = prospect.plan, prospect.paths
    pairs = {pair for step in plan.steps for pair in step.pairs}
    found = {
        pair: expected_of_pair(
            pair, plan.bandwidth_bytes, paths, configured=probe.expected_bandwidth, backend=plan.backend
        )
        for pair in pairs
    }
    return {pair: one for pair, one in found.items() if one is not None}


def broken_off(error: Exception, now: float, occupied_seconds: float = 0.0) -> Failed:
    """The outcome of a cycle that commwatch itself could not go through with.

    Args:
        error: that ended it.
        now: seconds since 1970.
        occupied_seconds: for which ranks may have held their GPUs.
    """
    detail = f"{type(error).__name__}: {error}"
    return Failed(finished_at=now, occupied_seconds=occupied_seconds, reason="internal", detail=detail)


class Known(NamedTuple):
    """What is known of a probe since the start of the daemon."""

    result: CycleResult | None
    """Of the last cycle that ran."""
    skip: Skipped | None
    """Why the last one did not start; None where it did."""
    next_run_at: float | None
    """Seconds since 1970; None where nothing is planned."""


def status_of(name: str, record: AnyRecord, known: Known, now: float) -> ProbeStatus:
    """A probe for the node's page.

    Args:
        name: of the probe.
        record: of the probe.
        known: of its last turns.
        now: seconds since 1970.
    """
    last, skip, completed = known.result, known.skip, record.history.last_completion_at
    failed = f"failed: {last.reason} ({last.detail})" if isinstance(last, Failed) else ""
    course = record.latency_course()
    return ProbeStatus(
        name=name,
        backend=record.history.backend,
        last_result=failed or last_words(record, now),
        age_seconds=None if completed is None else max(0.0, now - completed),
        next_run_seconds=None if known.next_run_at is None else max(0.0, known.next_run_at - now),
        skip_reason="" if skip is None else f"{skip.reason}: {skip.detail}",
        baseline="" if course is None else _baseline_words(course),
        trend=None if course is None else _trend(course),
        failed=bool(failed),
    )


def _baseline_words(course: LatencyCourse) -> str:
    usual = "" if course.usual is None else format_seconds(course.usual)
    limit = "" if course.limit is None else f"spike above {format_seconds(course.limit)}"
    return ", ".join(part for part in (usual, limit) if part)


def _trend(course: LatencyCourse) -> Trend:
    latest, limit = course.latest, course.limit
    words = f"last {len(latest)} latencies: {format_seconds(min(latest))} to {format_seconds(max(latest))}"
    if limit is not None:
        words += f", {sum(one > limit for one in latest) or 'none'} above the limit"
    return Trend(latest, course.usual, limit, words)


def last_words(record: AnyRecord, now: float) -> str:
    """The last result in a line; empty without a current one.

    Args:
        record: of the probe.
        now: seconds since 1970.
    """
    if isinstance(record, PairRecord):
        return _pairs(record, now)
    last = record.history.last
    if last is None or not is_current(last.finished_at, record.interval, now):
        return ""
    parts = [] if last.latency_seconds is None else [f"latency {format_seconds(last.latency_seconds)}"]
    if last.scaling:
        parts += [f"{one.ranks} GPUs {format_rate(one.bus_bandwidth)}" for one in last.scaling]
    elif last.copies:
        slowest = min(last.copies, key=lambda one: one.bytes_per_second)
        way = slowest.direction.replace("_", " ")
        parts.append(f"slowest GPU {slowest.gpu.gpu} {way}: {format_rate(slowest.bytes_per_second)}")
    elif last.bus_bandwidth is not None:
        parts.append(f"bus bandwidth {format_rate(last.bus_bandwidth)}")
    if last.expected is not None and last.utilization is not None:
        of = f"{format_rate(last.expected.bytes_per_second)} ({last.expected.source})"
        parts.append(f"{format_percent(last.utilization)} of {of}")
    return ", ".join(parts)


def _pairs(record: PairRecord, now: float) -> str:
    matrix = record.last_matrix
    if matrix is None or not is_current(matrix.taken_at, record.interval, now):
        return ""
    cells = [cell for cell in matrix.cells if cell.bandwidth is not None]
    if not cells:
        return ""
    rates = sorted(cells, key=lambda cell: cell.bandwidth or 0.0)
    worst, best = rates[0], rates[-1]
    ends = f"{matrix.endpoints[worst.source].label} to {matrix.endpoints[worst.destination].label}"
    span = f"{format_rate(worst.bandwidth or 0.0)} ({ends}) to {format_rate(best.bandwidth or 0.0)}"
    suspects = [one.words.partition(": ")[0] for one in record.suspects(now)]  # the sentence names the part first
    return "; suspect: ".join([span, *suspects[:_MOST_SUSPECTS]])
