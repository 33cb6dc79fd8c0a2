"""What a rank does between its phases, whatever carries the calls: set up, then time and check step after step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from commwatch.probes.cycle.sampling import (
    STEADY,
    SYNC_CALLS,
    WANTED,
    affordable,
    filling,
    relative_error,
    step_seconds,
)
from commwatch.probes.rank_plan import FailureReason, Phase, RankPlan, RankResult, SkipReason, Step


class RankError(Exception):
    """The rank cannot go on, for a reason that is known."""

    def __init__(self, reason: FailureReason | SkipReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: FailureReason | SkipReason = reason
        self.detail = detail


def in_short(message: str) -> str:
    """The first line of an error of torch, and what NCCL said last, which torch puts some lines below."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    last = lines[lines.index("Last error:") + 1 :] if "Last error:" in lines else []
    return "; ".join(lines[:1] + last[:1])


class Group(Protocol):
    """The ranks of one cycle, as one of them sees them."""

    torch_version: str
    nccl_version: str

    def rendezvous(self) -> None:
        """Find the other ranks; no GPU is touched."""

    def first_call(self) -> float:
        """Make groups and buffers, and the first call on each group, which connects the ranks; seconds."""

    def time_calls(self, step: Step, calls: int) -> float:
        """Seconds of one call on this rank, from ``calls`` of them back to back: their mean, or their median.

        One call that is not timed goes before them. A call of send_recv for latency is half a round trip.
        """

    def clock(self) -> float:
        """Seconds, rising: what calls cost this rank is taken from it, launches included; not what is measured."""

    def slowest(self, step: Step, seconds: float) -> float:
        """The largest of the numbers of those ranks that must make the same number of calls of this step."""

    def exact(self, step: Step) -> bool:
        """Whether what arrives here with one more call is right, bit by bit, and nothing came with the timed ones."""

    def close(self) -> None:
        """Leave the other ranks in order."""

    def abort(self) -> None:
        """Leave at once, from another thread and while a call is in flight."""


def measure(plan: RankPlan, group: Group, enter: Callable[[Phase], None], gate: Callable[[int], None]) -> RankResult:
    """Go through the phases after ``start``.

    Args:
        plan: what to measure.
        group: the ranks; not yet met.
        enter: called with each phase as it begins.
        gate: returns when the rank may go on; 0 before a GPU is touched, k + 1 before step k.

    Raises:
        RankError: what arrived was not what was sent, or summed.
    """
    enter("rendezvous")
    group.rendezvous()
    gate(0)
    enter("setup")
    first_call_seconds = group.first_call()
    enter("measure")
    timings: list[tuple[float, ...]] = []
    budgets = step_seconds(plan.steps, plan.timed_seconds)
    for number, (step, budget) in enumerate(zip(plan.steps, budgets, strict=True), start=1):
        gate(number)
        if plan.rank not in step.members:
            timings.append(())
            continue
        timings.append(_timings(group, step, budget))
        if not group.exact(step):
            raise RankError("wrong_result", f"{describe(step, plan.rank)}: not, bit by bit, what it had to be")
    if plan.meeting is not None:
        # Its parent does not know when the rank of the other node is through, and lets this one leave.
        group.slowest(plan.steps[-1], 0.0)
    return RankResult(
        timings=tuple(timings),
        first_call_seconds=first_call_seconds,
        torch_version=group.torch_version,
        nccl_version=group.nccl_version,
    )


def describe(step: Step, rank: int) -> str:
    """What a rank receives in a step, in words: operation, size, and from whom."""
    what = f"{step.operation} of {step.size_bytes} bytes"
    if not step.pairs:
        return f"{what} over {len(step.members)} ranks" if len(step.members) > 1 else f"{what} on rank {rank}"
    source = next(one if two == rank else two for one, two in step.pairs if rank in (one, two))
    both = ", both ways at once" if step.both_ways else ""
    return f"{what} from rank {source} to rank {rank}{both}"


def _timings(group: Group, step: Step, budget_seconds: float) -> tuple[float, ...]:
    # The first call of a step may choose another algorithm and connect for it: the second one is the estimate.
    group.time_calls(step, 1)
    started = group.clock()
    estimate = group.time_calls(step, 1)
    cost = (group.clock() - started) / (1 + SYNC_CALLS)
    # All ranks must make the same number of calls, so they agree on the cost, and on whether to go on.
    cost = group.slowest(step, cost)
    if step.purpose == "sustained":
        sampling = filling(cost, budget_seconds)
    else:
        sampling = affordable(WANTED[step.purpose], cost, budget_seconds)
    if sampling.warmup:
        group.time_calls(step, sampling.warmup)
    timings: list[float] = []
    while len(timings) < sampling.most_timings:
        timings.append(group.time_calls(step, sampling.calls))
        if len(timings) >= sampling.least_timings and group.slowest(step, relative_error(timings)) < STEADY:
            break
    return tuple(timings) or (estimate,)
