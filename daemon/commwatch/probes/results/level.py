"""A node's own level of a bandwidth, losses against it, and the results of its first good day.

A quantity is keyed as in ``history.levels``: other operations, GPUs, ranks or sizes have a level of their own. NCCL's
version and settings are not part of the key, so that a change of these that costs this much is visible.
"""

from __future__ import annotations

import math
from statistics import quantiles
from typing import Annotated, TypeAlias

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.probes.results.course import KEPT_RESULTS, REFERENCE_SPREAD_SECONDS, Course, baseline_of
from commwatch.state.records import Count, PositiveRate, Rate, Seconds, Timestamp, check_labels

PositiveSeconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """The level of a node's own good results of one quantity, and the results below it."""

    name: str
    """Of the quantity: ``all_reduce 8``."""
    seconds: PositiveSeconds
    """Of one call at the level: the median of the latest good results, never above that of the first day."""
    bus_bandwidth: Rate
    """The same as a bandwidth, bytes per second."""
    noise: Seconds = 0.0
    """Median absolute deviation of these results, wider while they are few."""
    first_day: PositiveSeconds | None = None
    """Median of the first good day; None while it is gathered."""
    bad: Count = 0
    """Results in a row, the latest included, that are lower by more than a share."""
    back: Count = 0
    """Results in a row at the level again; only while a loss is open."""
    since: Timestamp | None = None
    """When the first bad one came, seconds since 1970; None without."""
    low_seconds: Seconds = 0.0
    """Of one call of the last bad result."""
    is_lost: bool = False
    """Whether a loss is open."""
    was_low: bool = False
    """Whether the last bad result was one of several in a row far below what is expected: a finding of its own, which
    the first good result ends."""

    def __post_init__(self) -> None:
        check_labels((self.name,))
        if (self.is_lost or self.bad) and (self.since is None or self.low_seconds <= self.seconds):
            raise ValueError("a loss that began at no time, or is none")

    @property
    def lost_share(self) -> float:
        """Of the bandwidth of the level, by the last bad result; 0 without."""
        return 1 - self.seconds / self.low_seconds if self.low_seconds else 0.0

    @property
    def low_bus_bandwidth(self) -> float:
        """Bytes per second of the last bad result."""
        return self.bus_bandwidth * (1 - self.lost_share)

    @property
    def is_settling(self) -> bool:
        """Whether the next results decide about a loss, so that the probe should run again soon."""
        return bool(self.back) if self.is_lost else bool(self.bad)

    @property
    def is_open(self) -> bool:
        """Whether the loss has to be reported: not on the way back from a result that was far too low, since what
        stood for it has ended, and nothing new has begun."""
        return self.is_lost and not (self.was_low and self.back)

    def after(self, seconds: float, now: float, rule: Thresholds, *, low: bool = False) -> Level:
        """With one more result. Time that passes between two results makes none of them better.

        Args:
            seconds: of one call.
            low: whether it is also one of several in a row far below what is expected.
            now: seconds since 1970.
        """
        least = rule.probe_loss_streak
        if seconds >= self._limit(rule):
            bad = self.bad + 1
            since = now if self.since is None else self.since
            is_lost = self.is_lost or bad >= least
            return msgspec.structs.replace(
                self, bad=bad, back=0, since=since, low_seconds=seconds, is_lost=is_lost, was_low=low
            )  # fmt: skip
        if self.is_lost and self.back + 1 < least:
            return msgspec.structs.replace(self, bad=0, back=self.back + 1)
        return msgspec.structs.replace(
            self, bad=0, back=0, since=None, low_seconds=0.0, is_lost=False, was_low=False
        )  # fmt: skip

    def _limit(self, rule: Thresholds) -> float:
        """Seconds from which on a result is bad: a noisy quantity needs more than the share."""
        # One part in 10⁹ less, so that a result at exactly the share is bad whatever the rounding.
        share = self.seconds / (1 - rule.probe_loss_ratio) * (1 - 1e-9)
        return max(share, self.seconds + rule.probe_loss_mad_factor * self.noise)

    def following(self, course: Course, rule: Thresholds) -> Level:
        """At the level of the latest good results; unchanged while a loss is open or may begin, or they are too few."""
        found = _median_and_noise(course, rule)
        if found is None or self.is_lost or self.bad:
            return self
        seconds, noise = found
        first_day = self.first_day
        if first_day is None and course.reference is not None and course.reference.median > 0:
            first_day = course.reference.median
        if first_day is not None:
            seconds = min(seconds, first_day)
        rate = self.bus_bandwidth * self.seconds / seconds
        return msgspec.structs.replace(
            self, seconds=seconds, bus_bandwidth=rate, noise=noise, first_day=first_day
        )  # fmt: skip

    def accepted(self) -> Level:
        """With the lower bandwidth as the level from now on."""
        rate = self.low_bus_bandwidth
        return Level(name=self.name, seconds=self.low_seconds, bus_bandwidth=rate)


def first_level(name: str, course: Course, bus_bandwidth: float, rule: Thresholds) -> Level | None:
    """The level of a quantity that has none yet; None where there are too few good results.

    Args:
        course: of it, the latest result among its good ones.
        bus_bandwidth: of the latest result, bytes per second.
    """
    found = _median_and_noise(course, rule)
    if found is None:
        return None
    rate = bus_bandwidth * course.good[-1] / found[0]
    return Level(name=name, seconds=found[0], bus_bandwidth=rate, noise=found[1])


def _median_and_noise(course: Course, rule: Thresholds) -> tuple[float, float] | None:
    known = baseline_of(course.good, rule.probe_baseline_results_min, rule.probe_loss_results_first)
    if known is None or known.median <= 0 or not math.isfinite(known.median):
        return None
    return known.median, known.width * known.deviation


FEWEST = 20
"""Results that are learned from, at least."""


class LearnedRate(msgspec.Struct, frozen=True):
    """Bandwidths of the first day, and what they come to. A node that is low from the start on has no good ones."""

    since: Timestamp
    """Of the first one, seconds since 1970."""
    rates: Annotated[tuple[Rate, ...], msgspec.Meta(max_length=KEPT_RESULTS)] = ()
    """Bus bandwidths, bytes per second; empty once it is settled."""
    settled: PositiveRate | None = None
    """Bytes per second: the 90th percentile, for good."""

    def __post_init__(self) -> None:
        if self.settled is not None and self.rates:
            raise ValueError("a rate is settled, and still being learned")

    def after(self, rate: float, now: float) -> LearnedRate:
        """With one more good result; settled when there are enough and the first is a day old."""
        rates = (*self.rates, rate)[-KEPT_RESULTS:]
        if len(rates) < FEWEST or now - self.since < REFERENCE_SPREAD_SECONDS:
            return LearnedRate(self.since, rates)
        return LearnedRate(self.since, settled=quantiles(rates, n=10, method="inclusive")[-1])
