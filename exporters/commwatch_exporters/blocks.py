"""Series prepared once, with the text before each value on a page, and blocks of their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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

    __slots__ = ("counters", "families", "family_at", "index", "prefixes", "series", "slices", "wraps")

    def __init__(self, series: Iterable[Series]) -> None:
        self.series: tuple[Series, ...] = tuple(series)
        self.prefixes = tuple(_prefix(one) for one in self.series)
        """Of each value: the end of the line before, name and labels."""
        self.index = {one: position for position, one in enumerate(self.series)}
        if len(self.index) != len(self.series):
            raise ValueError("a layout names one series twice")
        self.family_at = tuple([family_of(name).name for name, _ in self.series])
        """The family of each value."""
        families: dict[str, list[int]] = {}
        for position, family in enumerate(self.family_at):
            families.setdefault(family, []).append(position)
        self.families = {name: tuple(positions) for name, positions in families.items()}
        """The positions of each family."""
        self.slices = {name: slice(positions[0], positions[-1] + 1) for name, positions in families.items()}
        """For each family the shortest stretch of the block that holds it; others may stand between."""
        self.counters = tuple(
            [position for position, family in enumerate(self.family_at) if CATALOGUE[family].type == "counter"]
        )
        """The positions of all counters."""
        self.wraps = any(CATALOGUE[name].wraps_at is not None for name in families)
        """Whether one of them wraps."""


class Block:
    """The values of one layout, all taken at one time; immutable once it stands in a snapshot."""

    __slots__ = ("layout", "time", "values")

    def __init__(self, layout: Layout, values: Sequence[Value], time: float) -> None:
        if len(values) != len(layout.series):
            raise ValueError(f"{len(values)} values for {len(layout.series)} series")
        self.layout = layout
        self.values = values
        self.time = time
        """Monotonic seconds at which the values were taken."""

    def get(self, metric: str, *labels: str) -> Value:
        """The value of one series; None where it was not read or is not of this block."""
        position = self.layout.index.get((metric, labels))
        return None if position is None else self.values[position]


def format_number(value: float) -> str:
    """A number as Prometheus and OpenMetrics read it back without loss."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
