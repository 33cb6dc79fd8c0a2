"""The outcome of a cycle, from its ranks' messages and how they ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, cast, get_args

import msgspec

from commwatch.probes.cycle.process import RankProcess
from commwatch.probes.plan import CyclePlan, Failed, Measured, NcclNotes, Skipped, StepOutcome
from commwatch.probes.rank_plan import FailureReason, Phase, RankResult, SkipReason

_TIMEOUTS: dict[Phase, FailureReason] = {
    "start": "start",
    "rendezvous": "rendezvous_timeout",
    "setup": "setup_timeout",
    "measure": "measure_timeout",
}
_LATE: frozenset[FailureReason | SkipReason] = frozenset({*_TIMEOUTS.values(), "stuck"})
"""Outcomes that a lack of CPU or memory can cause. A killed process needs CPU to end: it is treated as stuck, whatever
the outcome is called."""
_LONGEST_WORDS = 1200


class Timeout(NamedTuple):
    """The rank that was furthest behind when a deadline passed."""

    rank: int
    phase: Phase
    gate: int
    """The last gate that it came to."""
    seconds: float
    """The deadline."""


class Problem(NamedTuple):
    """Why there is no result."""

    reason: FailureReason | SkipReason
    words: str
    rank: int | None = None
    phase: Phase | None = None


def stuck_problem(plan: CyclePlan, stuck: Sequence[RankProcess]) -> Problem | None:
    """The problem to report for ranks that hang in the kernel: each with its process and its GPU; None without any."""
    if not stuck:
        return None
    first, *others = stuck
    words = f"process {first.pid} sits in the kernel and was left alone"
    for rank in others:
        words += f"; so does process {rank.pid}, {_named(plan, rank.rank)}"
    return Problem("stuck", words, first.rank, first.phase)


def failure_of(plan: CyclePlan, ranks: Sequence[RankProcess], timeout: Timeout | None) -> Problem | None:
    """The cause among all that went wrong; None for a good cycle.

    When one rank dies, the others report that their peer is gone: a wrong result comes first, then a rank that ended
    without a word, then what ranks reported, then the deadline.
    """
    reported = [(rank, rank.error) for rank in ranks if rank.error is not None]
    for rank, error in reported:
        if error.reason == "wrong_result":
            return Problem(error.reason, error.detail, rank.rank, rank.phase)
    if timeout is None:
        for rank in ranks:
            if rank.error is None and rank.phase != "done" and rank.own_status is not None:
                words = [_how(rank.own_status), rank.last_words()]
                return Problem("crashed", ": ".join(filter(None, words)), rank.rank, rank.phase)
    if reported:
        # NCCL's own errors say more than those of the ranks that only lost their peer.
        rank, error = min(reported, key=lambda one: one[1].reason == "crashed")
        return Problem(error.reason, error.detail, rank.rank, rank.phase)
    if timeout is not None:
        words_on_time = f"not through {_doing(plan, timeout)}within {timeout.seconds:g} s"
        return Problem(_TIMEOUTS.get(timeout.phase, "measure_timeout"), words_on_time, timeout.rank, timeout.phase)
    return _incomplete(plan, ranks)


def on_starved_node(problem: Problem, starved: str) -> Problem:
    """The same problem, unless the node can be to blame for it.

    Args:
        starved: what the node was short of meanwhile, in words; empty where of nothing.
    """
    if not starved or problem.reason not in _LATE:
        return problem
    return problem._replace(reason="starved", words=f"{problem.words}, which is not judged: {starved}")


def _how(status: int) -> str:
    return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"


def _doing(plan: CyclePlan, timeout: Timeout) -> str:
    """The step that a rank was at, in words; empty before the first."""
    if timeout.phase != "measure" or not 0 < timeout.gate <= len(plan.steps):
        return ""
    step = plan.steps[timeout.gate - 1]
    return f"with {step.operation} of {step.size_bytes} bytes (step {timeout.gate} of {len(plan.steps)}) "


def _incomplete(plan: CyclePlan, ranks: Sequence[RankProcess]) -> Problem | None:
    """A rank that gives no time where its clock counts has not measured."""
    for rank in ranks:
        timings = () if rank.result is None else rank.result.timings
        clocks = [number for number, step in enumerate(plan.steps) if plan.number(rank.rank) in step.clocks]
        if len(timings) != len(plan.steps) or not all(timings[number] for number in clocks):
            return Problem("crashed", "its result lacks times", rank.rank, rank.phase)
    return None


def device_of(plan: CyclePlan, rank: int | None) -> str:
    """The GPU of a rank as the plan names it; empty without."""
    return plan.devices[rank % len(plan.devices)] if plan.devices and rank is not None else ""


def _named(plan: CyclePlan, rank: int) -> str:
    device = device_of(plan, rank)
    return f"rank {rank} ({device})" if device else f"rank {rank}"


def failed(
    problem: Problem, plan: CyclePlan, notes: NcclNotes, *, finished_at: float, occupied_seconds: float
) -> Failed | Skipped:
    """A failure, or a skip where the ranks found that they cannot run on this node at all."""
    words = problem.words.strip().partition("\n")[0][:_LONGEST_WORDS]
    if problem.reason in get_args(SkipReason):
        reason = cast("SkipReason", problem.reason)
        return Skipped(finished_at=finished_at, occupied_seconds=occupied_seconds, reason=reason, detail=words)
    from commwatch.probes.cycle.nccl_notes import category_of  # the rules for texts, only where ranks have failed

    category = notes.category or category_of(problem.words)
    where = "" if problem.rank is None else _named(plan, problem.rank)
    where += f" in phase {problem.phase}" if where and problem.phase else ""
    return Failed(
        finished_at=finished_at,
        occupied_seconds=occupied_seconds,
        reason=cast("FailureReason", problem.reason),
        detail=": ".join(filter(None, (where, problem.reason, category, words))),
        phase=problem.phase,
        rank=problem.rank,
        device=device_of(plan, problem.rank),
        nccl=msgspec.structs.replace(notes, category=category),
    )


def measured(
    plan: CyclePlan,
    ranks: Sequence[RankResult],
    notes: NcclNotes,
    *,
    finished_at: float,
    occupied_seconds: float,
    setup_seconds: float,
) -> Measured:
    """The result of a cycle whose ranks all gave theirs, in order of their numbers."""
    # Between nodes the work of others only ever slows a call: the fastest timing says best what the way carries.
    typical: Callable[[Sequence[float]], float] = median if plan.meeting is None else min
    return Measured(
        finished_at=finished_at,
        occupied_seconds=occupied_seconds,
        setup_seconds=setup_seconds,
        outcomes=tuple(
            StepOutcome(
                step=step,
                seconds=tuple(
                    typical(result.timings[number]) if plan.number(rank) in step.clocks else None
                    for rank, result in enumerate(ranks)
                ),
            )
            for number, step in enumerate(plan.steps)
        ),
        torch_version=ranks[0].torch_version,
        nccl_version=ranks[0].nccl_version,
        nccl=notes,
    )
