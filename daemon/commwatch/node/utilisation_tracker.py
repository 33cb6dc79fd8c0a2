"""Follows how much of its expected capacity each device uses, from run to run of the collectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from commwatch.node.inventory import Inventory
from commwatch.node.run import Collector
from commwatch.node.store import Store
from commwatch.node.utilisation import EthernetUse, NvlinkUse, PcieUse, RdmaUse
from commwatch_exporters.snapshot import Block


class _Use(Protocol):
    """Rates of one device, kept from reading to reading."""

    def allow_gap(self, seconds: float) -> None:
        """Readings further apart give no rate."""


_T = TypeVar("_T", bound=_Use)


class Uses:
    """The utilisation of every device, put into the store beside what it was computed from."""

    def __init__(self, store: Store, inventory: Inventory) -> None:
        self._store = store
        self._inventory = inventory
        self._kept: dict[tuple[str, tuple[str, ...]], _Use] = {}
        """By collector and the key of the device; a GPU is known by its labels, which a use bears."""
        self._families: dict[str, tuple[str, Callable[[Collector, str, Block], Block | None]]] = {
            "nvml_nvlink": ("nvlink_use", self._nvlink),
            "nvml_gpm": ("pcie_use", self._pcie),
            "network": ("ethernet_use", self._ethernet),
            "rdma": ("rdma_use", self._rdma),
        }

    def after(self, collector: Collector, device: str, block: Block) -> None:
        """Take what one run of a collector gave for one device."""
        family = self._families.get(collector.name)
        if family is None:
            return
        group, update = family
        values = update(collector, device, block)
        if values is not None:
            self._store.put(group, device, values, block.time + collector.lifetime)

    def drop_absent(self) -> None:
        """Say nothing of the use of devices that were not read."""
        for collector, (group, _) in self._families.items():
            for device in self._store.group(group).keys() - self._store.group(collector).keys():
                self._store.drop(group, device)

    def forget(self, collector: str, device: str | None = None) -> None:
        """Start again for a collector, or for one of its interfaces or RDMA ports."""
        for key in [key for key in self._kept if key[0] == collector and (device is None or key[1] == (device,))]:
            del self._kept[key]

    def _nvlink(self, collector: Collector, device: str, block: Block) -> Block | None:
        if not block.layout.series:
            return None
        gpu, pci_bus_id, *_ = block.layout.series[0][1]
        use = self._of(collector, (gpu, pci_bus_id), lambda gap: NvlinkUse(gpu, pci_bus_id, gap))
        return use.update(block, self._inventory.nvlink_expectation(device))

    def _pcie(self, collector: Collector, device: str, block: Block) -> Block | None:
        if not block.layout.series:
            return None
        gpu, pci_bus_id, *_ = block.layout.series[0][1]
        use = self._of(collector, (gpu, pci_bus_id), lambda gap: PcieUse(gpu, pci_bus_id, gap))
        return use.update(block, self._inventory.pcie_capacity(device))

    def _ethernet(self, collector: Collector, device: str, block: Block) -> Block | None:
        if not device:
            return None
        use = self._of(collector, (device,), lambda gap: EthernetUse(device, gap))
        # Of an interface that is no part of the inventory, such as a bond, no other speed is expected than it has.
        present = block.get("commwatch_ethernet_speed_bytes_per_second", device)
        return use.update(block, self._inventory.ethernet_capacity(device) or present)

    def _rdma(self, collector: Collector, device: str, block: Block) -> Block | None:
        if not device:
            return None
        rdma_device, port, *_ = block.layout.series[0][1]
        use = self._of(collector, (device,), lambda gap: RdmaUse(rdma_device, port, gap))
        return use.update(block, self._inventory.rdma_capacity(device))

    def _of(self, collector: Collector, labels: tuple[str, ...], make: Callable[[float], _T]) -> _T:
        gap = 3 * collector.current_interval
        use = self._kept.get((collector.name, labels))
        if use is None:
            use = self._kept[collector.name, labels] = make(gap)
        use.allow_gap(gap)
        return cast(_T, use)  # the collector decides the kind
