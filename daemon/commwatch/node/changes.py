"""Which metrics show other numbers than at the look before: what rests on the others alone is as it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple, TypeAlias

from commwatch_exporters.snapshot import Block, Layout

_Stretches: TypeAlias = "tuple[tuple[str, slice], ...]"
"""The compared metrics of a layout, each with the stretch of a block that holds it."""


class Moved(NamedTuple):
    """A metric of which a block shows another number than before, or may."""

    metric: str
    block: Block
    earlier: Block | None
    """The last block of this layout; None where there was none at the look before."""


class Changes:
    """Compares the blocks of one look with those of the look before, in some metrics.

    Blocks in another order, or of other layouts, may mean anything: then each metric counts as changed.
    """

    def __init__(self, metrics: Iterable[str]) -> None:
        """
        Args:
            metrics: to compare.
        """
        self._metrics = frozenset(metrics)
        self._layouts: Sequence[Layout] | None = None
        self._blocks: Sequence[Block] = ()
        self._stretches: Sequence[_Stretches] = ()
        """Of each block."""
        self.changed: Set[str] = self._metrics
        """The metrics that are not known to be as they were at the look before; all before the second look."""

    def take(self, blocks: Sequence[Block], layouts: Sequence[Layout]) -> list[Moved]:
        """What moved since the look before, in the order of the blocks; ``changed`` holds for this look now.

        Args:
            blocks: all of this look.
            layouts: theirs, in the same order.
        """
        is_same = layouts == self._layouts
        earlier: Iterable[Block | None] = self._blocks
        if not is_same:
            known = {block.layout: (block, part) for block, part in zip(self._blocks, self._stretches, strict=True)}
            found = [known.get(layout) for layout in layouts]
            earlier = [None if one is None else one[0] for one in found]
            self._stretches = [
                self._of(layout) if one is None else one[1] for layout, one in zip(layouts, found, strict=True)
            ]
        moved = []
        for block, last, stretches in zip(blocks, earlier, self._stretches, strict=True):
            if block is last or not stretches:
                continue
            if last is None:
                moved += [Moved(metric, block, None) for metric, _ in stretches]
            elif (values := block.values) != (old := last.values):
                moved += [Moved(metric, block, last) for metric, part in stretches if values[part] != old[part]]
        self.changed = {one.metric for one in moved} if is_same else self._metrics
        self._blocks, self._layouts = blocks, layouts
        return moved

    def _of(self, layout: Layout) -> _Stretches:
        return tuple((metric, part) for metric, part in layout.slices.items() if metric in self._metrics)
