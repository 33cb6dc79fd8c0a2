"""What a rank does between its phases, whatever carries the collective: set up, check the sums, time the calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from commwatch.probes.plan import FailureReason, Phase, RankPlan, RankResult, SkipReason
from commwatch.probes.sampling import BANDWIDTH, LATENCY, LATENCY_SHARE, Sampling, affordable


class RankError(Exception):
    """The rank cannot go on, for a reason that is known."""

    def __init__(self, reason: FailureReason | SkipReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: FailureReason | SkipReason = reason
        self.detail = detail


class Group(Protocol):
    """The ranks of one cycle, as one of them sees them."""

    torch_version: str
    nccl_version: str

    def rendezvous(self) -> None:
        """Find the other ranks."""

    def first_call(self) -> float:
        """Make the buffers and the first small call, which connects the ranks; seconds of that call."""

    def time_calls(self, size_bytes: int, calls: int) -> float:
        """Seconds of one in-place call, from ``calls`` of them back to back: their mean, or their median."""

    def slowest(self, seconds: float) -> float:
        """The largest of the numbers that the ranks give."""

    def exact(self, size_bytes: int) -> bool:
        """Fill with numbers that depend on rank and place, sum them, and compare every element bit by bit."""

    def close(self) -> None:
        """Leave the other ranks in order."""

    def abort(self) -> None:
        """Leave at once, from another thread and while a call is in flight."""


def measure(plan: RankPlan, group: Group, enter: Callable[[Phase], None]) -> RankResult:
    """Go through the phases after ``start``.

    Args:
        plan: what to measure.
        group: the ranks; not yet met.
        enter: told of each phase as it begins.

    Raises:
        RankError: a sum was not exact.
    """
    enter("rendezvous")
    group.rendezvous()
    enter("setup")
    first_call_seconds = group.first_call()
    enter("measure")
    latency_budget = plan.timed_seconds * LATENCY_SHARE
    latency = _timings(group, plan.latency_bytes, LATENCY, latency_budget)
    _check(group, plan, plan.latency_bytes)
    bandwidth = _timings(group, plan.bandwidth_bytes, BANDWIDTH, plan.timed_seconds - latency_budget)
    _check(group, plan, plan.bandwidth_bytes)
    return RankResult(
        latency_seconds=latency,
        bandwidth_seconds=bandwidth,
        first_call_seconds=first_call_seconds,
        torch_version=group.torch_version,
        nccl_version=group.nccl_version,
    )


def _timings(group: Group, size_bytes: int, wanted: Sampling, budget_seconds: float) -> tuple[float, ...]:
    # The first call of a size may choose another algorithm and connect for it: the second one is the estimate.
    group.time_calls(size_bytes, 1)
    # All ranks must make the same number of calls, so they agree on the estimate.
    estimate = group.slowest(group.time_calls(size_bytes, 1))
    sampling = affordable(wanted, estimate, budget_seconds)
    if sampling.warmup:
        group.time_calls(size_bytes, sampling.warmup)
    timings = []
    for _ in range(sampling.timings):
        group.time_calls(size_bytes, 1)  # makes the ranks begin together
        timings.append(group.time_calls(size_bytes, sampling.calls))
    return tuple(timings)


def _check(group: Group, plan: RankPlan, size_bytes: int) -> None:
    if not group.exact(size_bytes):
        what = f"{plan.collective} of {size_bytes} bytes over {plan.ranks} ranks"
        raise RankError("wrong_result", f"{what} gave a sum that is not exact")
