"""Counters of the hardware that begin at 0 again after their largest number: what is exposed goes on growing."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from commwatch.node.rate import interval
from commwatch.node.run import Collector
from commwatch.state.records import check_labels, check_unique
from commwatch_exporters.catalogue import CATALOGUE, family_of
from commwatch_exporters.snapshot import Block, Layout, Series, Value

MOST_PER_SECOND = 2e8
"""No adapter handles more messages: a counter that would have risen faster has not wrapped, it started again."""

_WRAPS: Final = attrgetter("layout.wraps")


class Wrapped(NamedTuple):
    """A counter that has wrapped, as it is kept over a restart."""

    series: Series
    raw: int
    """The last number that was read."""
    lost: int
    """The sum that it lost by wrapping."""


class Unwrap:
    """Adds to the wrapping counters of one device what they lost by wrapping.

    A wrap and a reset look alike: the number falls. A fall is taken for a wrap only where all of this holds, and for a
    reset otherwise, which passes the raw number on:

    - the reading before was not too long ago;
    - the increase that a wrap would mean is less than half the range, and no more than ``MOST_PER_SECOND`` allows;
    - no other counter of the reading fell: a reset takes all of a device, and two do not wrap within one interval;
    - the number before was within the range: else this counter is wider than the catalogue says, and never wraps.

    Losses before the first start of the daemon are not known: the first reading is passed on as it is.

    Args:
        wrapped: state of an earlier daemon. Its age is not known, so that a fall since is a reset.
    """

    def __init__(self, wrapped: Iterable[Wrapped] = ()) -> None:
        self._layout: Layout | None = None
        self._counters: tuple[tuple[int, int | None], ...] = ()
        """Position of each counter and where it wraps, None for one that does not."""
        self._raw: dict[Series, Value] = {}
        """The last number that was read of each counter."""
        self._lost: dict[Series, int] = {}
        """The loss of each counter by wrapping; counters that never wrapped are missing."""
        for series, number, lost in wrapped:
            self._raw[series], self._lost[series] = number, lost
        self._time: float | None = None
        self.falls = 0
        """Readings with a counter that fell: it has wrapped or begun again."""

    @property
    def has_wrapped(self) -> bool:
        """Whether a counter has wrapped since it last began again."""
        return bool(self._lost)

    def wrapped(self) -> list[Wrapped]:
        """The counters that have wrapped."""
        return [Wrapped(series, int(self._raw[series] or 0), lost) for series, lost in self._lost.items()]

    def update(self, block: Block, max_gap_seconds: float) -> Block:
        """The block with counters that go on growing; the same block where none has wrapped yet.

        Args:
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
            self.falls += 1
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


def _check(wrapped: Wrapped) -> None:
    """Whether a counter can have wrapped so.

    Raises:
        ValueError: it cannot.
    """
    (name, labels), raw, lost = wrapped
    family = CATALOGUE.get(name)
    if family is None or family.wraps_at is None or len(labels) != len(family.labels):
        raise ValueError(f"{name!a} is no counter that wraps")
    if not 0 <= raw < family.wraps_at or lost <= 0 or lost % family.wraps_at:
        raise ValueError(f"{name} has {raw} and lost {lost}, which it does not wrap at")
    check_labels(labels)


def _counters(layout: Layout) -> Iterable[tuple[int, int | None]]:
    for position in layout.counters:
        yield position, family_of(layout.series[position][0]).wraps_at


class WrapsState(msgspec.Struct):
    """State that survives a restart of the daemon, but not of the machine."""

    boot: str = ""
    """Identity of the boot to which the numbers belong; empty where it is not known."""
    devices: dict[str, dict[str, list[Wrapped]]] = msgspec.field(default_factory=dict)
    """By collector and device: the counters that have wrapped."""

    def __post_init__(self) -> None:
        for of_collector in self.devices.values():
            for wrapped in of_collector.values():
                check_unique((one.series for one in wrapped), "a counter that wrapped,")
                for one in wrapped:
                    _check(one)


class Wraps:
    """Makes wrapping counters grow, in blocks on their way into the store.

    It lives in the daemon: a worker that is replaced would begin again. The losses are kept over a restart, because a
    number that fell at each one would be taken for a reset, and so for an increase.
    """

    def __init__(self, state: WrapsState, boot: str) -> None:
        """Args:
        state: of an earlier daemon.
        boot: identity of this boot; empty where it is not known, and nothing is taken over.
        """
        self._boot = boot
        self.version = 0
        """Grows whenever a counter has wrapped or begun again."""
        kept = state.devices if boot and state.boot == boot else {}
        self._known: dict[str, dict[str, Unwrap]] = {
            collector: {device: Unwrap(wrapped) for device, wrapped in devices.items()}
            for collector, devices in kept.items()
        }

    def correct(self, collector: Collector, blocks: dict[str, Block]) -> dict[str, Block]:
        """The blocks of one run as they are to be shown and analysed; the same ones where nothing has wrapped."""
        known = self._known.get(collector.name)
        if known is None and not any(map(_WRAPS, blocks.values())):
            return blocks
        known = self._known.setdefault(collector.name, {})
        gap, grown = 3 * collector.current_interval, {}
        for device, block in blocks.items():
            unwrap = known.get(device)
            if unwrap is None and block.layout.wraps:
                unwrap = known[device] = Unwrap()
            if unwrap is None:
                continue
            falls = unwrap.falls
            if (updated := unwrap.update(block, gap)) is not block:
                grown[device] = updated
            self.version += unwrap.falls - falls
        for device in known.keys() - blocks.keys():  # interfaces come and go: those that are gone leave nothing behind
            if not known[device].has_wrapped:
                del known[device]
        return blocks | grown if grown else blocks

    @property
    def state(self) -> WrapsState:
        """To keep over a restart: what the counters lost."""
        devices: dict[str, dict[str, list[Wrapped]]] = {}
        for collector, known in self._known.items():
            for device, unwrap in known.items():
                if unwrap.has_wrapped:
                    devices.setdefault(collector, {})[device] = unwrap.wrapped()
        return WrapsState(self._boot, devices)
