"""Follows the drops of RDMA ports from run to run of their collector, and puts them into the store."""

from __future__ import annotations

from commwatch.node.port_flaps import PortFlaps
from commwatch.node.run import Collector
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block

GROUP = "rdma_port_flaps"
_COLLECTOR = "rdma"
FORGOTTEN_SECONDS = 3600.0
"""A driver that is loaded again brings its ports back long before; the ports of a pod that has ended never come."""


class Flaps:
    """The drops of every RDMA port since the daemon started."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ports: dict[str, PortFlaps] = {}
        """By key of the port. One that comes back within an hour goes on counting."""

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

    def drop_absent(self, now: float) -> None:
        """Say nothing of ports that are not here, and forget those that have been gone for an hour.

        Args:
            now: monotonic seconds.
        """
        for device in self._store.group(GROUP).keys() - self._store.group(_COLLECTOR).keys():
            self._store.drop(GROUP, device)
        for device in [device for device, port in self._ports.items() if now - port.seen_at > FORGOTTEN_SECONDS]:
            del self._ports[device]
