"""Pages of a chosen number of series, as an 8-GPU node would give them; shared by the scrape benchmarks."""

from __future__ import annotations

import random
from collections.abc import Iterator

from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value

GPUS = 8
LINKS = 18
_FAST = ("commwatch_nvlink_transmit_bytes_total", "commwatch_nvlink_receive_bytes_total")


def _labels(gpu: int) -> tuple[str, str]:
    return str(gpu), f"0000:{gpu + 1:x}7:00.0"


def _fast_series(gpu: int) -> list[Series]:
    return [(name, (*_labels(gpu), str(link))) for name in _FAST for link in range(LINKS)]


def _slow_series() -> Iterator[Series]:
    for metric in CATALOGUE.values():
        if metric.type == "info" or metric.name in _FAST:
            continue
        if metric.labels == ("gpu", "pci_bus_id"):
            yield from [(metric.name, _labels(gpu)) for gpu in range(GPUS)]
        elif metric.labels == ("gpu", "pci_bus_id", "link"):
            yield from [(metric.name, (*_labels(gpu), str(link))) for gpu in range(GPUS) for link in range(LINKS)]


class Pages:
    """Snapshots of one node: the NVLink byte counters move from each to the next, all else stays.

    Args:
        series: Series of a snapshot; 288 of them move, about a tenth of 3,000.
    """

    def __init__(self, series: int) -> None:
        self._random = random.Random(1)  # noqa: S311  counters need no secrecy
        self._fast = [Layout(_fast_series(gpu)) for gpu in range(GPUS)]
        moving = sum(len(layout.series) for layout in self._fast)
        slow = list(_slow_series())[: series - moving]
        if moving + len(slow) != series:
            raise ValueError(f"between {moving} and {moving + len(list(_slow_series()))} series can be made")
        layout = Layout(slow)
        self._slow = Block(layout, [self._random.choice((0, 0, 0, 17, 12_345)) for _ in slow], 0.0)

    def next(self) -> Snapshot:
        """The snapshot a second later; none of its text is rendered yet."""
        fast = [Block(layout, self._values(layout), 0.0) for layout in self._fast]
        return Snapshot([*fast, self._slow])

    def _values(self, layout: Layout) -> list[Value]:
        return [self._random.randrange(10**15) for _ in layout.series]
