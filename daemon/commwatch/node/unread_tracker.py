"""Follows which devices could not be read whole, from run to run of the collectors, and puts them into the store."""

from __future__ import annotations

from itertools import islice
from typing import Final

from commwatch.node.gpu_state import GROUP as STATES
from commwatch.node.inventory import IDENTITY, Inventory
from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Series, Value

GROUP: Final = "unread_devices"
_FAILING: Final = "commwatch_collector_device_failing"
_OF_INVENTORY: Final = "inventory"
_PATH: Final = "a path of job files"
"""In place of a path, which only the log of the daemon names: the endpoint is open."""
_MOST: Final = 64
"""Devices and reasons of one collector that are named; interfaces of containers come by the thousand."""


class UnreadDevices(Tracker):
    """By collector: the devices of which its last run could not read all that it should, and those with an expected
    NVLink, PCIe link or RDMA port of which nothing is known, even where no call failed."""

    def __init__(self, store: Store, inventory: Inventory) -> None:
        super().__init__(store)
        store.declare(GROUP, silent=[_FAILING])
        self._inventory = inventory
        self._needs_release: dict[str, bool] = {}
        """Whether a collector that has named some is paused during maintenance."""
        self._named: dict[str, frozenset[str]] = {}
        """By collector: the devices that its last run has named; an empty name where the run failed as a whole."""

    def follows(self, collector: Collector) -> bool:
        return True

    def on_batch(self, outcome: Outcome) -> None:
        """Take how one run of a collector went."""
        collector = outcome.collector
        self._named[collector.name] = frozenset(absence.device for absence in outcome.collected.absences)
        found = {(absence.device, absence.reason) for absence in outcome.collected.absences if absence.device}
        if not found:
            if self._needs_release.pop(collector.name, None) is not None:
                self._store.drop(GROUP, collector.name)
            return
        self._needs_release[collector.name] = collector.needs_release
        named = sorted({(collector.name, self._place_of(device), reason) for device, reason in found})
        failing: dict[Series, Value] = {(_FAILING, labels): 1 for labels in islice(named, _MOST)}
        self._store.show(GROUP, collector.name, failing, outcome.time, collector.lifetime)

    def on_tick(self, now: float) -> None:
        """Name the devices whose expected parts have no state and that no collector has named.

        Where a collector fails as a whole, or was starved, it is at fault and not each device.
        """
        silent = sorted(one for one in self._inventory.unread() if not {one[1], ""} & self._named.get(one[0], set()))
        failing: dict[Series, Value] = {(_FAILING, (*one, "unreadable")): 1 for one in islice(silent, _MOST)}
        self._store.show(GROUP, _OF_INVENTORY, failing, now)

    def _place_of(self, device: str) -> str:
        """A device by its address as far as that is known, also by the PCI bus for a GPU; no path of job files."""
        if device.startswith("/"):
            return _PATH
        known = self._inventory.address_of(device, self._store.devices(IDENTITY))
        states = self._store.get(STATES, "")
        for (gpu, pci_bus_id), state in states.samples("commwatch_gpu_state") if states is not None else ():
            if known == f"index:{gpu}" and state:
                return pci_bus_id or known
        return known

    def pause(self) -> None:
        """Name no device of the driver: its collectors do not run."""
        for name, needs_release in self._needs_release.items():
            if needs_release:
                self._store.drop(GROUP, name)
