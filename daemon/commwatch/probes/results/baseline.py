"""The baseline of a probe: what its own good results have been, and what stands out from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Baseline:
    """Median and median absolute deviation of good times, seconds."""

    median: float
    deviation: float


@dataclass(frozen=True, slots=True)
class SpikeRule:
    """When a latency is a spike."""

    deviations: float
    """Above the median by more than so many median absolute deviations, and"""
    ratio: float
    """above so many times the median; the larger of both counts."""
    absolute_seconds: float | None
    """A limit that needs no baseline; None without one."""


def baseline_of(times: Sequence[float], fewest: int) -> Baseline | None:
    """Baseline of good times, seconds; None where there are fewer than ``fewest``."""
    if len(times) < fewest:
        return None
    middle = median(times)
    return Baseline(middle, median(abs(one - middle) for one in times))


def held_to(baseline: Baseline | None, reference: Baseline | None, most: float) -> Baseline | None:
    """The baseline to judge by: it follows what became faster or quieter, and no slow decline.

    Args:
        baseline: of the latest good results; None where there are too few.
        reference: of the first ones under the same conditions; None while they are gathered.
        most: neither median nor deviation may be above so many times that of the reference.
    """
    if baseline is None or reference is None:
        return baseline
    return Baseline(min(baseline.median, most * reference.median), min(baseline.deviation, most * reference.deviation))


def spike_limit(baseline: Baseline | None, rule: SpikeRule) -> float | None:
    """Above which a latency is a spike, seconds: the baseline's limit or the absolute one, the lower of both."""
    limits = [] if rule.absolute_seconds is None else [rule.absolute_seconds]
    if baseline is not None:
        limits.append(max(baseline.median + rule.deviations * baseline.deviation, rule.ratio * baseline.median))
    return min(limits, default=None)


def is_spike(latency: float, baseline: Baseline | None, rule: SpikeRule) -> bool:
    """Whether a latency is above the limit."""
    limit = spike_limit(baseline, rule)
    return limit is not None and latency > limit
