"""Probe results that are compared with marks, with the class of the path, from the exposed samples; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import combinations

from commwatch.findings.facts import Facts
from commwatch.findings.rules.gpu_ways import GpuWays, gpus_of, ways_of
from commwatch.node.capacity import planned_pcie_rate
from commwatch.node.gpu_models import gpu_model
from commwatch_exporters.node.model import Gpu, HostCopy, NvLink, Pair, PcieDevice, PeerAccess, Probe

ALWAYS = -math.inf
"""The age of a result does not matter: what is too old for the daemon is not there."""


def probes_of(facts: Facts, measure: str = "") -> list[Probe]:
    """Each probe of GPUs, or those that measure one thing; gloo is left out, which tests the host."""
    found = [probe for probe, _ in facts.each(Probe.info) if probe.backend != "gloo"]
    return [probe for probe in found if probe.collective == measure] if measure else found


def collectives(facts: Facts) -> list[Probe]:
    return [probe for probe in probes_of(facts) if probe.collective not in ("pairs", "host_copies")]


def all_reduce_probes(facts: Facts) -> list[Probe]:
    return [probe for probe in collectives(facts) if operation_of(probe) == "all_reduce"]


def operation_of(probe: Probe) -> str:
    return "all_reduce" if probe.collective in ("scaling", "training") else probe.collective


def size_of(probe: Probe) -> int:
    """Bytes of the large messages of a probe; 0 where that is not known."""
    return int(probe.bandwidth_bytes or 0)


def ranks_of(probe: Probe) -> int:
    """How many take part; 0 where that is not known."""
    return int(probe.ranks or 0)


def is_firm(probe: Probe) -> bool:
    """Whether what is expected of a probe is more than the word of a model."""
    return probe.expected_source in ("configured", "reference", "learned")


def is_since(probe: Probe, since: float) -> bool:
    """Whether a probe has a result that is not older than that, seconds since 1970."""
    finished_at = probe.last_completion_timestamp_seconds
    return since == ALWAYS or (finished_at is not None and finished_at >= since)


def utilization_of(probe: Probe) -> float | None:
    """Bus bandwidth of the last result as a share of what is expected; None where one of the two is not known."""
    rate, expected = probe.last_bus_bandwidth_bytes_per_second, probe.expected_bandwidth_bytes_per_second
    return rate / expected if rate is not None and expected else None


def all_reduces(facts: Facts, since: float = ALWAYS) -> list[tuple[Probe, float]]:
    """``results_over_all`` of all_reduces."""
    return results_over_all(facts, "all_reduce", since)


def results_over_all(facts: Facts, operation: str, since: float = ALWAYS) -> list[tuple[Probe, float]]:
    """Current results of a collective over all GPUs of the node, the largest messages first, with the bus bandwidth.

    Args:
        since: older ones are left out, seconds since 1970.
    """
    count = len(facts.derived(gpus_of))
    found = [
        (probe, rate)
        for probe in collectives(facts)
        if operation_of(probe) == operation and is_since(probe, since) and ranks_of(probe) == count > 1
        and (rate := probe.last_bus_bandwidth_bytes_per_second) is not None
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-size_of(one[0]), one[1]))


def copies(facts: Facts) -> Iterator[tuple[Probe, list[tuple[HostCopy, float]]]]:
    """By probe what it copied, in bytes per second."""
    measured = list(facts.each(HostCopy.bandwidth_bytes_per_second))
    for probe in probes_of(facts):
        if probe.collective == "host_copies":
            yield probe, [(copy, rate) for copy, rate in measured if copy.probe == probe.name]


def pair_rates(facts: Facts) -> list[tuple[Pair, float]]:
    """Of the last matrix of GPUs: what one sent to another while nothing flowed back, bytes per second."""
    gpus = facts.derived(gpus_of)
    return [
        (pair, rate)
        for pair, rate in facts.each(Pair.bandwidth_bytes_per_second)
        if pair.backend != "gloo" and {pair.source, pair.target} <= gpus.keys()
    ]


def gpu_name(facts: Facts) -> str:
    """Of all GPUs; empty where they differ."""
    names = {gpu.name for gpu, _ in facts.each(Gpu.info)}
    return names.pop() if len(names) == 1 else ""


def memory_sizes(facts: Facts) -> list[float] | None:
    """Bytes of memory of each GPU: as the driver gives it, else by the table; None where it is not known of each."""
    sizes: list[float] = []
    for gpu, _ in facts.each(Gpu.info):
        model = gpu_model(gpu.name)
        size = gpu.memory_size_bytes or (None if model is None else model.memory_bytes)
        if size is None:
            return None
        sizes.append(size)
    return sizes if sizes and len(sizes) == len(facts.derived(gpus_of)) else None


# --- classes of paths ---


def path_to_host(facts: Facts, address: str) -> tuple[int, int] | None:
    """Generation and lanes of the slowest link between a GPU and its host; None where not known."""
    above = [one for one in facts.derived(ways_of).above(address) if not one.startswith("pci")]
    return _narrowest(facts, (address, *above))


def path_under_switch(facts: Facts, first: str, second: str) -> tuple[int, int] | None:
    """The same between two GPUs that read each other's memory under one PCIe switch; None for all others."""
    ways = facts.derived(ways_of)
    if not (ways.only_over_pcie(first, second) and ways.share_switch(first, second)):
        return None
    reads = (facts.node.part(PeerAccess, *ends, "read") for ends in ((first, second), (second, first)))
    if any(read.status != 0 for read in reads):
        return None
    common = ways.common_bridge(first, second)
    up, down = (_below(ways, end, common) for end in (first, second))
    return _narrowest(facts, (first, *up, second, *down))


def _narrowest(facts: Facts, addresses: Iterable[str]) -> tuple[int, int] | None:
    """Generation and lanes of the slowest link above these devices at its best; None where one is not known.

    A link that is narrowed now counts as it should be: the class does not shrink with the fault.
    """
    links = []
    for address in addresses:
        gpu, device = facts.node.part(Gpu, address), facts.node.part(PcieDevice, address)
        generation = device.generation_max if gpu.pcie_generation_max is None else gpu.pcie_generation_max
        lanes = device.width_max_lanes if gpu.pcie_width_max_lanes is None else gpu.pcie_width_max_lanes
        if generation is None or lanes is None:
            return None
        link = (int(generation), int(lanes))
        rate = planned_pcie_rate(*link)
        if rate is None:
            return None
        links.append((rate, link))
    return min(links)[1]


def _below(ways: GpuWays, address: str, bridge: str) -> tuple[str, ...]:
    above = ways.above(address)
    return above[: above.index(bridge)]


def nvlink_version(facts: Facts) -> str:
    """Oldest version of the NVLinks that join all GPUs of the node; empty where they do not."""
    ways = facts.derived(ways_of)
    addresses = tuple(ways.gpus.values())
    if len(addresses) < 2 or any(ways.only_over_pcie(*pair) for pair in combinations(addresses, 2)):
        return ""
    return min((link.version for link, _ in facts.each(NvLink.info) if link.version), default="")


def pair_class(ways: GpuWays, first: str, second: str) -> str:
    """The kind of path between two GPUs, for people."""
    if ways.over_nvlink(first, second):
        return "NVLink"
    if not ways.only_over_pcie(first, second):
        return "NVLink, perhaps down"
    if ways.share_switch(first, second):
        return "one PCIe switch"
    return "PCIe across the CPU" if ways.meet_at_cpu(first, second) else "PCIe"
