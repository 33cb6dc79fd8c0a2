"""Follows the drops of RDMA ports from run to run of their collector, and puts them into the store."""

from __future__ import annotations

from commwatch.node.port_flaps import PortFlaps
from commwatch.node.run import Collector
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block

GROUP = "rdma_port_flaps"
_COLLECTOR = "rdma"


class Flaps:
    """The drops of every RDMA port since the daemon started."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ports: dict[str, PortFlaps] = {}
        """By key of the port. A port that goes away and comes back goes on counting."""

    def after(self, collector: Collector, device: str, block: Block) -> None:
        """Take what one run of a collector gave for one device."""
        if collector.name != _COLLECTOR or not device:
            return
        gap = 3 * collector.current_interval
        port = self._ports.get(device)
        if port is None:
            name, number, *_ = block.layout.series[0][1]
            port = self._ports[device] = PortFlaps(name, number, gap)
        port.allow_gap(gap)
        self._store.put(GROUP, device, port.update(block), block.time + collector.lifetime)

    def drop_absent(self) -> None:
        """Say nothing of ports that are not here."""
        for device in self._store.group(GROUP).keys() - self._store.group(_COLLECTOR).keys():
            self._store.drop(GROUP, device)
