"""From the times of a cycle to bandwidths, balance and scaling; for all measures but pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commwatch.probes.plan import Measure, Measured, StepOutcome
from commwatch.probes.rank_plan import Operation, Step
from commwatch.probes.results.bus_bandwidth import (
    Balance,
    algorithm_bandwidth,
    balance_of,
    bus_bandwidth,
    scaling_points,
)
from commwatch.probes.results.expected import Expected
from commwatch.probes.results.history import CopyRate, GpuName, ScalingRate

_COPIES: tuple[Operation, ...] = ("host_to_device", "device_to_host")


@dataclass(frozen=True, slots=True)
class Rate:
    """The bandwidth of one step, by its slowest rank."""

    step: Step
    seconds: float
    """Of one call."""
    expected: Expected | None

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes per second."""
        return algorithm_bandwidth(self.step.size_bytes, self.seconds)

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second."""
        return bus_bandwidth(self.step.operation, len(self.step.members), self.step.size_bytes, self.seconds)

    @property
    def utilization(self) -> float | None:
        """Over the expected bandwidth; None where nothing is expected."""
        return None if self.expected is None else self.bus_bandwidth / self.expected.bytes_per_second


def rates_of(measured: Measured, expected: Mapping[int, Expected]) -> tuple[Rate, ...]:
    """The bandwidths of a cycle, one for each of its steps for bandwidth; none of pairs.

    Args:
        expected: by place of the step in the plan.
    """
    return tuple(
        Rate(one.step, one.slowest_seconds, expected.get(place))
        for place, one in enumerate(measured.outcomes)
        if one.step.purpose == "bandwidth" and not one.step.pairs
    )


def course_of(step: Step, gpus: Sequence[GpuName]) -> str:
    """Name of what the time of a step is compared with from cycle to cycle.

    Args:
        gpus: by rank; empty without GPUs.
    """
    if step.operation in _COPIES:
        return f"{step.operation} {name_of(step.members[0], gpus).pci_bus_id or step.members[0]}"
    return f"{step.operation} {len(step.members)}"


def name_of(rank: int, gpus: Sequence[GpuName]) -> GpuName:
    """Label values of the GPU of a rank; a rank without GPU has its number and no address."""
    return gpus[rank % len(gpus)] if gpus else GpuName(str(rank), "")


def leading(measure: Measure, rates: Sequence[Rate]) -> Rate | None:
    """The bandwidth that represents the whole probe; None without any.

    For scaling the one over all ranks. For copies the one furthest below its expectation, or the slowest if not every
    copy has one.
    """
    if not rates:
        return None
    if measure == "scaling":
        return max(rates, key=lambda rate: len(rate.step.members))
    shares = [rate.utilization for rate in rates]
    known = [share for share in shares if share is not None]
    if len(known) == len(shares):
        return rates[shares.index(min(known))]
    return min(rates, key=lambda rate: rate.bus_bandwidth)


def copies_of(rates: Sequence[Rate], gpus: Sequence[GpuName]) -> tuple[CopyRate, ...]:
    """The copies between GPUs and host; empty for other measures."""
    return tuple(
        CopyRate(
            name_of(rate.step.members[0], gpus),
            rate.step.operation,
            rate.bus_bandwidth,
            None if rate.expected is None else rate.expected.bytes_per_second,
        )
        for rate in rates
        if rate.step.operation in _COPIES
    )


def scaling_of(size_bytes: int, rates: Sequence[Rate]) -> tuple[ScalingRate, ...]:
    """The points of a scaling cycle, each an all_reduce of a size in bytes, by number of ranks."""
    points = scaling_points(size_bytes, {len(rate.step.members): rate.seconds for rate in rates})
    return tuple(ScalingRate(point.ranks, point.bus_bandwidth, point.break_even_seconds) for point in points)


def balance_of_ranks(measured: Measured) -> Balance | None:
    """How even the ranks are: in the widest step, for bandwidth where there is one; of copies over all of a GPU's.

    None for pairs, whose two ends are no peers, and where fewer than two ranks were timed.
    """
    outcomes = [outcome for outcome in measured.outcomes if not outcome.step.pairs]
    copies = [outcome for outcome in outcomes if outcome.step.operation in _COPIES]
    if copies:
        return balance_of(_sums(copies))
    if not outcomes:
        return None
    widest = max(outcomes, key=lambda one: (len(one.step.members), one.step.purpose == "bandwidth"))
    return balance_of(widest.seconds)


def _sums(outcomes: Sequence[StepOutcome]) -> list[float | None]:
    """Seconds by rank, all its steps together; None for a rank without any."""
    sums: list[float | None] = [None] * max(len(outcome.seconds) for outcome in outcomes)
    for outcome in outcomes:
        for rank, seconds in enumerate(outcome.seconds):
            if seconds is not None:
                sums[rank] = (sums[rank] or 0.0) + seconds
    return sums
