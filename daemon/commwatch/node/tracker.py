"""Trackers follow the readings of collectors: one class for each thing that is worked out of them."""

from __future__ import annotations

from collections.abc import Collection

from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store


class Tracker:
    """Follows some collectors from run to run, and puts what it works out into the store.

    ``service/pipeline.py`` lists all of them, in the order in which they see a run.
    """

    collectors: Collection[str] = ()
    """Names of those that it follows."""
    version: int = 0
    """Grows with each event that must survive a crash of the daemon."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def follows(self, collector: Collector) -> bool:
        """Whether it sees the runs of a collector."""
        return collector.name in self.collectors

    def on_batch(self, outcome: Outcome) -> None:
        """Take one run of a collector that it follows; its blocks are in the store."""

    def on_tick(self, now: float) -> None:
        """Drop what is of devices that are no longer read: each 10 s, and at once when something else fails.

        Args:
            now: monotonic seconds.
        """

    def pause(self) -> None:
        """Maintenance begins: the driver is released, and what was read of it is no longer current."""

    def resume(self) -> None:
        """Maintenance has ended."""
