"""Tracks how much of its expected capacity each device uses, from run to run of the collectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from commwatch.node.inventory import Inventory
from commwatch.node.pcie_samples import COLLECTOR as PCIE_SAMPLES
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.node.utilisation import EthernetUse, NvlinkUse, PcieUse, RdmaUse, SampledPcieUse, use_metrics
from commwatch_exporters.snapshot import Block, Layout

_Use: TypeAlias = NvlinkUse | EthernetUse | RdmaUse | PcieUse | SampledPcieUse


class _Family(NamedTuple):
    """Devices of one kind."""

    group: str
    """Of the store."""
    make: Callable[[tuple[str, ...], float], _Use]
    """Of the labels of a device, and the longest gap in seconds that a rate may span."""
    labels: int
    """How many labels of its first series name a device."""
    expected: Callable[[str, Block], Any]  # of its ``make``
    """The rate that a device should reach, by its key and its readings."""
    together: str = ""
    """Family of their metrics, where all devices share one block: GPUs, which are read together and rarely go."""


class _Kept(NamedTuple):
    """The use of a device, and for what it was made."""

    layout: Layout
    labels: tuple[str, ...]
    """Which it bears."""
    gap: float
    use: _Use


class _Shown(NamedTuple):
    """A block of several devices."""

    devices: tuple[str, ...]
    whose: tuple[tuple[str, ...], ...]
    """Their labels."""
    layout: Layout
    lifetime: float
    """Seconds for which it counts as current."""


class Uses(Tracker):
    """The utilisation of every device, put into the store beside what it was computed from."""

    def __init__(self, store: Store, inventory: Inventory) -> None:
        super().__init__(store)
        self._kept: dict[str, dict[str, _Kept]] = {}
        """By collector and by key of the device."""
        self._shown: dict[str, _Shown] = {}
        """By group of those that share a block."""
        self._families = {
            "nvml_nvlink": _Family(
                "nvlink_use", lambda labels, gap: NvlinkUse(labels[0], labels[1], gap), 2,
                lambda device, _: inventory.nvlink_expectation(device), "nvlink"),
            "nvml_gpm": _Family(
                "pcie_use", lambda labels, gap: PcieUse(labels[0], labels[1], gap), 2,
                lambda device, _: inventory.pcie_capacity(device), "pcie"),
            PCIE_SAMPLES: _Family(
                "pcie_sampled_use", lambda labels, _: SampledPcieUse(labels[0], labels[1]), 2,
                lambda device, _: inventory.pcie_capacity(device), "pcie"),
            # Of an interface that is no part of the inventory, such as a bond, no other speed is expected than it has.
            "network": _Family(
                "ethernet_use", lambda labels, gap: EthernetUse(labels[0], gap), 1,
                lambda device, block: inventory.ethernet_capacity(device)
                or block.get("commwatch_ethernet_speed_bytes_per_second", device)),
            "rdma": _Family(
                "rdma_use", lambda labels, gap: RdmaUse(labels[0], labels[1], gap), 2,
                lambda device, _: inventory.rdma_capacity(device)),
        }  # fmt: skip

        self.collectors = tuple(self._families)
        for collector, family in self._families.items():
            store.declare(family.group, [collector])

    def on_batch(self, outcome: Outcome) -> None:
        """Take a reading of the devices, and show their use."""
        collector, blocks = outcome.collector, outcome.collected.blocks
        family, gap, time = self._families[collector.name], 3 * collector.current_interval, 0.0
        all_kept = self._kept.setdefault(collector.name, {})
        for device, block in blocks.items():
            layout, time = block.layout, max(time, block.time)
            if not device or not layout.series:
                continue
            kept = all_kept.get(device)
            if kept is None or kept.layout is not layout or kept.gap != gap:
                kept = all_kept[device] = _keep(family, layout, gap, kept)
            kept.use.follow(block, family.expected(device, block))
            if not family.together:
                self._store.put(family.group, device, kept.use.block(block.time), block.time + collector.lifetime)
        if family.together:
            self._show(collector.name, family, blocks, time, collector.lifetime)

    def _show(self, collector: str, family: _Family, devices: Iterable[str], time: float, lifetime: float) -> None:
        all_kept = self._kept.get(collector, {})
        kept = {device: one for device in devices if (one := all_kept.get(device)) is not None}
        if not kept:
            self._store.drop(family.group, "")
            return
        whose = tuple([one.labels for one in kept.values()])
        known = self._shown.get(family.group)
        if known is None or known.whose != whose or known.lifetime != lifetime:
            layout = Layout((metric, labels) for metric in use_metrics(family.together) for labels in whose)
            known = self._shown[family.group] = _Shown(tuple(kept), whose, layout, lifetime)
        of_each = [one.use.values(time) for one in kept.values()]
        values = [values[place] for place in range(len(of_each[0])) for values in of_each]
        self._store.put(family.group, "", Block(known.layout, values, time), time + lifetime)

    def on_tick(self, now: float) -> None:
        """Drop the use of devices that are not read. Interfaces come and go by the thousand: those are forgotten."""
        for collector, family in self._families.items():
            here = self._store.devices(collector)
            if family.together:
                block, shown = self._store.get(family.group, ""), self._shown.get(family.group)
                if block is not None and shown is not None and not here >= set(shown.devices):
                    left = [device for device in shown.devices if device in here]
                    self._show(collector, family, left, block.time, shown.lifetime)
                continue
            for device in self._store.devices(family.group) - here:
                self._store.drop(family.group, device)
            kept = self._kept.get(collector, {})
            for device in kept.keys() - here:
                del kept[device]

    def pause(self) -> None:
        """Start again with the links of the GPUs: no rate spans the pause."""
        for name in ("nvml_nvlink", "nvml_gpm", PCIE_SAMPLES):
            self._kept.pop(name, None)


def _keep(family: _Family, layout: Layout, gap: float, known: _Kept | None) -> _Kept:
    labels = layout.series[0][1][: family.labels]
    use = known.use if known is not None and known.labels == labels else family.make(labels, gap)
    use.allow_gap(gap)
    return _Kept(layout, labels, gap, use)
