"""Which pairs of GPUs a frequent collective measures beside itself: some in each cycle, all within two hours; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from commwatch.probes.plan import CyclePlan
from commwatch.probes.rank_plan import Step

ROTATION_SECONDS = 6400.0
"""In which each pair has its turn: eight GPUs at switches have seven rounds, which are one in each of seven cycles of
15 min, or three in each of three of 30 min. With three matrices after it a slow pair is named within two hours."""
FEWEST_GPUS = 3
"""Of two the collective itself measures the only pair."""


def rounds_of(pairs: CyclePlan) -> tuple[Step, ...]:
    """The steps of a matrix that measure each pair once: both ways at the same time, round by round."""
    return tuple(step for step in pairs.steps if step.both_ways)


class Rotation:
    """The turns of the pairs of one node. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._next = 0
        self._last_at: float | None = None

    def due(self, rounds: Sequence[Step], now: float, interval: float) -> tuple[Step, ...]:
        """The rounds that the next cycle measures: more after a time in which none could, at most all.

        Args:
            rounds: of the matrix.
            now: at the cycle.
            interval: seconds between cycles, for the first one.
        """
        if not rounds:
            return ()
        passed = interval if self._last_at is None else now - self._last_at
        cycles = max(1, int(ROTATION_SECONDS / max(passed, 1.0)))
        count = math.ceil(len(rounds) / cycles)
        return tuple(rounds[(self._next + place) % len(rounds)] for place in range(count))

    def measured(self, count: int, now: float) -> None:
        """So many rounds were measured."""
        self._next += count
        self._last_at = now
