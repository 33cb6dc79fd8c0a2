"""The baseline of a probe: what its own good results have been, and what stands out from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import msgspec

from commwatch.state.records import Seconds


@dataclass(frozen=True, slots=True)
class Baseline:
    """Median and median absolute deviation of good times, seconds."""

    median: Seconds
    deviation: Seconds
    width: Annotated[float, msgspec.Meta(ge=1, le=1e3)] = 1.0
    """Times the distance from the median to the limit of a spike: above 1 where the results are few."""


@dataclass(frozen=True, slots=True)
class SpikeRule:
    """When a latency is a spike."""

    deviations: float
    """Above the median by more than so many median absolute deviations, and"""
    ratio: float
    """above so many times the median; the larger of both counts."""
    absolute_seconds: float | None
    """A limit that needs no baseline; None without one."""


def baseline_of(times: Sequence[float], fewest: int, first: int | None = None) -> Baseline | None:
    """Baseline of good times, seconds.

    The error of a median falls with the root of the number of results: with n of the ``fewest`` the limit is
    sqrt(fewest / n) times as far away.

    Args:
        times: of good results.
        fewest: for a baseline of full worth.
        first: for one with a wider limit; None: no less than ``fewest``.

    Returns:
        None where there are too few.
    """
    if not times or len(times) < (fewest if first is None else min(first, fewest)):
        return None
    middle = median(times)
    width = math.sqrt(max(fewest / len(times), 1.0))
    return Baseline(middle, median(abs(one - middle) for one in times), width)


def held_to(baseline: Baseline | None, reference: Baseline | None, most: float) -> Baseline | None:
    """The baseline to judge by: it follows what became faster or quieter, and no slow decline.

    Args:
        baseline: of the latest good results; None where there are too few.
        reference: of the first ones under the same conditions; None while they are gathered.
        most: neither median nor deviation may be above so many times that of the reference.
    """
    if baseline is None or reference is None:
        return baseline
    middle = min(baseline.median, most * reference.median)
    return Baseline(middle, min(baseline.deviation, most * reference.deviation), baseline.width)


def spike_limit(baseline: Baseline | None, rule: SpikeRule) -> float | None:
    """Above which a latency is a spike, seconds: the baseline's limit or the absolute one, the lower of both."""
    limits = [] if rule.absolute_seconds is None else [rule.absolute_seconds]
    if baseline is not None:
        distance = max(rule.deviations * baseline.deviation, (rule.ratio - 1) * baseline.median)
        limits.append(baseline.median + baseline.width * distance)
    return min(limits, default=None)


def is_spike(latency: float, baseline: Baseline | None, rule: SpikeRule) -> bool:
    """Whether a latency is above the limit."""
    limit = spike_limit(baseline, rule)
    return limit is not None and latency > limit
