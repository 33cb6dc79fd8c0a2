"""Counters that cannot be trusted: left blank, gone stale, or standing at their end."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final

from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Block, Layout

BLANK: Final = 2
"""Supported, and yet without a number; or 0 while its twin counts."""
STALE: Final = 3
"""Stood still while its twin counted."""
SATURATED: Final = 4
"""Stands at the greatest number that the hardware's counter can hold: what happens from now on is not seen."""

TWIN_SECONDS: Final = 30.0
"""A counter stands still for so long, while its twin counts, before it is called stale."""
BUSY_SECONDS: Final = 60.0
BUSY_SHARE: Final = 0.9
"""A GPU that works this much of the time is fed over PCIe: kernel launches alone move bytes."""

_LINK_LABELS: Final = 3
"""Labels that name a link: index and address of its GPU, and its number."""
_LEAST_BYTES: Final = 2**20
_LEAST_PACKETS: Final = 10_000
"""How much a counter must move before its twin, which stands still, is judged."""


def _twins(family: str, others: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for direction in ("transmit", "receive"):
        for other in others:
            yield f"commwatch_{family}_{direction}_bytes_total", f"commwatch_{family}_{direction}_{other}_total"


TWINS: Final = (
    *_twins("nvlink", ("packets", "raw_bytes")),
    *_twins("rdma_port", ("packets",)),
    *_twins("ethernet_phy", ("packets",)),
)
"""Pairs that one transfer moves together: what passes in one direction, counted in two ways."""


def device_of(labels: tuple[str, ...]) -> str:
    """The device that a series is of, in one label: a link as ``0000:17:00.0/3``, a port as ``mlx5_0/1``."""
    # A GPU's index moves when a card is lost, so that its address alone names it.
    return "/".join(labels[1:] if labels and labels[0].isdecimal() else labels)


def counter_of(metric: str) -> str:
    """A metric as the label ``counter`` names it."""
    return metric.removeprefix("commwatch_")


@dataclass(slots=True)
class _Twin:
    """Two counters of one device, and how they stood when both last moved, or neither."""

    places: tuple[int, int]
    least: tuple[int, int]
    device: str
    counters: tuple[str, str]
    time: float = 0.0
    seen: tuple[float, float] | None = None

    def judge(self, block: Block) -> tuple[str, int] | None:
        """The counter that stands still while the other counts, and how it is to be called."""
        first, second = (block.values[place] for place in self.places)
        if first is None or second is None:
            self.seen = None
            return None
        if self.seen is None:
            self.time, self.seen = block.time, (first, second)
            return None
        moved = first - self.seen[0], second - self.seen[1]
        if (moved[0] > 0) == (moved[1] > 0) or min(moved) < 0:  # together, neither, or they began again
            self.time, self.seen = block.time, (first, second)
            return None
        mover = 0 if moved[0] > 0 else 1
        if moved[mover] < self.least[mover] or block.time - self.time < TWIN_SECONDS:
            return None
        return self.counters[1 - mover], STALE if self.seen[1 - mover] else BLANK


class CounterWatch:
    """The counters of one device and collector, watched from reading to reading.

    Args:
        layout: of the blocks that follow.
        blanks: whether a counter without a number is one that the driver left blank. Where a source keeps a place
            for counters that a device lacks, it is not.
    """

    def __init__(self, layout: Layout, *, blanks: bool) -> None:
        self._limits = []
        self._counters = []
        for place, (metric, labels) in enumerate(layout.series):
            family = CATALOGUE.get(metric)
            if family is None or family.type != "counter":
                continue
            key = (device_of(labels), counter_of(metric))
            if family.saturates_at is not None:
                self._limits.append((place, family.saturates_at, key))
            if blanks:
                # A lane or a bin of a link is silent with its link.
                self._counters.append((place, key, device_of(labels[:_LINK_LABELS])))
        self._twins = list(_twins_of(layout))

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to watch."""
        return bool(self._limits or self._counters or self._twins)

    def update(self, block: Block, silent: Container[str] = ()) -> dict[tuple[str, str], int]:
        """What is wrong with the counters of a reading: ``BLANK``, ``STALE`` or ``SATURATED`` by device and counter.

        Args:
            block: the reading.
            silent: links whose counters have no number for a reason: they are down or were not read.
        """
        found: dict[tuple[str, str], int] = {}
        if any(value is not None for value in block.values):
            for place, key, link in self._counters:
                if block.values[place] is None and link not in silent:
                    found[key] = BLANK
        for place, limit, key in self._limits:
            value = block.values[place]
            if value is not None and value >= limit:
                found[key] = SATURATED
        for twin in self._twins:
            judged = twin.judge(block)
            if judged is not None:
                found[twin.device, judged[0]] = judged[1]
        return found


def _twins_of(layout: Layout) -> Iterator[_Twin]:
    for first, second in TWINS:
        for place in layout.families.get(first, ()):
            labels = layout.series[place][1]
            other = layout.index.get((second, labels))
            if other is not None:
                yield _Twin(
                    places=(place, other),
                    least=(_least(first), _least(second)),
                    device=device_of(labels),
                    counters=(counter_of(first), counter_of(second)),
                )


def _least(metric: str) -> int:
    return _LEAST_BYTES if CATALOGUE[metric].unit == "bytes" else _LEAST_PACKETS


class FedWatch:
    """Finds the PCIe byte counters of a GPU blank: it works without pause, and not one byte is counted either way."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seen: tuple[float, float] | None = None

    def update(self, time: float, utilisation: float | None, transmitted: float | None, received: float | None) -> bool:
        """Take the next reading; whether the counters are blank.

        Args:
            time: monotonic seconds.
            utilisation: share of the time in which the GPU worked; None where not read.
            transmitted: PCIe bytes sent so far; None where not read.
            received: PCIe bytes received so far; None where not read.
        """
        earlier, self._seen = self._seen, None
        if utilisation is None or utilisation < BUSY_SHARE or transmitted is None or received is None:
            self._since = None
            return False
        self._seen = (transmitted, received)
        if earlier != self._seen or self._since is None:
            self._since = time
        return time - self._since >= BUSY_SECONDS
