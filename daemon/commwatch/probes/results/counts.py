"""Counts of a probe since the start of the daemon: its cycles by outcome, and its latencies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import get_args

from commwatch.probes.gate.decision import GPU_SKIPS
from commwatch.probes.plan import CycleResult, Failed, Measured, Skipped, YieldReason
from commwatch.probes.rank_plan import FailureReason, SkipReason
from commwatch_exporters.snapshot import Value

_WITHOUT_GPUS = frozenset[str]({"nccl_error", "no_gpu_backend", "single_gpu", "budget", *GPU_SKIPS})
"""Reasons that a cycle over gloo does not meet."""


class CycleCounts:
    """Counts since the start of the daemon."""

    def __init__(self) -> None:
        self.attempts = 0
        self.occupied_seconds = 0.0
        """GPU seconds."""
        self._failures: dict[FailureReason, int] = {}
        self._skips: dict[SkipReason, int] = {}
        self._yields: dict[YieldReason, int] = {}

    def take(self, result: CycleResult, gpus: int) -> float:
        """Count an outcome.

        Returns:
            The GPU seconds that it took.
        """
        gpu_seconds = result.occupied_seconds * gpus
        self.occupied_seconds += gpu_seconds
        if isinstance(result, Measured | Failed):
            self.attempts += 1
        if isinstance(result, Failed):
            self._failures[result.reason] = self._failures.get(result.reason, 0) + 1
        elif isinstance(result, Skipped):
            self.skip(result.reason)
        elif not isinstance(result, Measured):
            self._yields[result.reason] = self._yields.get(result.reason, 0) + 1
        return gpu_seconds

    def skip(self, reason: SkipReason) -> None:
        """Count a cycle that did not start."""
        self._skips[reason] = self._skips.get(reason, 0) + 1

    def values(self) -> dict[str, Value]:
        """Numbers by the name of the metric without ``commwatch_probe_``."""
        return {"attempts_total": self.attempts, "gpu_occupied_seconds_total": self.occupied_seconds}

    def reasons(self, backend: str) -> Iterator[tuple[str, str, int]]:
        """Name of the metric, reason and number; 0 for each reason that may come: its first event is an increase."""
        impossible = _impossible(backend)
        for name, reasons, counts in (
            ("failures_total", get_args(FailureReason), self._failures),
            ("skips_total", get_args(SkipReason), self._skips),
            ("yields_total", get_args(YieldReason), self._yields),
        ):
            for reason in reasons:
                if reason in counts or reason not in impossible:
                    yield name, reason, counts.get(reason, 0)


def _impossible(backend: str) -> frozenset[str]:
    never = frozenset({"disabled"})  # then nothing is planned
    if backend == "gloo":
        return never | _WITHOUT_GPUS
    return never | {"no_torch"} if backend == "simulated" else never


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
        self._counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self._sum += seconds

    def series(self) -> Iterator[tuple[str, tuple[str, ...], int | float]]:
        """Suffix of the name, extra label values (``le``) and number of each series; buckets are cumulative."""
        bounds = [*(repr(bound) for bound in BUCKETS_SECONDS), "+Inf"]
        for bound, count in zip(bounds, accumulate(self._counts), strict=True):
            yield "_bucket", (bound,), count
        yield "_sum", (), self._sum
        yield "_count", (), sum(self._counts)
