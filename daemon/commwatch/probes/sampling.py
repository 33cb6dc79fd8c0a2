"""How many calls a measurement may make so that it stays within its share of GPU time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is wanted: ``timings`` numbers, each from ``calls`` calls made back to back."""

    warmup: int
    calls: int
    timings: int


LATENCY = Sampling(warmup=5, calls=50, timings=3)
"""Fifty calls hide the cost of the launches and of the clock; three timings make a median."""

BANDWIDTH = Sampling(warmup=5, calls=5, timings=4)

LATENCY_SHARE = 0.25
"""Part of a cycle's time that small calls may take; the large ones have the rest."""

_SYNC_CALLS = 1
"""Each timing is preceded by one untimed call, so that all ranks begin it together."""


def affordable(wanted: Sampling, call_seconds: float, budget_seconds: float) -> Sampling:
    """Cut a sampling down to what fits into the budget: warm-up and timings first, calls per timing last.

    At least one timing of one call is left, whatever it costs: without it there would be nothing to judge.

    Args:
        wanted: the sampling without any limit.
        call_seconds: time of one call, as estimated in the warm-up.
        budget_seconds: time that all calls together may take, seconds.
    """
    left = int(budget_seconds / call_seconds) if call_seconds > 0 else _all_calls(wanted)
    if left >= _all_calls(wanted):
        return wanted
    calls = max(1, min(wanted.calls, left - _SYNC_CALLS))
    timings = max(1, min(wanted.timings, left // (calls + _SYNC_CALLS)))
    warmup = max(0, min(wanted.warmup, left - timings * (calls + _SYNC_CALLS)))
    return Sampling(warmup, calls, timings)


def _all_calls(sampling: Sampling) -> int:
    return sampling.warmup + sampling.timings * (sampling.calls + _SYNC_CALLS)
