"""Follows counters that wrap from run to run of the collectors."""

from __future__ import annotations

from commwatch.analysis.wrap import Unwrap
from commwatch.collection import Collector
from commwatch_exporters.snapshot import Block, Layout


class Wraps:
    """Makes wrapping counters grow, in blocks on their way into the store.

    It lives in the daemon: a worker that is replaced would begin anew.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Layout, Unwrap | None]] = {}
        """By collector and device; None for a layout in which nothing wraps."""

    def correct(self, collector: Collector, blocks: dict[str, Block]) -> dict[str, Block]:
        """The blocks of one run as they are to be shown and analysed."""
        gap = 3 * collector.current_interval
        corrected = {}
        for device, block in blocks.items():
            layout, unwrap = self._known.get((collector.name, device), (None, None))
            if layout is not block.layout:
                if Unwrap.is_needed(block.layout):
                    unwrap = unwrap or Unwrap()
                self._known[collector.name, device] = (block.layout, unwrap)
            corrected[device] = block if unwrap is None else unwrap.update(block, gap)
        return corrected
