"""What a node gave on its first good day: it takes the place of a model's value."""

from __future__ import annotations

from statistics import quantiles
from typing import Annotated

import msgspec

from commwatch.probes.results.drift import KEPT_RESULTS, REFERENCE_SPREAD_SECONDS
from commwatch.state.records import PositiveRate, Rate, Timestamp

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
