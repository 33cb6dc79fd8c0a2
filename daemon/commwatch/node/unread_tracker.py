"""Follows which devices could not be read whole, from run to run of the collectors, and puts them into the store."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Layout

GROUP: Final = "unread_devices"
_MOST: Final = 64
"""Devices and reasons of one collector that are named; interfaces of containers come by the thousand."""


class UnreadDevices:
    """By collector: the devices of which its last run could not read all that it should."""

    def __init__(self, store: Store, address_of: Callable[[str], str]) -> None:
        """
        Args:
            store: where they are named.
            address_of: a device by its address, where it is known by something else.
        """
        self._store = store
        self._address_of = address_of
        self._sources: dict[str, str] = {}
        """By collector that has named some."""

    def after(self, outcome: Outcome) -> None:
        """Take how one run of a collector went."""
        collector = outcome.collector
        found = {(absence.device, absence.reason) for absence in outcome.collected.absences if absence.device}
        if not found:
            if self._sources.pop(collector.name, None) is not None:
                self._store.drop(GROUP, collector.name)
            return
        self._sources[collector.name] = collector.source
        named = sorted({(collector.name, self._address_of(device), reason) for device, reason in found})
        series = tuple(("commwatch_collector_device_failing", labels) for labels in islice(named, _MOST))
        block = Block(Layout(series), (1,) * len(series), outcome.time)
        self._store.put(GROUP, collector.name, block, outcome.time + collector.lifetime)

    def rest(self, source: str) -> None:
        """The collectors of a source do not run now."""
        for name, its in self._sources.items():
            if its == source:
                self._store.drop(GROUP, name)
