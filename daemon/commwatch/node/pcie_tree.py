"""The PCIe links above network adapters and switches, and whether they are degraded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from commwatch.node.pcie import ASPECTS, is_narrow, is_slow
from commwatch_exporters.snapshot import Block, Layout, Value

_BRIDGES = frozenset({"root_port", "switch_port"})


class Node(NamedTuple):
    """A device of ``commwatch_pcie_device_info``."""

    role: str
    parent: str
    """The bridge above it, or the host bridge."""


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


def port_above(device: str, nodes: Mapping[str, Node]) -> str | None:
    """The port at the upper end of a device's link; None where there is none, as on the bus of a host bridge.

    Ports take turns on the way down from a root port: root port, upstream port of a switch, downstream port, upstream
    port of the next switch. Between the upstream and the downstream port of one switch there is no link, and
    a downstream port shows the link below it.
    """
    parent = nodes[device].parent
    depth = 0
    above = parent
    while above in nodes and nodes[above].role in _BRIDGES and depth <= len(nodes):
        depth += 1
        above = nodes[above].parent
    return parent if depth % 2 else None


def device_links(nodes: Mapping[str, Node]) -> tuple[DeviceLink, ...]:
    """The links whose lower end is an adapter, an NVSwitch or a switch, each once; those of GPUs have other metrics.

    Args:
        nodes: the devices by address.
    """
    served: dict[str, set[str]] = {address: set() for address in nodes}
    for address, node in nodes.items():
        if node.role not in _BRIDGES:
            above = address
            while above in served and address not in served[above]:
                served[above].add(address)
                above = nodes[above].parent
    links = []
    for address, node in sorted(nodes.items()):
        port = port_above(address, nodes)
        if port is not None and node.role != "gpu":
            below = served[address]
            roles = frozenset(nodes[one].role for one in below)
            links.append(
                DeviceLink(address, node.role, port, roles, frozenset(one for one in below if nodes[one].role == "gpu"))
            )
    return tuple(links)


class DeviceLinkWatch:
    """The links above adapters and switches, seen from reading to reading of ``pci``."""

    def __init__(self) -> None:
        self._layouts: tuple[Layout, ...] = ()
        self._layout = Layout(())
        self._links: tuple[DeviceLink, ...] = ()
        self.nodes: Mapping[str, Node] = {}
        """The devices of the last reading by address."""

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
            self._adopt(layouts)
        values: list[Value] = []
        for link in self._links:
            lower, upper = blocks.get(link.device), blocks.get(link.port)
            is_judged = "nic" in link.below or not link.gpus.isdisjoint(loaded)
            narrow = is_narrow(_now(lower, link, "width_lanes"), None, _both(lower, upper, link, "width_max_lanes"))
            slow = is_slow(_now(lower, link, "generation"), _both(lower, upper, link, "generation_max"))
            values += (None if narrow is None else int(narrow), int(slow) if slow is not None and is_judged else None)
        return Block(self._layout, values, time)

    def _adopt(self, layouts: tuple[Layout, ...]) -> None:
        self._layouts = layouts
        infos = [labels for layout in layouts for name, labels in layout.series if name.endswith("_device_info")]
        self.nodes = {address: Node(role, parent) for address, role, parent, *_ in infos}
        self._links = device_links(self.nodes)
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
