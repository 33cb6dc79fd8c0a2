"""Counters of the hardware that begin at 0 again after their largest number: what is exposed goes on growing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from commwatch.node.rate import interval
from commwatch_exporters.catalogue import family_of
from commwatch_exporters.snapshot import Block, Layout, Series, Value

MOST_PER_SECOND = 2e8
"""No adapter handles more messages: a counter that would have risen faster has not wrapped, it started again."""


class Wrapped(NamedTuple):
    """A counter that has wrapped, as it is kept over a restart."""

    series: Series
    raw: int
    """The last number that was read."""
    lost: int
    """What wrapping took from it."""


class Unwrap:
    """Adds to the wrapping counters of one device what they lost by wrapping.

    A wrap and a reset look alike: the number falls. A fall is taken for a wrap only where all of this holds, and for a
    reset otherwise, which passes the raw number on:

    - the reading before was not too long ago;
    - the increase that a wrap would mean is less than half the range, and no more than ``MOST_PER_SECOND`` allows;
    - no other counter of the reading fell: a reset takes all of a device, and two do not wrap within one interval;
    - the number before was within the range: else this counter is wider than the catalogue says, and never wraps.

    What was lost before the first start of the daemon is not known: the first reading is passed on as it is.

    Args:
        wrapped: what an earlier daemon knew. How long ago that was is not known, so that a fall since is a reset.
    """

    def __init__(self, wrapped: Iterable[Wrapped] = ()) -> None:
        self._layout: Layout | None = None
        self._counters: tuple[tuple[int, int | None], ...] = ()
        """Position of each counter and where it wraps, None for one that does not."""
        self._raw: dict[Series, Value] = {}
        """The last number that was read of each counter."""
        self._lost: dict[Series, int] = {}
        """What each counter lost by wrapping; those that never did are not here."""
        for series, number, lost in wrapped:
            self._raw[series], self._lost[series] = number, lost
        self._time: float | None = None

    @staticmethod
    def is_needed(layout: Layout) -> bool:
        """Whether a layout has counters that wrap."""
        return any(family_of(name).wraps_at is not None for name in layout.families)

    @property
    def has_wrapped(self) -> bool:
        """Whether a counter has wrapped since it last began again."""
        return bool(self._lost)

    def wrapped(self) -> list[Wrapped]:
        """The counters that have wrapped; may be called in another thread."""
        raw = self._raw
        return [Wrapped(series, int(raw[series] or 0), lost) for series, lost in self._lost.copy().items()]

    def update(self, block: Block, max_gap_seconds: float) -> Block:
        """The block with counters that go on growing; the same block where none has wrapped yet.

        Args:
            block: as it was read.
            max_gap_seconds: readings further apart cannot be compared.
        """
        if block.layout is not self._layout:
            self._adopt(block.layout)
        seconds = None if self._time is None else interval(self._time, block.time, max_gap_seconds)
        self._time = block.time
        series, values, raw = block.layout.series, block.values, self._raw
        fallen = []
        for position, range_size in self._counters:
            now = values[position]
            if now is not None:
                before = raw.get(series[position])
                if before is not None and now < before:
                    fallen.append((position, range_size, before, now))
                raw[series[position]] = now
        if fallen:
            self._judge(fallen, series, seconds)
        return self._grown(block) if self._lost else block

    def _judge(
        self,
        fallen: list[tuple[int, int | None, int | float, int | float]],
        series: tuple[Series, ...],
        seconds: float | None,
    ) -> None:
        position, range_size, before, now = fallen[0]
        if len(fallen) == 1 and seconds is not None and range_size is not None and before < range_size:
            increase = now + range_size - before
            if increase < range_size / 2 and increase <= MOST_PER_SECOND * seconds:
                self._lost[series[position]] = self._lost.get(series[position], 0) + range_size
                return
        for position, *_ in fallen:
            self._lost.pop(series[position], None)

    def _grown(self, block: Block) -> Block:
        values = list(block.values)
        for series, lost in self._lost.items():
            position = block.layout.index.get(series)
            if position is not None and (value := values[position]) is not None:
                values[position] = value + lost
        return Block(block.layout, values, block.time)

    def _adopt(self, layout: Layout) -> None:
        self._layout = layout
        self._counters = tuple(_counters(layout))


def _counters(layout: Layout) -> Iterable[tuple[int, int | None]]:
    for position, (name, _) in enumerate(layout.series):
        family = family_of(name)
        if family.type == "counter":
            yield position, family.wraps_at
