"""The times of one quantity under equal conditions: their baseline, slow drift, sudden steps, and swings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.state.records import Seconds, Timestamp


@dataclass(frozen=True, slots=True)
class Baseline:
    """Median and median absolute deviation of good times, seconds."""

    median: Seconds
    deviation: Seconds
    width: Annotated[float, msgspec.Meta(ge=1, le=1e3)] = 1.0
    """Times the distance from the median to the limit of a spike: above 1 where the results are few."""


def baseline_of(times: Sequence[float], fewest: int, first: int | None = None) -> Baseline | None:
    """Baseline of good times, seconds.

    The error of a median falls with the root of the number of results: with n of the ``fewest`` the limit is
    sqrt(fewest / n) times as far away.

    Args:
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
        most: neither median nor deviation may be above this multiple of that of the reference.
    """
    if baseline is None or reference is None:
        return baseline
    middle = min(baseline.median, most * reference.median)
    return Baseline(middle, min(baseline.deviation, most * reference.deviation), baseline.width)


def spike_limit(baseline: Baseline | None, absolute: float | None, rule: Thresholds) -> float | None:
    """Above which a latency is a spike, seconds: the baseline's limit or the absolute one, the lower of both.

    The baseline's is above the median by a number of median absolute deviations, and by a multiple of the median: the
    larger of both counts.

    Args:
        absolute: a limit that needs no baseline, seconds; None without one.
    """
    limits = [] if absolute is None else [absolute]
    if baseline is not None:
        by_noise = rule.probe_latency_spike_mad_factor * baseline.deviation
        distance = max(by_noise, (rule.probe_latency_spike_median_factor - 1) * baseline.median)
        limits.append(baseline.median + baseline.width * distance)
    return min(limits, default=None)


KEPT_RESULTS = 200
REFERENCE_SPREAD_SECONDS = 86400.0
"""The reference covers a whole day where that takes no more results than are kept: loads and temperatures have days."""


class Course(msgspec.Struct, frozen=True):
    """Times of one quantity under equal conditions, seconds, oldest first. More is always worse.

    A bandwidth is kept as the time of its call: the size is one of the conditions.
    """

    good: Annotated[tuple[Seconds, ...], msgspec.Meta(max_length=KEPT_RESULTS)] = ()
    """At most the latest 200."""
    latest: Annotated[tuple[Seconds, ...], msgspec.Meta(max_length=10_000)] = ()
    """Good and bad ones; as many as the searches for a step and for a swing use."""
    since: Timestamp | None = None
    """When the first good result came, seconds since 1970."""
    reference: Baseline | None = None
    """Of the first good results; settled once, for as long as the conditions are the same."""

    def __post_init__(self) -> None:
        if self.since is None and (self.good or self.reference):
            raise ValueError("good results that began at no time")

    def after(self, seconds: float, *, good: bool, now: float, rule: Thresholds) -> Course:
        """The course with one more result.

        The reference is settled when there are enough good results and the first is a day old, or no more are kept.

        Args:
            seconds: of one call.
            good: whether it may become part of the baseline.
            now: seconds since 1970.
        """
        fewest = rule.probe_baseline_results_min
        latest = (*self.latest, seconds)[-(fewest + max(fewest, rule.probe_step_results)) :]
        if not good:
            return Course(self.good, latest, self.since, self.reference)
        kept = (*self.good, seconds)[-KEPT_RESULTS:]
        since = now if self.since is None else self.since
        reference = self.reference
        if reference is None and (now - since >= REFERENCE_SPREAD_SECONDS or len(kept) == KEPT_RESULTS):
            reference = baseline_of(kept, fewest)
        return Course(kept, latest, since, reference)

    def baseline(self, rule: Thresholds, *, is_proven: bool = False) -> Baseline | None:
        """Of the latest good results, with a wider limit while they are few; None where there are too few for that.

        Args:
            is_proven: something else says of the first result that it is good, so that one is enough.
        """
        first = 1 if is_proven else rule.probe_baseline_results_first
        return baseline_of(self.good, rule.probe_baseline_results_min, first)

    def drift_ratio(self, rule: Thresholds) -> float | None:
        """Median of the latest good times over that of the first ones: 1 is no change, above 1 is slower.

        None while the reference is gathered.
        """
        baseline, reference = baseline_of(self.good, rule.probe_baseline_results_min), self.reference
        if baseline is None or reference is None or reference.median <= 0:
            return None
        return baseline.median / reference.median

    def step_ratio(self, rule: Thresholds) -> float | None:
        """Median of the last results over that of those just before: 1 is no change, above 1 is slower.

        A single far result moves neither median. A lasting change shows until it fills half of the results before.
        None where there are too few for both.
        """
        before, last = rule.probe_baseline_results_min, rule.probe_step_results
        if len(self.latest) < before + last:
            return None
        earlier = median(self.latest[-before - last : -last])
        return median(self.latest[-last:]) / earlier if earlier > 0 else None

    def swing_ratio(self, rule: Thresholds) -> float | None:
        """Spread of the last results over that of as many before: above 1 they differ more from one to the other.

        The spread leaves out a quarter at each end, so that single far results do not count. A lasting step passes for
        a swing while it lies in the middle of the last results. A spread before that is smaller than a share of the
        median counts as that share: what is calm swings by nothing that matters. None where there are too few for both.
        """
        number = rule.probe_baseline_results_min
        if len(self.latest) < 2 * number:
            return None
        before, last = self.latest[-2 * number : -number], self.latest[-number:]
        usual = max(_spread(before), rule.probe_swing_calm_ratio * median(before))
        return _spread(last) / usual if usual > 0 else None


def _spread(times: Sequence[float]) -> float:
    ordered, quarter = sorted(times), len(times) // 4
    return ordered[-1 - quarter] - ordered[quarter]
