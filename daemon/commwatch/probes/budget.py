"""How much of the GPUs' time probes have taken, and whether another cycle fits; pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

WINDOW_SECONDS = 4 * 3600.0
"""The share is kept over each trailing window of this length, hence over any day.

Short enough that probes spread over the day, long enough that a cycle with a slow start (a minute) still fits.
"""

FIRST_CYCLE_SECONDS = 15.0
"""Expected time of a cycle of which nothing is known yet: start of torch and NCCL on eight GPUs takes 6 to 15 s."""


class Occupied(msgspec.Struct, frozen=True):
    """One cycle's share."""

    ended_at: float
    """Seconds since 1970."""
    gpu_seconds: float
    """Time that the ranks lived, times the GPUs that they were on."""


def used(cycles: Iterable[Occupied], now: float) -> float:
    """GPU seconds of the cycles that ended within the window; one from the future (a clock set back) counts."""
    return sum(cycle.gpu_seconds for cycle in cycles if cycle.ended_at > now - WINDOW_SECONDS)


def recent(cycles: Iterable[Occupied], now: float) -> list[Occupied]:
    """The cycles that still count."""
    return [cycle for cycle in cycles if cycle.ended_at > now - WINDOW_SECONDS]


def expected_gpu_seconds(cycles: Iterable[Occupied], gpus: int) -> float:
    """What the next cycle will take: the median of the last five, or a first guess."""
    last = [cycle.gpu_seconds for cycle in cycles][-5:]
    return median(last) if last else FIRST_CYCLE_SECONDS * gpus


def fits(cycles: Iterable[Occupied], *, expected: float, limit: float, gpus: int, now: float) -> bool:
    """Whether another cycle keeps the GPUs occupied for at most ``limit`` of the trailing window.

    Args:
        cycles: all cycles of all probes on this node.
        expected: GPU seconds of the next one.
        limit: share of wall time, 0 to 1.
        gpus: GPUs of the node; without any there is nothing to occupy.
        now: seconds since 1970.
    """
    return gpus == 0 or used(cycles, now) + expected <= limit * WINDOW_SECONDS * gpus
