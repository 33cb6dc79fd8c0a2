"""The histogram of probe latencies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

BUCKETS_SECONDS = (
    5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1.5e-2, 2e-2, 5e-2, 0.1, 1.0,
)  # fmt: skip
"""From a pair on NVLink (6 to 10 µs) past the usual absolute limit (15 ms) to what is a fault in itself."""


class LatencyHistogram:
    """Counts of latencies by upper bound."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Take in one latency."""
        self._counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self._sum += seconds

    def series(self) -> Iterator[tuple[str, tuple[str, ...], int | float]]:
        """Suffix of the name, extra label values (``le``) and number of each series; buckets are cumulative."""
        bounds = [*(repr(bound) for bound in BUCKETS_SECONDS), "+Inf"]
        for bound, count in zip(bounds, accumulate(self._counts), strict=True):
            yield "_bucket", (bound,), count
        yield "_sum", (), self._sum
        yield "_count", (), sum(self._counts)
