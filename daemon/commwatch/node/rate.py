"""Rates of counters that may start again, wrap or vanish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter, lt
from typing import TypeAlias

from commwatch_exporters.snapshot import Block, Layout, Series, Value

Taker: TypeAlias = "Callable[[Sequence[Value]], Sequence[Value]]"


@lru_cache(maxsize=64)
def taker(positions: tuple[int, ...]) -> Taker:
    """Takes the values at some positions out of a block's, at once; one for all devices whose blocks are alike."""
    first, last = (positions[0], positions[-1] + 1) if positions else (0, 0)
    if positions == tuple(range(first, last)):  # side by side, as the counters of the links of a GPU
        return itemgetter(slice(first, last))
    return itemgetter(*positions)


def interval(earlier: float, later: float, max_gap_seconds: float) -> float | None:
    """Seconds between two readings; None where no rate may span them: time stood still, or one is missing between.

    Args:
        earlier: monotonic seconds of the earlier reading.
        later: monotonic seconds of the later reading.
        max_gap_seconds: the longest interval that a rate may span.
    """
    seconds = later - earlier
    return seconds if 0.0 < seconds <= max_gap_seconds else None


def rates(previous: Sequence[Value], current: Sequence[Value], seconds: float | None) -> list[float | None]:
    """Increase per second of each counter.

    None where either value was not read, where the counter fell (it started again or wrapped), or without an interval.

    Args:
        previous: values of a block.
        current: later values of the same layout.
        seconds: what ``interval`` gave for the two.
    """
    if seconds is None:
        return [None] * len(current)
    return [
        (now - before) / seconds if now is not None and before is not None and now >= before else None
        for before, now in zip(previous, current, strict=True)
    ]


class ResetWatch:
    """Counts how often the counters of one device and collector were seen to start again.

    A counter that vanishes is compared with its last known value when it returns, so that the reset of a GPU counts
    although the GPU gave nothing in between. Counters that fall in one reading are one reset.
    """

    def __init__(self) -> None:
        self.resets = 0
        """Resets seen so far; ``commwatch_counters_reset_total``."""
        self._layout: Layout | None = None
        self._take: Taker = taker(())
        """Takes the counters out of a block's values."""
        self._last: Sequence[Value] = ()
        """Of each counter the last number that was read."""

    def update(self, block: Block) -> bool:
        """Take the next reading; True where a counter fell."""
        if block.layout is not self._layout:
            self._adopt(block.layout)
        now = self._take(block.values)
        try:
            if not any(map(lt, now, self._last)):  # type: ignore[arg-type]  # None raises
                self._last = now
                return False
        except TypeError:  # one was not read, now or before
            pass
        fell, last = False, list(self._last)
        for place, value in enumerate(now):
            if value is not None:
                before = last[place]
                fell = fell or (before is not None and value < before)
                last[place] = value
        self._last = last
        self.resets += fell
        return fell

    def _adopt(self, layout: Layout) -> None:
        known: dict[Series, Value] = {}
        if self._layout is not None:
            known = dict(zip(map(self._layout.series.__getitem__, self._layout.counters), self._last, strict=True))
        self._layout = layout
        self._take = taker(layout.counters)
        self._last = [known.get(layout.series[position]) for position in layout.counters]
