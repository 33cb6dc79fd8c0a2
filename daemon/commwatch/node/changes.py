"""Which metrics show other numbers than at the look before: what rests on the others alone is as it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple, TypeAlias

from commwatch_exporters.snapshot import Block, Layout

_Parts: TypeAlias = "tuple[tuple[str, slice], ...]"
"""Metrics, each with the stretch of a block that holds it."""
_Runs: TypeAlias = "tuple[tuple[slice, _Parts], ...]"
"""The compared metrics of a layout, those that stand side by side together: most of the time nothing differs."""


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
        self._runs: Sequence[_Runs] = ()
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
            known = {block.layout: (block, runs) for block, runs in zip(self._blocks, self._runs, strict=True)}
            found = [known.get(layout) for layout in layouts]
            earlier = [None if one is None else one[0] for one in found]
            self._runs = [
                self._runs_of(layout) if one is None else one[1] for layout, one in zip(layouts, found, strict=True)
            ]
        moved = []
        for block, last, runs in zip(blocks, earlier, self._runs, strict=True):
            if block is last or not runs:
                continue
            if last is None:
                moved += [Moved(metric, block, None) for _, parts in runs for metric, _ in parts]
            elif (values := block.values) != (old := last.values):
                for run, parts in runs:
                    if values[run] != old[run]:
                        moved += [Moved(metric, block, last) for metric, part in parts if values[part] != old[part]]
        self.changed = {one.metric for one in moved} if is_same else self._metrics
        self._blocks, self._layouts = blocks, layouts
        return moved

    def _runs_of(self, layout: Layout) -> _Runs:
        found: list[tuple[slice, _Parts]] = []
        for metric, part in sorted(layout.slices.items(), key=lambda one: one[1].start):
            if metric not in self._metrics:
                continue
            if found and part.start <= found[-1][0].stop:
                run, parts = found.pop()
                found.append((slice(run.start, max(run.stop, part.stop)), (*parts, (metric, part))))
            else:
                found.append((part, ((metric, part),)))
        return tuple(found)
