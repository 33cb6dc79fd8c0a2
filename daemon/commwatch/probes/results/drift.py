"""How a probe's times change over days: slow drift away from the first good results, sudden steps, and swings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from commwatch.probes.results.baseline import Baseline, baseline_of
from commwatch.state.records import Timestamp

KEPT_RESULTS = 200
REFERENCE_SPREAD_SECONDS = 86400.0
"""The reference covers a whole day where that takes no more results than are kept: loads and temperatures have days."""


@dataclass(frozen=True, slots=True)
class DriftRule:
    """What the course of a quantity is held against."""

    fewest: int
    """Good results that a baseline needs; as many come before the latest ones in the search for a step."""
    first: int
    """Good results of a first baseline, whose limit is wider."""
    most: float
    """The baseline that judges is at most so many times the reference."""
    step_results: int
    """The latest results that make a step together."""
    step_factor: float
    """They take at least so many times the time of those before."""
    swing_calm: float
    """A smaller spread counts as this share of the median: what is calm swings by nothing that matters."""


class Course(msgspec.Struct, frozen=True):
    """Times of one quantity under equal conditions, seconds, oldest first. More is always worse.

    A bandwidth is kept as the time of its call: the size is one of the conditions.
    """

    good: tuple[float, ...] = ()
    """At most the latest 200."""
    latest: tuple[float, ...] = ()
    """Good and bad ones; as many as the searches for a step and for a swing look at."""
    since: Timestamp | None = None
    """When the first good result came, seconds since 1970."""
    reference: Baseline | None = None
    """Of the first good results; settled once, for as long as the conditions are the same."""

    def after(self, seconds: float, *, good: bool, now: float, rule: DriftRule) -> Course:
        """The course with one more result.

        The reference is settled when there are enough good results and the first is a day old, or no more are kept.

        Args:
            seconds: of one call.
            good: whether it may become part of the baseline.
            now: seconds since 1970.
            rule: in force.
        """
        latest = (*self.latest, seconds)[-(rule.fewest + max(rule.fewest, rule.step_results)) :]
        if not good:
            return Course(self.good, latest, self.since, self.reference)
        kept = (*self.good, seconds)[-KEPT_RESULTS:]
        since = now if self.since is None else self.since
        reference = self.reference
        if reference is None and (now - since >= REFERENCE_SPREAD_SECONDS or len(kept) == KEPT_RESULTS):
            reference = baseline_of(kept, rule.fewest)
        return Course(kept, latest, since, reference)

    def baseline(self, rule: DriftRule) -> Baseline | None:
        """Of the latest good results, with a wider limit while they are few; None where there are too few for that."""
        return baseline_of(self.good, rule.fewest, rule.first)

    def drift_ratio(self, rule: DriftRule) -> float | None:
        """See ``drift_ratio``; None while the reference is gathered."""
        return drift_ratio(baseline_of(self.good, rule.fewest), self.reference)

    def step_ratio(self, rule: DriftRule) -> float | None:
        """See ``step_ratio``."""
        return step_ratio(self.latest, rule.fewest, rule.step_results)

    def swing_ratio(self, rule: DriftRule) -> float | None:
        """See ``swing_ratio``."""
        return swing_ratio(self.latest, rule.fewest, rule.swing_calm)


def drift_ratio(baseline: Baseline | None, reference: Baseline | None) -> float | None:
    """Median of the latest good times over that of the first ones: 1 is no change, above 1 is slower."""
    if baseline is None or reference is None or reference.median <= 0:
        return None
    return baseline.median / reference.median


def step_ratio(times: Sequence[float], before: int, last: int) -> float | None:
    """Median of the last results over that of those just before: 1 is no change, above 1 is slower.

    A single far result moves neither median. A lasting change shows until it fills half of the results before.

    Args:
        times: seconds, oldest first.
        before: number of results that the last ones are held against.
        last: number of the last ones.

    Returns:
        None where there are fewer results than both numbers together.
    """
    if len(times) < before + last:
        return None
    earlier = median(times[-before - last : -last])
    return median(times[-last:]) / earlier if earlier > 0 else None


def swing_ratio(times: Sequence[float], number: int, calm: float) -> float | None:
    """Spread of the last results over that of as many before: above 1 they differ more from one to the other.

    The spread leaves out a quarter at each end, so that single far results do not count. A lasting step passes for a
    swing while it lies in the middle of the last results.

    Args:
        times: seconds, oldest first.
        number: of the last ones, and of those before.
        calm: share of the median before that a smaller spread before counts as.

    Returns:
        None where there are fewer results than twice the number.
    """
    if len(times) < 2 * number:
        return None
    before, last = times[-2 * number : -number], times[-number:]
    usual = max(_spread(before), calm * median(before))
    return _spread(last) / usual if usual > 0 else None


def _spread(times: Sequence[float]) -> float:
    ordered, quarter = sorted(times), len(times) // 4
    return ordered[-1 - quarter] - ordered[quarter]
