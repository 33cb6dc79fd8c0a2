"""Which way traffic goes between two ends: classes as ``nvidia-smi topo -m`` names them; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from commwatch.node.pcie import is_narrow, is_slow, of_both_ends
from commwatch.node.topology.model import End, Gpu, Nic, PciDevice, PcieLink, Topology

PathClass: TypeAlias = Literal["X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", "?"]

CLASSES: tuple[PathClass, ...] = ("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", "?")
"""The nearest first."""

MEANINGS: dict[PathClass, str] = {
    "X": "itself",
    "NV": "this number of NVLinks, bonded",
    "PIX": "at most a single PCIe bridge: one PCIe switch",
    "PXB": "several PCIe bridges, no host bridge",
    "PHB": "a PCIe host bridge: through the CPU",
    "NODE": "several host bridges of one NUMA node: through the CPU",
    "SYS": "between NUMA nodes: through the CPUs and the link between them",
    "?": "not known: different host bridges, and the firmware gives no NUMA node",
}

THROUGH_CPU: frozenset[PathClass] = frozenset({"PHB", "NODE", "SYS", "?"})
NEAR: frozenset[PathClass] = frozenset({"X", "NV", "PIX", "PXB"})


@dataclass(frozen=True, slots=True)
class PciPath:
    """The way between two devices in the PCIe tree of one machine."""

    kind: PathClass
    hops: tuple[str, ...] = ()
    """Devices below the lowest common ancestor, from one end up, then from the other up: each has a link upwards."""
    bridges: int = 0
    common: str = ""
    """The lowest common ancestor; empty where the ends share none."""
    note: str = ""
    """Why the class is not known."""


@dataclass(frozen=True, slots=True)
class Path:
    """The way between two ends."""

    source: End
    target: End
    kind: PathClass
    pci: PciPath
    """The path without NVLink."""
    nvlinks: int = 0
    """Active NVLinks that connect the two, one by one or through NVSwitches."""

    @property
    def label(self) -> str:
        """``NV18``, ``PIX``: a cell of the matrix."""
        return f"NV{self.nvlinks}" if self.kind == "NV" else self.kind


def rank(kind: PathClass) -> int:
    """How far a class is; greater is farther."""
    return CLASSES.index(kind)


def chain(node: Topology, address: str) -> tuple[str, ...]:
    """A device, the bridges above it, and the host bridge at the end where the tree shows one."""
    found = []
    while address and address not in found:
        found.append(address)
        device = node.devices.get(address)
        address = device.parent if device is not None else ""
    return tuple(found)


def pci_path(node: Topology, first: str, second: str) -> PciPath:
    """The way between two PCI addresses.

    One switch is two levels of bridges in the tree: its upstream port and a downstream port for each device. So two
    devices have at most one bridge between them where neither has more than one bridge below the common ancestor.
    """
    if first == second:
        return PciPath("X")
    ways = chain(node, first), chain(node, second)
    for address, way in zip((first, second), ways, strict=True):
        if address not in node.devices or len(way) < 2:
            return PciPath("?", note=f"{address} is not in the PCI tree of sysfs")
    common = next((name for name in ways[0] if name in ways[1]), "")
    below = [way[: way.index(common)] if common else way[:-1] for way in ways]
    hops = (*below[0], *below[1])
    bridges = sum(len(part) - 1 for part in below)
    if common in node.devices:
        # One bridge more: the common ancestor itself.
        near = all(len(part) <= 2 for part in below)
        return PciPath("PIX" if near else "PXB", hops, bridges + 1, common)
    if common:
        return PciPath("PHB", hops, bridges, common)
    return _between_host_bridges(node, first, second, hops, bridges)


def _between_host_bridges(node: Topology, first: str, second: str, hops: tuple[str, ...], bridges: int) -> PciPath:
    numbers = [node.devices[address].numa_node for address in (first, second)]
    if None in numbers:
        silent = [address for address, number in zip((first, second), numbers, strict=True) if number is None]
        return PciPath("?", hops, bridges, note=f"no NUMA node is known of {' and '.join(silent)}")
    return PciPath("NODE" if numbers[0] == numbers[1] else "SYS", hops, bridges)


def path(topology: Topology, source: End, target: End) -> Path:
    """The way between two ends."""
    pci = pci_path(topology, source.address, target.address)
    links = None if pci.kind == "X" else nvlinks_between(topology, source, target)
    if links:
        return Path(source, target, "NV", pci, links)
    return Path(source, target, pci.kind, pci)


def nvlinks_between(node: Topology, first: End, second: End) -> int | None:
    """Active NVLinks that connect two GPUs, directly or through NVSwitches; None where not known."""
    if not isinstance(first, Gpu) or not isinstance(second, Gpu) or first.nvlinks is None or second.nvlinks is None:
        return None
    direct = min(_links_to(first, second.address), _links_to(second, first.address))
    return direct or min(switch_links(node, first), switch_links(node, second))


def _links_to(gpu: Gpu, address: str) -> int:
    return sum(link.active and link.remote_address == address for link in gpu.nvlinks or ())


def switch_links(node: Topology, gpu: Gpu) -> int:
    """Active NVLinks of a GPU that lead to an NVSwitch.

    In a virtual machine or behind an NVSwitch the driver may give neither kind nor address of the far end: an active
    link that leads to no GPU counts as one to a switch.
    """
    gpus = {one.address for one in node.gpus}
    return sum(
        link.active and (link.remote_type == "switch" or (not link.remote_type and link.remote_address not in gpus))
        for link in gpu.nvlinks or ()
    )


def uplink(node: Topology, device: PciDevice) -> PcieLink | None:
    """The link of a device with the port above it; None within a switch, where there is no link.

    The maximum is the smaller one of both ends, as far as they are known. The current state is that of the device or,
    if it does not answer, of the port.
    """
    above = node.devices.get(device.parent)
    if above is None:
        return None if device.role == "root_port" else device.link
    if above.role == "switch_upstream":
        return None
    return PcieLink(
        generation=device.link.generation or above.link.generation,
        lanes=device.link.lanes or above.link.lanes,
        generation_max=of_both_ends(device.link.generation_max, above.link.generation_max),
        lanes_max=of_both_ends(device.link.lanes_max, above.link.lanes_max),
    )


def links_on(node: Topology, way: PciPath) -> tuple[tuple[PciDevice, PcieLink], ...]:
    """The PCIe links on a way, each with the device at its lower end."""
    below = [node.devices[address] for address in way.hops if address in node.devices]
    return tuple((device, link) for device in below if (link := uplink(node, device)) is not None)


def through_host_memory(node: Topology, way: Path) -> bool:
    """Whether what goes over PCIe between two ends takes a halt in the host's memory; never for a NIC.

    NCCL lets GPUs reach each other past a host bridge only where the processor is AMD's (src/graph/paths.cc,
    ncclTopoCheckP2p). An unknown processor is taken for one of the others, which promises less.
    """
    if not isinstance(way.source, Gpu) or not isinstance(way.target, Gpu):
        return False
    near = way.pci.kind in ("PIX", "PXB")
    return _is_refused(node, way) or not (near or (node.cpu is not None and node.cpu.vendor == "amd"))


def links_between(node: Topology, way: Path) -> tuple[tuple[PciDevice, PcieLink], ...]:
    """The PCIe links that the traffic between two ends crosses, each with the device at its lower end.

    Two GPUs that may not read each other's memory cross all up to the host and down again, common ones twice.
    """
    if not _is_refused(node, way):
        return links_on(node, way.pci)
    ends = (way.source, way.target)
    above = [node.devices[name] for end in ends for name in chain(node, end.address) if name in node.devices]
    return tuple((device, link) for device in above if (link := uplink(node, device)) is not None)


def _is_refused(node: Topology, way: Path) -> bool:
    """Whether these are two GPUs that may not read each other's memory."""
    return frozenset({way.source.address, way.target.address}) in node.peers_refused


def narrowed(device: PciDevice, link: PcieLink) -> bool:
    """Whether a link runs below what both of its ends can do.

    The generation of a GPU's link falls in idle and is no evidence; lanes do not.
    """
    slow = device.role != "gpu" and is_slow(link.generation, link.generation_max)
    return bool(is_narrow(link.lanes, None, link.lanes_max) or slow)


@dataclass(frozen=True, slots=True)
class NearNics:
    """The NICs nearest to a GPU: those of the same class."""

    kind: PathClass
    nics: tuple[Nic, ...]
    """By index; the first is the one to name where one is wanted."""


def nearest_nics(node: Topology, gpu: Gpu) -> NearNics | None:
    """All NICs of the lowest class; None where the node has no NIC.

    Bridges are not counted, as neither nvidia-smi nor NCCL does (src/graph/topo.cc, ncclTopoGetLocal).
    """
    kinds = {nic: pci_path(node, gpu.address, nic.address).kind for nic in node.fabric_nics}
    if not kinds:
        return None
    nearest = min(kinds.values(), key=rank)
    return NearNics(nearest, tuple(nic for nic, kind in kinds.items() if kind == nearest))


def numa_of(node: Topology, address: str) -> int | None:
    """The NUMA node of a device; None where not known."""
    device = node.devices.get(address)
    return device.numa_node if device is not None else None


def cpus_of(node: Topology, address: str) -> str:
    """CPUs near a device as the kernel lists them, else those of its NUMA node; empty where not known."""
    device = node.devices.get(address)
    if device is None or device.cpus:
        return device.cpus if device is not None else ""
    return next((one.cpus for one in node.numa_nodes if one.number == device.numa_node), "")


def all_paths(topology: Topology, ends: Sequence[End]) -> tuple[Path, ...]:
    """The ways between all pairs of different ends, each pair once."""
    return tuple(path(topology, first, second) for place, first in enumerate(ends) for second in ends[place + 1 :])
