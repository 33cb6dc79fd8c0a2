"""The parts on the way of every ordered pair of GPUs: what a slow pair can have in common with another; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commwatch.node.topology.model import Endpoint, Gpu, Nic, Topology
from commwatch.node.topology.paths import (
    THROUGH_CPU,
    chain,
    links_on,
    nearest_nics,
    numa_of,
    nvlinks_between,
    pci_path,
    uplink,
)
from commwatch.node.topology.reach import GpuPaths
from commwatch.node.topology.ways import Direction, Element, PairWay, Passage, Ways


def ways_of(topology: Topology, paths: GpuPaths) -> Ways:
    """The parts on the way of every ordered pair of a probe's GPUs, by rank.

    Args:
        topology: its first node has the GPUs; as it is now: links that are down carry nothing.
        paths: made of this topology; names the GPUs by rank.
    """
    known = {topology.part(end).address: end for end in topology.gpu_endpoints(0)}
    return ways_between(topology, [known[address] for address in paths.addresses])


def ways_between(topology: Topology, gpus: Sequence[Endpoint]) -> Ways:
    """The parts on the way of every ordered pair of GPUs of one or several machines, by their places."""
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


def _way(topology: Topology, source: Endpoint, target: Endpoint) -> PairWay:
    passages = _Passages()
    ends: tuple[tuple[Endpoint, Direction], ...] = ((source, "out"), (target, "in"))
    for end, direction in ends:
        passages.add(_gpu(topology, end), direction)
    if source.node != target.node:
        for end, direction in ends:
            near = nearest_nics(topology, end)
            if near is not None and len(near.nics) == 1:
                passages.add(_nic(topology, end, near.nics[0]), direction)
            passages.add(_node(end), direction)
        return passages.way(f"NET{_models(topology, source, target)}")
    passages.add(_node(source), "through")
    if any(_as_gpu(topology, end).nvlinks is None for end, _ in ends):
        return passages.way("?")  # it may be NVLink, it may be PCIe
    peers = _over_nvlink(topology, source, target, passages) or _over_pcie(topology, source, target, passages)
    return passages.way(peers + _models(topology, source, target))


def _models(topology: Topology, source: Endpoint, target: Endpoint) -> str:
    """What to add to the class of a way on a machine with GPUs of several models."""
    if len({gpu.name for node in topology.nodes for gpu in node.gpus}) == 1:
        return ""
    return " " + " - ".join(sorted(_as_gpu(topology, end).name for end in (source, target)))


def _as_gpu(topology: Topology, end: Endpoint) -> Gpu:
    gpu = topology.part(end)
    if not isinstance(gpu, Gpu):
        raise ValueError(f"{topology.label(end)} is no GPU")
    return gpu


# --- over NVLink ---


def _over_nvlink(topology: Topology, source: Endpoint, target: Endpoint, passages: _Passages) -> str:
    """The NVLinks of a way and its class; empty where it has none."""
    node = topology.nodes[source.node]
    ends = _as_gpu(topology, source), _as_gpu(topology, target)
    refused = frozenset(gpu.address for gpu in ends) in node.nvlink_refused
    links = nvlinks_between(node, *ends)
    if refused or not links:
        return ""
    if any(link.active and link.remote_address == ends[1].address for link in ends[0].nvlinks or ()):
        first, second = sorted((source, target))
        passages.add(_direct_links(topology, first, second), "out" if source == first else "in")
        return f"NV{links}"
    passages.add(_links_to_switches(topology, source), "out")
    passages.add(_links_to_switches(topology, target), "in")
    # By way of the switches all should carry the same; one GPU with fewer links up is what we look for.
    return "NV switch"


def _links_to_switches(topology: Topology, end: Endpoint) -> Element:
    label = topology.label(end)
    return Element("link_group", label, f"the NVLinks of {label}", _nvlink_check(_as_gpu(topology, end)))


def _direct_links(topology: Topology, first: Endpoint, second: Endpoint) -> Element:
    labels = topology.label(first), topology.label(second)
    text = f"the NVLinks between {labels[0]} and {labels[1]}"
    return Element("link_group", "-".join(labels), text, _nvlink_check(_as_gpu(topology, first)))


def _nvlink_check(gpu: Gpu) -> str:
    chosen = gpu.address if gpu.index is None else gpu.index
    return f"nvidia-smi nvlink -s -i {chosen} and nvidia-smi nvlink -e -i {chosen}"


# --- over PCIe ---


def _over_pcie(topology: Topology, source: Endpoint, target: Endpoint, passages: _Passages) -> str:
    """The PCIe links, switches and NUMA nodes of a way, and its class."""
    node = topology.nodes[source.node]
    ends = topology.part(source).address, topology.part(target).address
    refused = frozenset(ends) in node.peers_refused
    direct = pci_path(node, *ends)
    through_cpu = refused or direct.kind in THROUGH_CPU
    directions: tuple[Direction, ...] = ("out", "in")
    for address, direction in zip(ends, directions, strict=True):
        above = chain(node, address)
        if not through_cpu:
            above = above[: above.index(direct.common)]
        _climb(topology, source.node, above, direction, passages)
    if through_cpu:
        _through_cpu(topology, source.node, ends, passages)
    else:
        _climb_within(topology, source.node, direct.common, passages)
    links = [link for _, link in links_on(node, direct)]
    widths = [(one.generation_max, one.lanes_max) for one in links if one.generation_max and one.lanes_max]
    slowest = min(widths, key=lambda one: 2.0 ** (one[0] or 0) * (one[1] or 0), default=None)
    limit = f" gen {slowest[0]} x{slowest[1]}" if slowest else ""
    return f"{'host ' if refused else ''}{direct.kind}{limit}"


def _climb(topology: Topology, number: int, way: Iterable[str], direction: Direction, passages: _Passages) -> None:
    """The links and switches from one end upwards."""
    node = topology.nodes[number]
    for address in way:
        device = node.devices.get(address)
        if device is None:
            continue
        if device.role == "switch_upstream":
            passages.add(_switch(topology, number, address), direction)
        if uplink(node, device) is not None:
            passages.add(_link(topology, number, address), direction)


def _climb_within(topology: Topology, number: int, common: str, passages: _Passages) -> None:
    """The switch in which the two ways meet."""
    device = topology.nodes[number].devices.get(common)
    if device is not None and device.role == "switch_upstream":
        passages.add(_switch(topology, number, common), "through")


def _through_cpu(topology: Topology, number: int, ends: tuple[str, str], passages: _Passages) -> None:
    node = topology.nodes[number]
    numbers = tuple(numa_of(node, address) for address in ends)
    directions: tuple[Direction, ...] = ("out", "in")
    for one, direction in zip(numbers, directions, strict=True):
        if one is not None:
            passages.add(_numa_node(topology, number, one), direction)
    first, second = numbers
    if first is not None and second is not None and first != second:
        low, high = sorted((first, second))
        passages.add(_socket_link(topology, number, low, high), "out" if first == low else "in")


# --- the parts ---


def _prefix(topology: Topology, number: int) -> str:
    """What stands before the name of a part where there are several machines."""
    return "" if len(topology.nodes) == 1 else f"node{number}/"


def _gpu(topology: Topology, end: Endpoint) -> Element:
    gpu, label = _as_gpu(topology, end), topology.label(end)
    chosen = gpu.address if gpu.index is None else gpu.index
    check = f"clocks, power and ECC in nvidia-smi -q -i {chosen}"
    return Element("gpu", label, f"{label} ({gpu.address})", check)


def _node(end: Endpoint) -> Element:
    check = "what all GPUs share: power limits, clocks, driver, BIOS settings, other load"
    return Element("node", f"node{end.node}", "the whole machine", check)


def _nic(topology: Topology, end: Endpoint, nic: Nic) -> Element:
    name = ", ".join(nic.rdma_devices or nic.interfaces) or nic.address
    label = _prefix(topology, end.node) + nic.label
    return Element("nic", label, f"{label} ({name})", f"link speed, errors and cable of {name}")


def _link(topology: Topology, number: int, address: str) -> Element:
    node = topology.nodes[number]
    gpu = next((one for one in node.gpus if one.address == address), None)
    whose = f"of {_prefix(topology, number)}{gpu.label}" if gpu is not None else f"above switch {address}"
    check = f"LnkSta in lspci -vvs {address} and AER messages in the kernel log"
    return Element("pcie_link", _prefix(topology, number) + address, f"the PCIe link {whose}", check)


def _switch(topology: Topology, number: int, address: str) -> Element:
    name = _prefix(topology, number) + address
    return Element("pcie_switch", name, f"PCIe switch {name}", f"lspci -tv and ACS (ACSCtl in lspci -vvs {address})")


def _numa_node(topology: Topology, number: int, numa: int) -> Element:
    prefix = _prefix(topology, number)
    check = f"root complex and memory of NUMA node {numa}: BIOS settings, IOMMU, memory errors, other load"
    return Element("numa_node", f"{prefix}NUMA{numa}", f"NUMA node {prefix}{numa}", check)


def _socket_link(topology: Topology, number: int, low: int, high: int) -> Element:
    prefix = _prefix(topology, number)
    text = f"the link between NUMA nodes {prefix}{low} and {prefix}{high}"
    check = "speed and power management of the link between the CPUs in the BIOS settings"
    return Element("socket_link", f"{prefix}NUMA{low}-NUMA{high}", text, check)
