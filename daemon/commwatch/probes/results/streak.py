"""Bad results in a row: one alone means little, three mean something."""

from __future__ import annotations

import msgspec

from commwatch.state.records import Count, Timestamp

MAX_AGE_INTERVALS = 3
MIN_MAX_AGE_SECONDS = 1800.0


class Streak(msgspec.Struct, frozen=True):
    """How many in a row, and when the last one was. A skip leaves it as it is."""

    count: Count = 0
    last_at: Timestamp | None = None
    """Seconds since 1970 of the last member; None without one."""

    def __post_init__(self) -> None:
        if (self.count == 0) != (self.last_at is None):
            raise ValueError("a row of bad results and the time of the last of them do not agree")

    def after(self, now: float, gap: float, *, bad: bool) -> Streak:
        """After another result; a bad one more than ``gap`` seconds after the one before is the first of a new row."""
        if not bad:
            return Streak()
        in_a_row = self.last_at is not None and abs(now - self.last_at) <= gap
        return Streak(self.count + 1 if in_a_row else 1, now)


def is_current(taken_at: float | None, interval: float, now: float) -> bool:
    """Whether a result of that time still counts, of a probe with this interval; all in seconds. A time that far in
    the future does not count either."""
    most = max(MAX_AGE_INTERVALS * interval, MIN_MAX_AGE_SECONDS)
    return taken_at is not None and abs(now - taken_at) <= most
