"""Compares the NVLinks of each GPU with each other, from run to run of the collector."""

from __future__ import annotations

from typing import Final

from commwatch.node.link_shares import SHARE_SECONDS, LinkShares
from commwatch.node.run import Collector
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Layout

LINK_SHARES: Final = "nvlink_shares"
"""Group of the store."""

_LINKS, _IDENTITY = "nvml_nvlink", "nvml_identity"
_SWITCH = "switch"


class Shares:
    """What the slowest link of each GPU carried, put into the store for as long as its links are read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watches: dict[tuple[str, str], LinkShares] = {}
        """By the labels of the GPU."""
        self._far_ends: dict[str, tuple[Layout, dict[str, str]]] = {}
        """By device: where its links lead, and the layout of the identity that said so."""

    def after(self, collector: Collector, device: str, block: Block) -> None:
        """Take what one run of a collector gave for one device."""
        if collector.name != _LINKS or not block.layout.series:
            return
        gpu, pci_bus_id, *_ = block.layout.series[0][1]
        watch = self._watches.get((gpu, pci_bus_id))
        if watch is None:
            watch = self._watches[gpu, pci_bus_id] = LinkShares(gpu, pci_bus_id)
        shares = watch.update(block, self._where(device))
        if shares is not None:
            self._store.put(LINK_SHARES, device, shares, block.time + SHARE_SECONDS + collector.lifetime)

    def drop_absent(self) -> None:
        """Say nothing of the links of GPUs that were not read."""
        for device in self._store.group(LINK_SHARES).keys() - self._store.group(_LINKS).keys():
            self._store.drop(LINK_SHARES, device)

    def _where(self, device: str) -> dict[str, str]:
        """Where the links of a GPU lead, by number: to the switches together, or to one other GPU."""
        identity = self._store.get(_IDENTITY, device)
        if identity is None:
            return {}
        known = self._far_ends.get(device)
        if known is None or known[0] is not identity.layout:
            known = self._far_ends[device] = (identity.layout, _far_ends(identity.layout))
        return known[1]


def _far_ends(layout: Layout) -> dict[str, str]:
    ends = {}
    for position in layout.families.get("commwatch_nvlink_info", ()):
        _, _, link, _, remote_type, remote, _ = layout.series[position][1]
        if far_end := _SWITCH if remote_type == _SWITCH else remote:
            ends[link] = far_end
    return ends
