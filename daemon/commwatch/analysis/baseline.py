"""The baseline of a probe's latency: what its own good results have been, and what stands out from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

KEPT_RESULTS = 200


@dataclass(frozen=True, slots=True)
class Baseline:
    """Median and median absolute deviation of good latencies, seconds."""

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


def baseline_of(latencies: Sequence[float], fewest: int) -> Baseline | None:
    """Baseline of good latencies, seconds; None where there are fewer than ``fewest``."""
    if len(latencies) < fewest:
        return None
    middle = median(latencies)
    return Baseline(middle, median(abs(latency - middle) for latency in latencies))


def is_spike(latency: float, baseline: Baseline | None, rule: SpikeRule) -> bool:
    """Whether a latency is above the baseline's limit, or above the absolute one."""
    if rule.absolute_seconds is not None and latency > rule.absolute_seconds:
        return True
    if baseline is None:
        return False
    return latency > max(baseline.median + rule.deviations * baseline.deviation, rule.ratio * baseline.median)


def keep(latencies: Sequence[float], latency: float) -> list[float]:
    """The latest 200 good latencies with a new one at the end; spikes must not be handed in."""
    return [*latencies, latency][-KEPT_RESULTS:]
