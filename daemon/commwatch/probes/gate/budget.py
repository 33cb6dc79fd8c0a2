"""How much of the GPUs' time probes have taken, and whether another cycle fits; pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from commwatch.state.records import Seconds, Timestamp

WINDOW_SECONDS = 4 * 3600.0
"""The share is kept over each trailing window of this length, hence over any day.

Short enough that probes spread over the day, long enough that a cycle with a slow start (a minute) still fits.
"""

DAY_SECONDS = 86400.0
SEARCH_SHARE = 0.125
"""Of a day's limit, for cycles out of turn: a repeat after a bad result, and the search for the faulty part. The cycles
in turn take what is left of a day, so that both together keep to the limit over any day, and a search on a node whose
last hours are full need not wait. At 1 % it is 108 s for each GPU. Three matrices of eight GPUs (44 s), their copies
three times (30 s) and two more results of the collective (13 s) are 87 s."""

FIRST_CYCLE_SECONDS = 6.0
STEP_SECONDS = 0.25
"""Expected time for which a cycle of which nothing is known yet occupies the GPUs: the first for contexts, the first
call (2 to 4.5 s on eight GPUs) and the end, the second for each step with the check of the node before it."""


class Occupied(msgspec.Struct, frozen=True):
    """One cycle's share."""

    ended_at: Timestamp
    """Seconds since 1970."""
    gpu_seconds: Seconds
    """Time for which the ranks could have held a context, times the GPUs that they were on."""
    search: bool = False
    """Whether it ran out of turn, and counts for ``SEARCH_SHARE``."""


def used(cycles: Iterable[Occupied], now: float, window: float = WINDOW_SECONDS) -> float:
    """GPU seconds of the cycles that ended within the window; one as far in the future (a clock set back) counts."""
    return sum(cycle.gpu_seconds for cycle in cycles if abs(now - cycle.ended_at) < window)


def recent(cycles: Iterable[Occupied], now: float) -> list[Occupied]:
    """The cycles that still count: those of a day."""
    return [cycle for cycle in cycles if abs(now - cycle.ended_at) < DAY_SECONDS]


def first_guess_seconds(steps: int) -> float:
    """Seconds for which a cycle with ``steps`` steps occupies its GPUs, before any was measured."""
    return FIRST_CYCLE_SECONDS + STEP_SECONDS * steps


def expected_gpu_seconds(cycles: Iterable[Occupied], gpus: int, steps: int) -> float:
    """The expected GPU seconds of a probe's next cycle: the median of its last five, or a first guess.

    Args:
        cycles: of this probe, the oldest first.
    """
    last = [cycle.gpu_seconds for cycle in cycles][-5:]
    return median(last) if last else first_guess_seconds(steps) * gpus


def fits(
    cycles: Iterable[Occupied],
    *,
    expected: float,
    limit: float,
    gpus: int,
    now: float,
    reserved: float = 0.0,
    search: bool = False,
) -> bool:
    """Whether another cycle keeps the GPUs occupied for at most ``limit`` of the trailing window, and of the day.

    Args:
        cycles: all cycles of all probes on this node.
        expected: GPU seconds of the next one.
        limit: share of wall time, 0 to 1.
        gpus: GPUs of the node; without any there is nothing to occupy.
        now: seconds since 1970.
        reserved: GPU seconds kept back for rare probes that wait for the budget: else a frequent one, which always
            finds room for its small cycles first, would starve them.
        search: it runs out of turn, and has a share of the day of its own.
    """
    if gpus == 0:
        return True
    alike = [cycle for cycle in cycles if cycle.search == search]
    share = SEARCH_SHARE if search else 1 - SEARCH_SHARE
    if used(alike, now, DAY_SECONDS) + expected > share * limit * DAY_SECONDS * gpus:
        return False
    return search or used(alike, now) + expected + reserved <= limit * WINDOW_SECONDS * gpus
