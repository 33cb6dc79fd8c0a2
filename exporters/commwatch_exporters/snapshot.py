"""All that is known at one moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain

from commwatch_exporters.blocks import Block, Layout, Series, Value
from commwatch_exporters.catalogue import CATALOGUE, family_of

__all__ = ["Block", "Layout", "Series", "Snapshot", "Value"]


class Snapshot:
    """All that is known at one moment; every scrape until the next snapshot shares its rendering."""

    def __init__(
        self, blocks: Iterable[Block], hidden: Collection[str] = (), unexported: frozenset[str] = frozenset()
    ) -> None:
        """
        Args:
            blocks: what was read, in the order of the page.
            hidden: families that are in the blocks and not shown.
            unexported: families that are not on the metrics page; whoever reads the snapshot itself sees them.
        """
        self.blocks = tuple(blocks)
        self.layouts: Sequence[Layout] = [one.layout for one in self.blocks]
        self.hidden = hidden
        self.unexported = unexported
        self._families: dict[str, Sequence[Block]] = {}

    @cached_property
    def holders(self) -> Mapping[str, Sequence[int]]:
        """Which blocks hold series of each family, hidden ones too."""
        found: dict[str, list[int]] = {}
        for place, layout in enumerate(self.layouts):
            for family in layout.families:
                found.setdefault(family, []).append(place)
        return found

    @cached_property
    def starts(self) -> Sequence[int]:
        """The place of the first value of each block among ``values``."""
        return list(accumulate((len(layout.series) for layout in self.layouts), initial=0))

    def values(self) -> list[Value]:
        """The values of all blocks, one block after the other."""
        return [*chain.from_iterable([one.values for one in self.blocks])]

    def family_blocks(self, family: str) -> Sequence[Block]:
        """The blocks that hold series of one family."""
        found = self._families.get(family)
        if found is None:
            places = () if family in self.hidden else self.holders.get(family, ())
            found = self._families[family] = [self.blocks[place] for place in places]
        return found

    def samples(self, family: str) -> Iterator[tuple[dict[str, str], int | float]]:
        """Label names with values, and the number, of each exposed series of a counter, gauge or info family."""
        labels = CATALOGUE[family].labels
        for block in self.family_blocks(family):
            for position in block.layout.families[family]:
                value = block.values[position]
                if value is not None:
                    yield dict(zip(labels, block.layout.series[position][1], strict=True)), value

    def value(self, metric: str, *labels: str) -> Value:
        """The value of one series; None where it is absent."""
        for block in self.family_blocks(family_of(metric).name):
            value = block.get(metric, *labels)
            if value is not None:
                return value
        return None
