"""When a probe is due: the first cycle, its place in the interval, cycles out of turn; which pairs go with one."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from commwatch.probes.plan import CyclePlan
from commwatch.probes.rank_plan import Step

SUSPICIOUS_RETRY_SECONDS = 30.0
"""A bad result brings the next cycle forward to this, at most"""
SUSPICIOUS_RETRIES_PER_HOUR = 2

TRY_AGAIN_SECONDS = 900.0
"""A cycle that did not start, or yielded to a job, runs again within this time: a daily probe does not wait a day."""

SOONEST_SECONDS = 60.0
"""But not before this."""

FIRST_SPREAD_SECONDS = 3600.0
"""The first cycles of rare probes are spread over this, so that a new node is known within two hours."""

BURST_SECONDS = 300.0
BURST_CYCLES = 5
BURST_WINDOW_SECONDS = 4 * 3600.0
"""While a probe has too few results for a judgement, ``BURST_CYCLES`` cycles of a frequent probe come within
``BURST_SECONDS`` of each other. After that its interval is twice as long for the rest of the budget's window, which
pays for them: at 15 min 6 cycles in the first 25 min and 7 more in 4 h, 13 of 6.5 s. With 57.5 s for the
first cycles of the rare probes they take 142 s of the 144 s that 1 % of 4 h is."""

_HOUR = 3600.0


def node_share(host_name: str, probe: str) -> float:
    """A number from 0 to 1 that a node keeps: nodes of a cluster do not probe in step."""
    return zlib.crc32(f"{host_name}/{probe}".encode()) / 2**32


@dataclass(slots=True)
class ProbeSchedule:
    """The turns of one probe; times are seconds, those of the wall clock since 1970."""

    interval: float
    start_delay: float
    share: float
    """Of ``node_share``."""
    first_spread: float = FIRST_SPREAD_SECONDS
    """Within which the first cycles of rare probes begin."""
    _early: list[float] = field(default_factory=list)
    """Monotonic times of the cycles that were brought forward."""
    _burst: list[float] = field(default_factory=list)
    """The same of those of a burst."""
    _spread: bool = False

    @property
    def is_rare(self) -> bool:
        """Whether a skipped cycle is tried again before its interval is over."""
        return self.interval > TRY_AGAIN_SECONDS

    def first(self, last_completion_at: float | None, now: float) -> float:
        """Seconds from the start of the daemon to the first cycle.

        A probe that runs often has its first cycle soon. A rare one goes on where the daemon before left off.
        """
        if not self.is_rare:
            return self.start_delay
        soon = self.start_delay + self.share * min(self.interval, self.first_spread)
        if last_completion_at is None:
            return soon
        # A clock that was set back must not put it off for longer than an interval.
        due = min(last_completion_at + self.interval - now, self.interval)
        return max(due, soon)

    def after(self, *, ran: bool, suspicious: bool, now: float, wall: float, learning: bool = False) -> float | None:
        """Seconds to the next cycle if it does not simply follow its interval; None if it does.

        Args:
            ran: the cycle came to a result or a failure.
            suspicious: and the probe should run again soon.
            now: monotonic.
            wall: now, seconds since 1970.
            learning: there are too few results to judge another by.
        """
        if not ran:
            # Together with the other rare probes of the node: it is asked once for all of them.
            to_the_next = TRY_AGAIN_SECONDS - (wall + SOONEST_SECONDS) % TRY_AGAIN_SECONDS
            return to_the_next + SOONEST_SECONDS if self.is_rare else None
        self._early = [one for one in self._early if one > now - _HOUR]
        may_come_early = len(self._early) < SUSPICIOUS_RETRIES_PER_HOUR and self.interval > SUSPICIOUS_RETRY_SECONDS
        if suspicious and may_come_early:
            self._early.append(now)
            return SUSPICIOUS_RETRY_SECONDS
        self._burst = [one for one in self._burst if one > now - BURST_WINDOW_SECONDS]
        may_burst = BURST_SECONDS < self.interval <= TRY_AGAIN_SECONDS and len(self._burst) < BURST_CYCLES
        if learning and may_burst:
            self._burst.append(now)
            return BURST_SECONDS
        stretched = bool(self._burst) and not learning
        interval = 2 * self.interval if stretched else self.interval
        if not self._spread and not self.is_rare:
            self._spread = True
            return interval * (0.5 + self.share / 2)
        return interval if stretched else None


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
            interval: seconds between cycles, for the first one.
        """
        if not rounds:
            return ()
        passed = interval if self._last_at is None else now - self._last_at
        cycles = max(1, int(ROTATION_SECONDS / max(passed, 1.0)))
        count = math.ceil(len(rounds) / cycles)
        return tuple(rounds[(self._next + place) % len(rounds)] for place in range(count))

    def measured(self, count: int, now: float) -> None:
        """Go on behind the rounds that were measured, ``count`` of them."""
        self._next += count
        self._last_at = now
