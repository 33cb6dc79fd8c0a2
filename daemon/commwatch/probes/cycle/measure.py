"""The work of a rank between its phases, for any transport: set up, then time and check each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, Protocol

from commwatch.probes.rank_plan import FailureReason, Phase, Purpose, RankPlan, RankResult, SkipReason, Step

STEADY = 0.02
"""Standard error of the time of a call, as a part of it, below which a step needs no further timing."""

SYNC_CALLS = 1
"""Before the calls of a timing comes one that is not timed: it makes the ranks begin together."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a step is timed: calls to warm up, then timings of ``calls`` calls each, made back to back."""

    warmup: int
    calls: int
    least_timings: int
    """Measurements before which it cannot be answered whether they are steady."""
    most_timings: int


WANTED: dict[Literal["latency", "bandwidth", "work"], Sampling] = {
    # Twenty calls hide the cost of the clock and of the launches.
    "latency": Sampling(warmup=5, calls=20, least_timings=3, most_timings=10),
    "bandwidth": Sampling(warmup=5, calls=5, least_timings=4, most_timings=12),
    "work": Sampling(warmup=5, calls=5, least_timings=4, most_timings=12),
}

SUSTAINED_TIMING_SECONDS = 0.1
SUSTAINED_CALLS_MAX = 20
"""A timing of a sustained step: long beside the launch of its calls, short beside the step."""
_CALLS_BESIDE = 2 * (1 + SYNC_CALLS) + 1
"""Calls of a step that are in no timing: those of the estimate, and the check."""

_WEIGHTS: dict[Purpose, float] = {"latency": 1.0, "bandwidth": 3.0, "work": 3.0, "sustained": 3.0}
"""A small call takes microseconds: its steps need a smaller share of the time."""


def step_seconds(steps: Sequence[Step], timed_seconds: float) -> tuple[float, ...]:
    """Seconds for each step so that no rank is busy for more than ``timed_seconds``.

    A step gets the share that its busiest member can give it, so all of its members compute with the same number.
    """
    loads: dict[int, float] = {}
    for step in steps:
        for rank in step.members:
            loads[rank] = loads.get(rank, 0.0) + _WEIGHTS[step.purpose]
    return tuple(timed_seconds * _WEIGHTS[one.purpose] / max(loads[rank] for rank in one.members) for one in steps)


def affordable(wanted: Sampling, call_seconds: float, budget_seconds: float) -> Sampling:
    """Cut a sampling down to what fits into the budget.

    Timings above the least number go first, then the warm-up, then calls of a timing, then timings; none at all may be
    left, and then the estimate is the step's result: without it a slow path would have none.

    Args:
        wanted: the sampling without any limit.
        call_seconds: what one call cost before, with its launch.
        budget_seconds: time that all calls together may take, seconds.
    """
    if call_seconds <= 0:
        return wanted
    left = int(budget_seconds / call_seconds)
    calls = _between(1, left // wanted.least_timings - SYNC_CALLS, wanted.calls)
    of_timing = calls + SYNC_CALLS
    beside_warmup = (left - wanted.warmup - SYNC_CALLS) // of_timing
    without_warmup = min(left // of_timing, wanted.least_timings)
    timings = _between(0, max(beside_warmup, without_warmup), wanted.most_timings)
    warmup = _between(0, left - timings * of_timing - SYNC_CALLS, wanted.warmup)
    return Sampling(warmup, calls, wanted.least_timings, timings)


def filling(call_seconds: float, budget_seconds: float) -> Sampling:
    """Back to back until the budget is used up, however steady the timings are; one timing at least.

    Args:
        call_seconds: what one call cost before, with its launch.
        budget_seconds: time that all calls together may take, seconds.
    """
    if call_seconds <= 0:
        return Sampling(0, SUSTAINED_CALLS_MAX, 1, 1)
    left = int(budget_seconds / call_seconds) - _CALLS_BESIDE
    calls = _between(1, int(SUSTAINED_TIMING_SECONDS / call_seconds), SUSTAINED_CALLS_MAX)
    timings = max(1, left // (calls + SYNC_CALLS))
    return Sampling(0, calls, timings, timings)


def relative_error(timings: Sequence[float]) -> float:
    """Standard error of the mean of timings, as a part of the mean; infinite below two of them."""
    if len(timings) < 2:
        return math.inf
    mean = fmean(timings)
    return stdev(timings) / math.sqrt(len(timings)) / mean if mean > 0 else 0.0


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


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

    def first_call(self) -> None:
        """Make groups and buffers, and the first call on each group, which connects the ranks."""

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
    group.first_call()
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
    return RankResult(timings=tuple(timings), torch_version=group.torch_version, nccl_version=group.nccl_version)


def describe(step: Step, rank: int) -> str:
    """A description of the data that a rank receives in a step: operation, size, and source."""
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
