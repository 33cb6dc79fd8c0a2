"""Runs a stress: one collective over all GPUs repeatedly for a time, with periodic snapshots of the daemon."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec

from commwatch.config.settings import Config, Probe, Size
from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.known import Stress
from commwatch.diagnosis.stress import rises_between
from commwatch.errors import CommwatchError, UsageError
from commwatch.findings.api_documents import SnapshotDocument
from commwatch.findings.facts import Facts
from commwatch.findings.history import CounterHistory
from commwatch.findings.rules import pcie
from commwatch.findings.rules.gpu import SLOWDOWNS
from commwatch.probes.by_hand.cycles import run_cycles
from commwatch.probes.plan import CyclePlan, Measured
from commwatch.probes.rank_plan import Step
from commwatch.state.answer import document_of
from commwatch.state.client import ask_daemon
from commwatch.state.directory import state_path
from commwatch.units import parse_duration
from commwatch_exporters.node.model import Gpu

NAME = "stress"
"""Of the probe that it runs as; the daemon never sees a result of it."""
LONGEST_SECONDS = 600.0
SHORTEST_SECONDS = 1.0
STRESS_BYTES = 256 * 2**20
"""Of one call: large beside any latency, small beside the memory of a GPU."""
SLICE_SECONDS = 2.0
"""Between two checks of the node: a starting job has the GPUs back within a slice."""
FEWEST_SLICES = 9
"""Three in each third."""

SAMPLE_SECONDS = 2.0
_ANSWER_SECONDS = 1.0
_PATIENT_SECONDS = 10.0
"""Deadline for the snapshots before and after, without which half of the result is missing."""
SETTLED_SECONDS = 11.0
"""The daemon reads clocks and links every 10 s: earlier values may be of the idle GPU."""


def stress_seconds(text: str | None) -> float | None:
    """The seconds of ``30s``; None for None.

    Raises:
        UsageError: it is no duration, or outside the bounds.
    """
    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--stress {text}: {error}") from None
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise UsageError(f"--stress {text}: expected {SHORTEST_SECONDS:g}s to {LONGEST_SECONDS / 60:g}m")
    return seconds


def run_stress(
    config: Config, thresholds: Thresholds, seconds: float, *, gpus: Sequence[int], ignore_scheduler: bool
) -> Stress:
    """Load the GPUs for a time, if the node is free.

    Args:
        gpus: NVML indexes; empty: all.
        ignore_scheduler: the operator says that the node is theirs.

    Raises:
        CommwatchError: the driver cannot be read, or the command was interrupted.
    """
    before = _snapshot_or_none(config, _PATIENT_SECONDS)
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as beside:
        sampled = beside.submit(samples_until, is_over, config, thresholds)
        try:
            [answer] = run_cycles(
                config,
                {NAME: Probe(bandwidth_bytes=Size(STRESS_BYTES))},
                gpus=gpus,
                ignore_scheduler=ignore_scheduler,
                shaped=partial(sustained, seconds=seconds),
            )
        finally:
            is_over.set()
    during = under_load(sampled.result(), answer.result.finished_at, seconds)
    measured = isinstance(answer.result, Measured)
    held, slow_links = limits_in(during) if measured else ({}, ())
    after = _snapshot_or_none(config, _PATIENT_SECONDS)
    rises = rises_between(before.node, after.node) if before and after and measured else None
    return Stress(seconds, answer, rises, len(during), held, slow_links)


def sustained(plan: CyclePlan, seconds: float) -> CyclePlan:
    """A collective's plan as a stress run: equal slices, each as long as it may be, one after another.

    Args:
        plan: of a collective; with gloo there is no GPU to load, and no step.
        seconds: of all slices together.
    """
    large = [step for step in plan.steps if step.purpose == "bandwidth" and plan.backend != "gloo"]
    slices = max(FEWEST_SLICES, math.ceil(seconds / SLICE_SECONDS))
    steps: tuple[Step, ...] = tuple(replace(step, purpose="sustained") for step in large) * slices
    deadlines = msgspec.structs.replace(plan.deadlines, measure=seconds + plan.deadlines.measure)
    return msgspec.structs.replace(plan, steps=steps, timed_seconds=seconds, deadlines=deadlines)


class Sample(NamedTuple):
    """The daemon's readings of clocks and links at one moment."""

    time: float
    """Seconds since 1970."""
    held: frozenset[tuple[str, str]]
    """GPUs whose clocks were limited, with the reasons."""
    slow_links: frozenset[str]
    """Below their generation."""


def sample_of(snapshot: SnapshotDocument, thresholds: Thresholds) -> Sample:
    """By the rules of the findings, except that the GPU is known to be busy."""
    facts = Facts(snapshot.node, CounterHistory({}), snapshot.time)
    held = frozenset(
        (f"GPU{gpu.index}", SLOWDOWNS[reason])
        for gpu, reason, flag in facts.each_keyed(Gpu.clocks_event_reasons)
        if flag == 1 and reason in SLOWDOWNS
    )
    return Sample(snapshot.time, held, frozenset(one.component.name for one in pcie.slow(facts, thresholds)))


def under_load(samples: Sequence[Sample], ended: float, seconds: float) -> list[Sample]:
    """The snapshots whose values were read while the load ran.

    Args:
        samples: all that were taken.
        ended: when the ranks were through, seconds since 1970.
        seconds: for which they had worked.
    """
    return [one for one in samples if ended - seconds + SETTLED_SECONDS <= one.time <= ended]


def _snapshot_or_none(config: Config, seconds: float) -> SnapshotDocument | None:
    """None where the daemon does not answer: a scan of minutes is not lost for it, and what is missing is reported."""
    try:
        return document_of(ask_daemon(state_path(config), "snapshot", seconds), SnapshotDocument)
    except CommwatchError:
        return None


def samples_until(is_over: threading.Event, config: Config, thresholds: Thresholds) -> list[Sample]:
    """Ask the daemon while the ranks work, the first time after a while; without an answer there is a sample less."""
    samples = []
    while not is_over.wait(SAMPLE_SECONDS):
        snapshot = _snapshot_or_none(config, _ANSWER_SECONDS)
        if snapshot is not None:
            samples.append(sample_of(snapshot, thresholds))
    return samples


def limits_in(samples: Sequence[Sample]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """By GPU the reasons that limited its clocks, and the links that were below their generation, in any of these
    snapshots."""
    held: dict[str, set[str]] = {}
    for gpu, reason in (one for sample in samples for one in sample.held):
        held.setdefault(gpu, set()).add(reason)
    slow = {link for sample in samples for link in sample.slow_links}
    return {name: tuple(sorted(reasons)) for name, reasons in held.items()}, tuple(sorted(slow))
