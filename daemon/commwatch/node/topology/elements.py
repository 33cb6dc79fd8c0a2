"""The parts on the way of every ordered pair of GPUs: what a slow pair can have in common with another; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commwatch.node.topology.model import Gpu, Topology
from commwatch.node.topology.paths import THROUGH_CPU, chain, links_on, numa_of, nvlinks_between, pci_path, uplink
from commwatch.node.topology.reach import GpuPaths
from commwatch.node.topology.ways import Direction, Element, PairWay, Passage, Ways

_NODE = Element(
    "node", "node0", "the whole machine", "what all GPUs share: power limits, clocks, driver, BIOS settings, other load"
)


def ways_of(topology: Topology, paths: GpuPaths) -> Ways:
    """The parts on the way of every ordered pair of a probe's GPUs, by rank.

    Args:
        topology: as it is now: links that are down carry nothing.
        paths: made of this topology; names the GPUs by rank.
    """
    known = {gpu.address: gpu for gpu in topology.gpus}
    return ways_between(topology, [known[address] for address in paths.addresses])


def ways_between(topology: Topology, gpus: Sequence[Gpu]) -> Ways:
    """The parts on the way of every ordered pair of GPUs, by their places."""
    return {
        (place, other): _way(topology, source, target)
        for place, source in enumerate(gpus)
        for other, target in enumerate(gpus)
        if place != other
    }


class _Passages:
    """The parts of one way; one that is passed both out and in is passed through."""

    def __init__(self) -> None:
        self._found: dict[Element, Direction] = {}

    def add(self, element: Element, direction: Direction) -> None:
        """One more part, or one more time."""
        self._found[element] = direction if self._found.get(element, direction) == direction else "through"

    def way(self, peers: str) -> PairWay:
        """The way with these parts."""
        return PairWay(tuple(Passage(element, direction) for element, direction in self._found.items()), peers)


def _way(topology: Topology, source: Gpu, target: Gpu) -> PairWay:
    passages = _Passages()
    passages.add(_gpu(source), "out")
    passages.add(_gpu(target), "in")
    passages.add(_NODE, "through")
    if source.nvlinks is None or target.nvlinks is None:
        return passages.way("?")  # it may be NVLink, it may be PCIe
    peers = _over_nvlink(topology, source, target, passages) or _over_pcie(topology, source, target, passages)
    return passages.way(peers + _models(topology, source, target))


def _models(topology: Topology, source: Gpu, target: Gpu) -> str:
    """The suffix for the class of a path on a machine with GPUs of several models."""
    if len({gpu.name for gpu in topology.gpus}) == 1:
        return ""
    return " " + " - ".join(sorted((source.name, target.name)))


# --- over NVLink ---


def _over_nvlink(topology: Topology, source: Gpu, target: Gpu, passages: _Passages) -> str:
    """The NVLinks of a way and its class; empty where it has none."""
    refused = frozenset({source.address, target.address}) in topology.nvlink_refused
    links = nvlinks_between(topology, source, target)
    if refused or not links:
        return ""
    if any(link.active and link.remote_address == target.address for link in source.nvlinks or ()):
        first, second = sorted((source, target), key=topology.gpus.index)
        passages.add(_direct_links(first, second), "out" if source == first else "in")
        return f"NV{links}"
    passages.add(_links_to_switches(source), "out")
    passages.add(_links_to_switches(target), "in")
    # By way of the switches all should carry the same; one GPU with fewer links up is what we look for.
    return "NV switch"


def _links_to_switches(gpu: Gpu) -> Element:
    return Element("link_group", gpu.label, f"the NVLinks of {gpu.label}", _nvlink_check(gpu))


def _direct_links(first: Gpu, second: Gpu) -> Element:
    text = f"the NVLinks between {first.label} and {second.label}"
    return Element("link_group", f"{first.label}-{second.label}", text, _nvlink_check(first))


def _nvlink_check(gpu: Gpu) -> str:
    chosen = gpu.address if gpu.index is None else gpu.index
    return f"nvidia-smi nvlink -s -i {chosen} and nvidia-smi nvlink -e -i {chosen}"


# --- over PCIe ---


def _over_pcie(topology: Topology, source: Gpu, target: Gpu, passages: _Passages) -> str:
    """The PCIe links, switches and NUMA nodes of a way, and its class."""
    ends = source.address, target.address
    refused = frozenset(ends) in topology.peers_refused
    direct = pci_path(topology, *ends)
    through_cpu = refused or direct.kind in THROUGH_CPU
    directions: tuple[Direction, ...] = ("out", "in")
    for address, direction in zip(ends, directions, strict=True):
        above = chain(topology, address)
        if not through_cpu:
            above = above[: above.index(direct.common)]
        _climb(topology, above, direction, passages)
    if through_cpu:
        _through_cpu(topology, ends, passages)
    else:  # the switch in which the two ways meet
        device = topology.devices.get(direct.common)
        if device is not None and device.role == "switch_upstream":
            passages.add(_switch(direct.common), "through")
    links = [link for _, link in links_on(topology, direct)]
    widths = [(one.generation_max, one.lanes_max) for one in links if one.generation_max and one.lanes_max]
    slowest = min(widths, key=lambda one: 2.0 ** (one[0] or 0) * (one[1] or 0), default=None)
    limit = f" gen {slowest[0]} x{slowest[1]}" if slowest else ""
    return f"{'host ' if refused else ''}{direct.kind}{limit}"


def _climb(topology: Topology, way: Iterable[str], direction: Direction, passages: _Passages) -> None:
    """The links and switches from one end upwards."""
    for address in way:
        device = topology.devices.get(address)
        if device is None:
            continue
        if device.role == "switch_upstream":
            passages.add(_switch(address), direction)
        if uplink(topology, device) is not None:
            passages.add(_link(topology, address), direction)


def _through_cpu(topology: Topology, ends: tuple[str, str], passages: _Passages) -> None:
    numbers = tuple(numa_of(topology, address) for address in ends)
    directions: tuple[Direction, ...] = ("out", "in")
    for one, direction in zip(numbers, directions, strict=True):
        if one is not None:
            passages.add(_numa_node(one), direction)
    first, second = numbers
    if first is not None and second is not None and first != second:
        low, high = sorted((first, second))
        passages.add(_socket_link(low, high), "out" if first == low else "in")


# --- the parts ---


def _gpu(gpu: Gpu) -> Element:
    chosen = gpu.address if gpu.index is None else gpu.index
    check = f"clocks, power and ECC in nvidia-smi -q -i {chosen}"
    return Element("gpu", gpu.label, f"{gpu.label} ({gpu.address})", check)


def _link(topology: Topology, address: str) -> Element:
    gpu = next((one for one in topology.gpus if one.address == address), None)
    whose = f"of {gpu.label}" if gpu is not None else f"above switch {address}"
    check = f"LnkSta in lspci -vvs {address} and AER messages in the kernel log"
    return Element("pcie_link", address, f"the PCIe link {whose}", check)


def _switch(address: str) -> Element:
    check = f"lspci -tv and ACS (ACSCtl in lspci -vvs {address})"
    return Element("pcie_switch", address, f"PCIe switch {address}", check)


def _numa_node(number: int) -> Element:
    check = f"root complex and memory of NUMA node {number}: BIOS settings, IOMMU, memory errors, other load"
    return Element("numa_node", f"NUMA{number}", f"NUMA node {number}", check)


def _socket_link(low: int, high: int) -> Element:
    check = "speed and power management of the link between the CPUs in the BIOS settings"
    return Element("socket_link", f"NUMA{low}-NUMA{high}", f"the link between NUMA nodes {low} and {high}", check)
