"""The expected rates between the GPUs of a probe and to the host, and the links that their paths share; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

from commwatch.node.capacity import HOST_MEMORY_SHARE, planned_nvlink_rate, planned_pcie_rate, planned_socket_rate
from commwatch.node.topology.bandwidth import is_emulated
from commwatch.node.topology.model import Gpu, PcieLink, Topology
from commwatch.node.topology.paths import Path, chain, links_between, path, switch_links, through_host_memory, uplink

BETWEEN_CPUS = "between CPUs"
"""Name of the way between two NUMA nodes among the shared links."""


@dataclass(frozen=True, slots=True)
class GpuReach:
    """The path between two GPUs; the same in both directions."""

    label: str
    """Class of the way with the NVLinks that should be there: ``NV4``, ``PIX``, ``SYS``."""
    nvlinks: int
    """NVLinks that should join the two, directly or through NVSwitches; 0 without."""
    bytes_per_second: float | None
    """Expected rate of the path, one direction, every link at the best of its ends; None if a link is not known."""
    basis: str
    """How the figure comes about, for the operator."""
    pcie_links: tuple[tuple[str, float], ...] = ()
    """Of a way over PCIe: its links, and the way between CPUs, each with what it should give in one direction. A link
    that each byte crosses twice, up to the host's memory and down again, is there twice."""
    shared: frozenset[str] = frozenset()
    """Those of them that are not the link of one of the two GPUs."""
    through_switches: bool = False
    """Whether the NVLinks lead to NVSwitches."""


@dataclass(frozen=True, slots=True)
class GpuPaths:
    """The GPUs of a probe by rank, and what should lie between them. No measurement.

    A link that is down counts as it should be, so that the expectation does not shrink with the fault.
    """

    addresses: tuple[str, ...]
    """PCI addresses by rank."""
    names: tuple[str, ...]
    """GPU models by rank; empty where the driver does not say."""
    pairs: Mapping[tuple[int, int], GpuReach]
    """By both ranks, in either order."""
    switch_rates: tuple[float, ...]
    """By rank: what its NVLinks to NVSwitches should give, bytes per second in one direction; 0 without."""
    host_rates: tuple[float | None, ...]
    """By rank: what a copy to or from the host should give, bytes per second; None where a link is not known."""

    def common_name(self, members: Sequence[int]) -> str:
        """The model of some ranks' GPUs; empty where they differ or it is not known."""
        names = {self.names[one] for one in members}
        return names.pop() if len(names) == 1 else ""

    def between(self, source: int, destination: int) -> GpuReach | None:
        """The path between two ranks; None if one of them is not here."""
        return self.pairs.get((source, destination))

    def direct_rate(self, first: int, second: int) -> float:
        """Bytes per second in one direction of the NVLinks that lead from one rank to the other without a switch."""
        found = self.between(first, second)
        if found is None or not found.nvlinks or found.through_switches:
            return 0.0
        return found.bytes_per_second or 0.0

    def shared_links(self, first: int, second: int) -> frozenset[str]:
        """Links of the PCIe tree, by the address of their lower end, and ``between CPUs``, that the traffic of two
        ranks crosses beside those of their own GPUs; empty over NVLink, and where nothing is known."""
        found = self.between(first, second)
        return frozenset() if found is None else found.shared


def gpu_paths(
    node: Topology, addresses: Sequence[str], expected_links: Mapping[str, Set[int]] = MappingProxyType({})
) -> GpuPaths | None:
    """The GPUs of a probe and what should lie between them.

    Args:
        addresses: PCI addresses by rank.
        expected_links: numbers of the NVLinks that each GPU should have, by PCI address, as learned; for a GPU without
            an entry, those that are active. Of a link that is down the driver does not report where it led; where the
            node has not kept that either, see ``_missing_between``.

    Returns:
        None where the topology lacks one of the GPUs.
    """
    known = {gpu.address: gpu for gpu in node.gpus}
    if not addresses or not set(addresses) <= known.keys():
        return None
    gpus = [known[address] for address in addresses]
    links = _NvLinks(node, expected_links)
    pairs: dict[tuple[int, int], GpuReach] = {}
    for first, second in combinations(range(len(gpus)), 2):
        way = path(node, gpus[first], gpus[second])
        reach = links.reach(gpus[first], gpus[second], way) or _over_pcie(node, way)
        pairs[first, second] = pairs[second, first] = reach
    return GpuPaths(
        addresses=tuple(addresses),
        names=tuple(gpu.name for gpu in gpus),
        pairs=pairs,
        switch_rates=tuple(links.to_switches(gpu) * (links.rate(gpu) or 0.0) for gpu in gpus),
        host_rates=tuple(_host_rate(node, gpu.address) for gpu in gpus),
    )


class _NvLinks:
    """The NVLinks that the GPUs of a node should have."""

    def __init__(self, node: Topology, expected: Mapping[str, Set[int]]) -> None:
        self._node = node
        self._down = {
            gpu.address: expected.get(gpu.address, set()) - {link.number for link in gpu.nvlinks or () if link.active}
            for gpu in node.gpus
        }
        """Numbers of those that are not up, by PCI address."""
        self._missing = {
            gpu.address: len(
                self._down[gpu.address] - {link.number for link in gpu.nvlinks or () if link.remote_address}
            )
            for gpu in node.gpus
        }
        """How many of them led where nothing says, by PCI address."""
        self._switched = any(switch_links(node, gpu) for gpu in node.gpus)

    def to_switches(self, gpu: Gpu) -> int:
        """Links of a GPU that should lead to NVSwitches: on a node with such links, its missing ones too."""
        return switch_links(self._node, gpu) + len(self._down[gpu.address]) if self._switched else 0

    def rate(self, gpu: Gpu) -> float | None:
        """The expected rate of one link of a GPU, bytes per second in one direction; None for an unknown version."""
        known = {rate for link in gpu.nvlinks or () if (rate := planned_nvlink_rate(link.version)) is not None}
        return min(known, default=None)

    def reach(self, first: Gpu, second: Gpu, way: Path) -> GpuReach | None:
        """The path between two GPUs if it is NVLink; None if it is PCIe."""
        if first.nvlinks is None or second.nvlinks is None:
            return GpuReach("?", 0, None, "the NVLinks were not read", (), _shared(self._node, way))
        direct = self._direct(first, second)
        count = direct or min(self.to_switches(first), self.to_switches(second))
        if not count:
            return None
        rates = self.rate(first), self.rate(second)
        if rates[0] is None or rates[1] is None:
            return GpuReach(f"NV{count}", count, None, "the version of the NVLinks is not known")
        each = min(rates[0], rates[1])
        basis = f"{count} NVLinks × {each / 1e9:g} GB/s"
        return GpuReach(f"NV{count}", count, count * each, basis, through_switches=not direct)

    def _direct(self, first: Gpu, second: Gpu) -> int:
        counts = [
            sum(
                link.remote_address == there.address and (link.active or link.number in self._down[here.address])
                for link in here.nvlinks or ()
            )
            for here, there in ((first, second), (second, first))
        ]
        missing = 0 if self._switched else self._missing_between(first.address, second.address)
        return min(counts) + missing

    def _missing_between(self, first: str, second: str) -> int:
        """Missing links that must lead from one GPU to the other.

        That is certain where one GPU misses as many as all others together: all that they miss led to it. Else a
        missing link counts nowhere, and the expectation is lower by it.
        """
        elsewhere = sum(self._missing.values())
        for here, there in ((first, second), (second, first)):
            if self._missing[here] and 2 * self._missing[here] == elsewhere:
                return self._missing[there]
        return 0


def _over_pcie(node: Topology, way: Path) -> GpuReach:
    kind, shared, by_host = way.pci.kind, _shared(node, way), through_host_memory(node, way)
    links: list[tuple[str, float]] = []
    narrowest: PcieLink | None = None
    for device, link in links_between(node, way):
        rate = _planned(node, link)
        if rate is None:
            why = "emulated" if is_emulated(node, link) else "not known"
            return GpuReach(kind, 0, None, f"the PCIe link of {device.address} is {why}", shared=shared)
        if by_host and device.role == "gpu":
            rate *= HOST_MEMORY_SHARE
        if not links or rate < min(one for _, one in links):
            narrowest = link
        links.append((device.address, rate))
    if narrowest is None:
        return GpuReach(kind, 0, None, "no PCIe link is known", shared=shared)
    basis = f"PCIe gen {narrowest.generation_max} x{narrowest.lanes_max}"
    if by_host:
        basis += ", through host memory"
    cpu = node.cpu
    socket = planned_socket_rate(cpu.vendor, cpu.family, cpu.model) if cpu is not None and kind == "SYS" else None
    if socket is not None:
        if socket < min(rate for _, rate in links):
            basis = "the link between the CPUs"
        links.append((BETWEEN_CPUS, socket))
    return GpuReach(kind, 0, min(rate for _, rate in links), basis, tuple(links), shared)


def _shared(node: Topology, way: Path) -> frozenset[str]:
    """The parts of a PCIe path that other GPUs may need too; if no NUMA node is known, the path may lead between
    CPUs."""
    beyond = {BETWEEN_CPUS} if way.pci.kind in ("SYS", "?") else set()
    return frozenset(beyond | {device.address for device, _ in links_between(node, way) if device.role != "gpu"})


def _host_rate(node: Topology, address: str) -> float | None:
    """NCCL's planning rate of the narrowest link between a GPU and the root of the tree."""
    devices = [node.devices[one] for one in chain(node, address) if one in node.devices]
    rates = [_planned(node, link) for device in devices if (link := uplink(node, device)) is not None]
    known = [rate for rate in rates if rate is not None]
    return min(known) if known and len(known) == len(rates) else None


def _planned(node: Topology, link: PcieLink) -> float | None:
    if link.generation_max is None or link.lanes_max is None or is_emulated(node, link):
        return None
    return planned_pcie_rate(link.generation_max, link.lanes_max)
