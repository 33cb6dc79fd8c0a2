"""The PCIe links above network adapters and switches, and whether they are degraded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from commwatch.node.pcie import ASPECTS, is_narrow, is_slow
from commwatch_exporters.node.model import PCIE_PORTS, Node, PcieDevice, node_at
from commwatch_exporters.snapshot import Block, Layout, Snapshot, Value


class DeviceLink(NamedTuple):
    """The link above one device."""

    device: str
    """The lower end."""
    role: str
    port: str
    """The upper end."""
    below: frozenset[str]
    """Roles of the adapters, GPUs and NVSwitches that it serves."""
    gpus: frozenset[str]
    """Addresses of the GPUs that it serves."""


def device_links(devices: Iterable[PcieDevice]) -> tuple[DeviceLink, ...]:
    """The links whose lower end is an adapter, an NVSwitch or a switch, each once; those of GPUs have other metrics.

    Args:
        devices: of a node, all of them.
    """
    served: dict[str, list[PcieDevice]] = {}
    links = []
    by_address = sorted(devices, key=lambda device: device.address)
    for device in by_address:
        if device.role not in PCIE_PORTS:
            for one in (device, *device.above):
                served.setdefault(one.address, []).append(device)
    for device in by_address:
        if device.role != "gpu" and (port := device.port) is not None:
            below = served.get(device.address, [])
            gpus = frozenset(one.address for one in below if one.role == "gpu")
            roles = frozenset(one.role for one in below)
            links.append(DeviceLink(device.address, device.role, port.address, roles, gpus))
    return tuple(links)


class DeviceLinkWatch:
    """The links above adapters and switches, seen from reading to reading of ``pci``."""

    def __init__(self) -> None:
        self._layouts: tuple[Layout, ...] = ()
        self._layout = Layout(())
        self._links: tuple[DeviceLink, ...] = ()
        self.ports: Mapping[str, str] = {}
        """By address of a device: the port at the upper end of its link, where it has one."""

    def update(self, blocks: Mapping[str, Block], loaded: Collection[str], time: float) -> Block:
        """Judge the links.

        A link that a network adapter uses keeps its generation when idle. One that serves GPUs alone is judged while
        one of them is under load, and one of NVSwitches never: whether they slow down is not established. Without the
        maximum of both ends nothing is judged.

        Args:
            blocks: the present blocks of ``pci`` by device.
            loaded: addresses of the GPUs under load.
            time: monotonic seconds.
        """
        layouts = tuple(block.layout for block in blocks.values())
        if layouts != self._layouts:
            self._layouts = layouts
            with node_at(Snapshot(blocks.values())) as node:
                self._adopt(node)
        values: list[Value] = []
        for link in self._links:
            lower, upper = blocks.get(link.device), blocks.get(link.port)
            is_judged = "nic" in link.below or not link.gpus.isdisjoint(loaded)
            narrow = is_narrow(_now(lower, link, "width_lanes"), None, _both(lower, upper, link, "width_max_lanes"))
            slow = is_slow(_now(lower, link, "generation"), _both(lower, upper, link, "generation_max"))
            values += (None if narrow is None else int(narrow), int(slow) if slow is not None and is_judged else None)
        return Block(self._layout, values, time)

    def _adopt(self, node: Node) -> None:
        devices = node.pcie_devices
        self.ports = {device.address: port.address for device in devices if (port := device.port) is not None}
        self._links = device_links(devices)
        self._layout = Layout(
            ("commwatch_pcie_device_link_degraded", (link.device, link.role, aspect))
            for link in self._links
            for aspect in ASPECTS
        )


def _now(block: Block | None, link: DeviceLink, what: str) -> Value:
    return None if block is None else block.get(f"commwatch_pcie_device_link_{what}", link.device)


def _both(lower: Block | None, upper: Block | None, link: DeviceLink, what: str) -> Value:
    """The lesser maximum of both ends; None where one is not known."""
    metric = f"commwatch_pcie_device_link_{what}"
    maxima = [
        None if block is None else block.get(metric, address)
        for block, address in ((lower, link.device), (upper, link.port))
    ]
    return min(maximum for maximum in maxima if maximum is not None) if None not in maxima else None
