"""The node's current metrics: series prepared once, blocks of their values, and all blocks of one moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import TypeAlias

from commwatch_exporters.catalogue import CATALOGUE, family_of

Series: TypeAlias = tuple[str, tuple[str, ...]]
"""A metric name of the catalogue and the label values, in the order of the catalogue's label names.

A histogram's series carry the suffix ``_bucket`` (with ``le`` as an extra last label), ``_sum`` or ``_count``.
"""

Value: TypeAlias = int | float | None
"""A number, or None for what was not read: such a series is not exposed."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def _prefix(series: Series) -> str:
    name, values = series
    family = family_of(name)
    labels = family.labels_of(name)
    if family.type == "histogram" and name == family.name:
        raise ValueError(f"{name} is a histogram: its series end in _bucket, _sum or _count")
    if len(values) != len(labels):
        raise ValueError(f"{name} has labels {labels}, got values {values}")
    if not values:
        return f"\n{name} "
    pairs = ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in zip(labels, values, strict=True))
    return f"\n{name}{{{pairs}}} "


class Layout:
    """The series of a block, with the text before each value prepared; made once and used for every block alike."""

    __slots__ = ("counters", "families", "index", "prefixes", "series", "wraps")

    def __init__(self, series: Iterable[Series]) -> None:
        self.series: tuple[Series, ...] = tuple(series)
        self.prefixes = tuple(_prefix(one) for one in self.series)
        """Of each value: the end of the line before, name and labels."""
        self.index = {one: position for position, one in enumerate(self.series)}
        if len(self.index) != len(self.series):
            raise ValueError("a layout names one series twice")
        families: dict[str, list[int]] = {}
        for position, (name, _) in enumerate(self.series):
            families.setdefault(family_of(name).name, []).append(position)
        self.families = {name: tuple(positions) for name, positions in families.items()}
        self.counters = tuple(
            [position for position, (name, _) in enumerate(self.series) if family_of(name).type == "counter"]
        )
        self.wraps = any(CATALOGUE[name].wraps_at is not None for name in families)
        """Whether one of them wraps."""


class Block:
    """The values of one layout, all taken at one time; immutable once part of a snapshot."""

    __slots__ = ("expires", "layout", "time", "values")

    def __init__(self, layout: Layout, values: Sequence[Value], time: float) -> None:
        if len(values) != len(layout.series):
            raise ValueError(f"{len(values)} values for {len(layout.series)} series")
        self.layout = layout
        self.values = values
        self.time = time
        """Monotonic seconds at which the values were taken."""
        self.expires = float("inf")
        """Monotonic seconds until which they count as current, as the store sets it."""

    def get(self, metric: str, *labels: str) -> Value:
        """The value of one series; None where it was not read or is not of this block."""
        position = self.layout.index.get((metric, labels))
        return None if position is None else self.values[position]

    def items(self) -> Iterator[tuple[Series, Value]]:
        return zip(self.layout.series, self.values, strict=True)

    def labels(self, family: str) -> Iterator[tuple[str, ...]]:
        """The label values of each series of a family, whether or not it was read."""
        for position in self.layout.families.get(family, ()):
            yield self.layout.series[position][1]

    def samples(self, family: str) -> Iterator[tuple[tuple[str, ...], int | float]]:
        """The label values and the number of each series of a family that was read."""
        for position in self.layout.families.get(family, ()):
            value = self.values[position]
            if value is not None:
                yield self.layout.series[position][1], value


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
