"""The fabric manager of a board whose NVSwitches do not show on the PCI bus."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from commwatch.node.inventory import Inventory
from commwatch.node.inventory_tracker import Suspecting
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Series, Value

GROUP: Final = "fabric_manager"
_SERVICES, _RUNNING, _NAME = "services", "commwatch_service_running", "nvidia-fabricmanager"


class FabricManagerDue(Tracker):
    """Shows the fabric manager as not running where the GPUs' board needs it and no process of it was ever seen.

    The reader of the services goes by the NVSwitches on the bus; those of HGX B200 and B300 do not show there.
    """

    collectors = (_SERVICES,)

    def __init__(self, store: Store, inventory: Inventory, readers: Collection[Suspecting]) -> None:
        super().__init__(store)
        store.declare(GROUP, self.collectors)
        self._inventory = inventory
        self._readers = readers

    def on_batch(self, outcome: Outcome) -> None:
        """Look at each reading of the services; one that could not be read may run."""
        services = self._store.get(_SERVICES, "")
        unread = {one.device for one in outcome.collected.absences}.union(*(one.suspects for one in self._readers))
        is_known = services is None or services.get(_RUNNING, _NAME) is not None
        is_missing = self._inventory.is_on_board and not is_known and unread.isdisjoint(("", _NAME))
        readings: dict[Series, Value] = {(_RUNNING, (_NAME,)): 0} if is_missing else {}
        self._store.show(GROUP, "", readings, outcome.time, outcome.collector.lifetime)
