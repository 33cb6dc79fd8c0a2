"""Which parts the traffic between GPUs uses, from what is exposed: the parts of probes and pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile

from commwatch.findings.facts import Facts
from commwatch_exporters.node.model import Gpu, NvLink, PcieDevice

PEERS = "peers"
"""Part of all traffic among GPUs: a result of a pair is none of copies between a GPU and the host."""


def by_pcie(address: str) -> str:
    """The part of a device that PCIe traffic uses."""
    return f"{address}/pcie"


def by_nvlink(address: str, link: str = "") -> str:
    """The part of a GPU or NVSwitch that NVLink traffic uses: all its links, or one."""
    return f"{address}/nvlink/{link}" if link else f"{address}/nvlink"


@dataclass(frozen=True, slots=True)
class GpuWays:
    """The GPUs of the node and what lies between them."""

    gpus: Mapping[str, str]
    """PCI address by NVML index."""
    bridges: Mapping[str, str]
    """By PCI address of a device: the bridge above it, or the host bridge (``pci0000:20``)."""
    far_ends: Mapping[str, Mapping[str, tuple[str, str]]]
    """By PCI address of a GPU and its link: type of the far end and its PCI address."""
    expected_links: Mapping[str, frozenset[str]]
    """By PCI address of a GPU: links that were active for the learning time."""

    def above(self, address: str) -> tuple[str, ...]:
        """All bridges above a device, the nearest first, the host bridge last."""
        found: list[str] = []
        while (address := self.bridges.get(address, "")) and address not in found:
            found.append(address)
        return tuple(found)

    def common_bridge(self, first: str, second: str) -> str:
        """Where the ways of two devices upwards meet; empty where they do not, or where that is not known."""
        others = self.above(second)
        return next((bridge for bridge in self.above(first) if bridge in others), "")

    def share_switch(self, first: str, second: str) -> bool:
        """Whether two GPUs lie under one PCIe switch, so that their traffic need not pass the CPU."""
        common = self.common_bridge(first, second)
        return bool(common) and not _is_host_bridge(common) and not _is_host_bridge(self.bridges.get(common, "pci"))

    def meet_at_cpu(self, first: str, second: str) -> bool:
        """Whether the traffic of two GPUs over PCIe has to pass the CPU; False where the bridges are not known."""
        ways = (self.above(first), self.above(second))
        return all(way and _is_host_bridge(way[-1]) for way in ways) and not self.share_switch(first, second)

    def over_nvlink(self, first: str, second: str) -> bool:
        """Whether NVLinks lead from one GPU to the other, directly or by way of switches."""
        ends = {one: self.far_ends.get(one, {}).values() for one in (first, second)}
        # One end may say where a link leads to while the other does not.
        direct = any(address in ends for some in ends.values() for _, address in some)
        return direct or all(any(kind == "switch" for kind, _ in some) for some in ends.values())

    def only_over_pcie(self, first: str, second: str) -> bool:
        """Whether no NVLink can lead from one GPU to the other."""
        unknown = self._links_to_somewhere(first) or self._links_to_somewhere(second)
        return not unknown and not self.over_nvlink(first, second)

    def pair(self, first: str, second: str) -> frozenset[str]:
        """The parts that traffic between two GPUs uses, by PCI address."""
        return self.surely(first, second) | self._links_to_somewhere(first) | self._links_to_somewhere(second)

    def surely(self, first: str, second: str) -> frozenset[str]:
        """The same without links that may lead to any other GPU."""
        if self.over_nvlink(first, second):
            return self._nvlinks(first, second) | self._nvlinks(second, first)
        return self._pcie_between(first, second)

    def between(self, addresses: Sequence[str]) -> frozenset[str]:
        """The parts that traffic among several GPUs uses; those up to the host for a single one."""
        if len(addresses) == 1:
            return self.to_host(addresses[0])
        return frozenset({PEERS}).union(*(self.pair(one, other) for one, other in combinations(addresses, 2)))

    def all(self) -> frozenset[str]:
        """The parts that traffic among all GPUs uses; empty where no GPU is known."""
        return self.between(tuple(self.gpus.values())) if self.gpus else frozenset()

    def to_host(self, address: str) -> frozenset[str]:
        """The parts that traffic between a GPU and the host uses."""
        return _pcie_parts((address, *self.above(address)))

    def _nvlinks(self, source: str, target: str) -> frozenset[str]:
        """The NVLinks of one GPU that lead to another: single ones, or all and the switches behind them."""
        ends = self.far_ends.get(source, {})
        direct = frozenset(by_nvlink(source, link) for link, (_, address) in ends.items() if address == target)
        if direct:
            return direct
        switches = {by_nvlink(address) for kind, address in ends.values() if kind == "switch" and address}
        return frozenset({by_nvlink(source), *switches})

    def _links_to_somewhere(self, address: str) -> frozenset[str]:
        """Expected links of a GPU whose far end is not known: one that is down may have led to any other GPU."""
        known = self.far_ends.get(address, {})
        return frozenset(by_nvlink(address, link) for link in self.expected_links.get(address, ()) if link not in known)

    def _pcie_between(self, first: str, second: str) -> frozenset[str]:
        common = self.common_bridge(first, second)
        ways = [takewhile(lambda bridge: bridge != common, self.above(end)) for end in (first, second)]
        # The bridge itself belongs to it: access control may send what could turn there up to the CPU.
        return _pcie_parts((first, *ways[0], second, *ways[1], common))


def _is_host_bridge(name: str) -> bool:
    return name.startswith("pci")


def _pcie_parts(addresses: Iterable[str]) -> frozenset[str]:
    return frozenset(by_pcie(address) for address in addresses if address and not _is_host_bridge(address))


def gpus_of(facts: Facts) -> Mapping[str, str]:
    """PCI address of each GPU by its NVML index; for ``Facts.derived``."""
    return {gpu.index: gpu.address for gpu, _ in facts.each(Gpu.info)}


WAYS = (Gpu.info, NvLink.info, NvLink.expected, PcieDevice.info)
"""Metrics that ``ways_of`` and ``all_parts`` read."""


def ways_of(facts: Facts) -> GpuWays:
    """The GPUs and what lies between them, as the page has it; for ``Facts.derived``."""
    far_ends: dict[str, dict[str, tuple[str, str]]] = {}
    for link, _ in facts.each(NvLink.info):
        if link.remote_type:
            far_ends.setdefault(link.address, {})[link.number] = (link.remote_type, link.remote_address)
    expected: dict[str, set[str]] = {}
    for link, flag in facts.each(NvLink.expected):
        if flag == 1:
            expected.setdefault(link.address, set()).add(link.number)
    return GpuWays(
        gpus=facts.derived(gpus_of),
        bridges={device.address: device.parent for device, _ in facts.each(PcieDevice.info)},
        far_ends=far_ends,
        expected_links={address: frozenset(links) for address, links in expected.items()},
    )


def all_parts(facts: Facts) -> frozenset[str]:
    """The parts that traffic among all GPUs uses; for ``Facts.derived``."""
    return facts.derived(ways_of).all()
