"""The series of a snapshot as the rules read them: labels prepared once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value

_Labels: TypeAlias = "tuple[dict[str, str], ...]"


class SeriesView:
    """One snapshot after the other; what is the same in both is not made again."""

    def __init__(self) -> None:
        self._snapshot = Snapshot(())
        self._labels: dict[Layout, dict[str, _Labels]] = {}
        """By layout and metric, only for metrics that rules ask for: a dictionary for each of 3,000 series takes
        longer to make than all rules together take to run."""
        self._blocks: dict[Layout, Block] = {}
        self._homes: dict[Series, Layout] = {}
        """Where single series that rules ask for stand."""

    def show(self, snapshot: Snapshot) -> None:
        """Read from this snapshot from now on."""
        self._snapshot = snapshot
        blocks = {block.layout: block for block in snapshot.blocks}
        if blocks.keys() != self._blocks.keys():
            self._labels = {layout: known for layout, known in self._labels.items() if layout in blocks}
            self._homes = {series: layout for series, layout in self._homes.items() if layout in blocks}
        self._blocks = blocks

    def samples(self, family: str) -> Iterator[tuple[dict[str, str], int | float]]:
        """Labels and number of each exposed series of a counter, gauge or info family.

        The labels are shared from look to look: whoever wants others copies them.
        """
        for block in self._snapshot.family_blocks(family):
            layout, values = block.layout, block.values
            for labels, position in zip(self._labels_of(layout, family), layout.families[family], strict=True):
                value = values[position]
                if value is not None:
                    yield labels, value

    def value(self, metric: str, *labels: str) -> Value:
        """The number of one series; None where it is absent."""
        series = (metric, labels)
        home = self._homes.get(series)
        if home is None:
            holding = [block.layout for block in self._snapshot.family_blocks(metric) if series in block.layout.index]
            if len(holding) != 1:  # not there, or, in error, twice
                return self._snapshot.value(metric, *labels)
            home = self._homes[series] = holding[0]
        return self._blocks[home].values[home.index[series]]

    def _labels_of(self, layout: Layout, family: str) -> _Labels:
        of_layout = self._labels.setdefault(layout, {})
        known = of_layout.get(family)
        if known is None:
            names = CATALOGUE[family].labels
            known = of_layout[family] = tuple(
                [dict(zip(names, layout.series[position][1], strict=True)) for position in layout.families[family]]
            )
        return known
