"""How many calls a step makes: its share of the cycle's time, and when its timings are steady enough to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from commwatch.probes.rank_plan import Purpose, Step

STEADY = 0.02
"""Standard error of the time of a call, as a part of it, below which a step needs no further timing."""

SYNC_CALLS = 1
"""Before the calls of a timing comes one that is not timed: it makes the ranks begin together."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a step is timed: calls to warm up, then timings of ``calls`` calls each, made back to back."""

    warmup: int
    calls: int
    least_timings: int
    """So many before the question whether they are steady has an answer."""
    most_timings: int


WANTED: dict[Literal["latency", "bandwidth", "work"], Sampling] = {
    # Twenty calls hide the cost of the clock and of the launches.
    "latency": Sampling(warmup=5, calls=20, least_timings=3, most_timings=10),
    "bandwidth": Sampling(warmup=5, calls=5, least_timings=4, most_timings=12),
    "work": Sampling(warmup=5, calls=5, least_timings=4, most_timings=12),
}

SUSTAINED_TIMING_SECONDS = 0.1
SUSTAINED_CALLS_MAX = 20
"""A timing of a sustained step: long beside the launch of its calls, short beside the step."""
_CALLS_BESIDE = 2 * (1 + SYNC_CALLS) + 1
"""Calls of a step that are in no timing: those of the estimate, and the check."""

_WEIGHTS: dict[Purpose, float] = {"latency": 1.0, "bandwidth": 3.0, "work": 3.0, "sustained": 3.0}
"""A small call takes microseconds: its steps need a smaller share of the time."""


def step_seconds(steps: Sequence[Step], timed_seconds: float) -> tuple[float, ...]:
    """What each step may take so that no rank is busy for more than ``timed_seconds``.

    A step gets the share that its busiest member can give it, so all of its members compute with the same number.
    """
    loads: dict[int, float] = {}
    for step in steps:
        for rank in step.members:
            loads[rank] = loads.get(rank, 0.0) + _WEIGHTS[step.purpose]
    return tuple(timed_seconds * _WEIGHTS[one.purpose] / max(loads[rank] for rank in one.members) for one in steps)


def affordable(wanted: Sampling, call_seconds: float, budget_seconds: float) -> Sampling:
    """Cut a sampling down to what fits into the budget.

    Timings above the least number go first, then the warm-up, then calls of a timing, then timings; none at all may be
    left, and then the estimate stands for the step: without it a slow path would have no result.

    Args:
        wanted: the sampling without any limit.
        call_seconds: what one call cost before, with its launch.
        budget_seconds: time that all calls together may take, seconds.
    """
    if call_seconds <= 0:
        return wanted
    left = int(budget_seconds / call_seconds)
    calls = _between(1, left // wanted.least_timings - SYNC_CALLS, wanted.calls)
    of_timing = calls + SYNC_CALLS
    beside_warmup = (left - wanted.warmup - SYNC_CALLS) // of_timing
    without_warmup = min(left // of_timing, wanted.least_timings)
    timings = _between(0, max(beside_warmup, without_warmup), wanted.most_timings)
    warmup = _between(0, left - timings * of_timing - SYNC_CALLS, wanted.warmup)
    return Sampling(warmup, calls, wanted.least_timings, timings)


def filling(call_seconds: float, budget_seconds: float) -> Sampling:
    """Back to back until the budget is used up, however steady the timings are; one timing at least.

    Args:
        call_seconds: what one call cost before, with its launch.
        budget_seconds: time that all calls together may take, seconds.
    """
    if call_seconds <= 0:
        return Sampling(0, SUSTAINED_CALLS_MAX, 1, 1)
    left = int(budget_seconds / call_seconds) - _CALLS_BESIDE
    calls = _between(1, int(SUSTAINED_TIMING_SECONDS / call_seconds), SUSTAINED_CALLS_MAX)
    timings = max(1, left // (calls + SYNC_CALLS))
    return Sampling(0, calls, timings, timings)


def relative_error(timings: Sequence[float]) -> float:
    """Standard error of the mean of timings, as a part of the mean; infinite below two of them."""
    if len(timings) < 2:
        return math.inf
    mean = fmean(timings)
    return stdev(timings) / math.sqrt(len(timings)) / mean if mean > 0 else 0.0


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
