"""What probes gave that marks are held against, with the class of the path, from what is exposed; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from commwatch.findings.facts import Facts
from commwatch.findings.rules.gpu_ways import GpuWays, gpus_of, ways_of
from commwatch.node.capacity import planned_pcie_rate

ALWAYS = -math.inf
"""The age of a result does not matter: what is too old for the daemon is not there."""


class Conditions(NamedTuple):
    """Under what conditions a probe measures, and when it did."""

    probe: str
    measure: str
    """What it measures, as in the configuration."""
    size_bytes: int
    ranks: int
    source: str
    """Of what is expected: configured, reference, model or none."""
    finished_at: float | None
    """Of the last cycle with a result, seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Result:
    """The last result of a collective; None for what is not current."""

    conditions: Conditions
    bandwidth: float | None
    """Bus bandwidth, bytes per second."""
    expected: float | None

    @property
    def utilization(self) -> float | None:
        """Of what is expected."""
        return self.bandwidth / self.expected if self.bandwidth is not None and self.expected else None

    @property
    def operation(self) -> str:
        """The collective."""
        return "all_reduce" if self.conditions.measure == "scaling" else self.conditions.measure


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies between a GPU and pinned memory of its host."""

    gpu: str
    """NVML index."""
    address: str
    direction: str
    """host_to_device or device_to_host."""
    bandwidth: float
    expected: float | None


@dataclass(frozen=True, slots=True)
class PairRate:
    """What one GPU sent to another."""

    source: str
    """NVML index."""
    destination: str
    bandwidth: float
    """Bytes per second while nothing flowed back."""
    both_ways: float | None
    """The same while as much flowed back."""
    expected: float | None


def is_since(conditions: Conditions, since: float) -> bool:
    """Whether a probe has a result that is not older than that, seconds since 1970."""
    return since == ALWAYS or (conditions.finished_at is not None and conditions.finished_at >= since)


def all_conditions(facts: Facts) -> tuple[Conditions, ...]:
    """Of each probe of GPUs; gloo is left out, which tests the host. For ``Facts.derived``."""
    finished = {
        labels["probe"]: time for labels, time in facts.series("commwatch_probe_last_completion_timestamp_seconds")
    }
    return tuple(
        Conditions(
            labels["probe"], labels["collective"], int(labels["bandwidth_bytes"] or 0), int(labels["ranks"] or 0),
            labels["expected_source"], finished.get(labels["probe"]),
        )
        for labels, _ in facts.series("commwatch_probe_info")
        if labels["backend"] != "gloo"
    )  # fmt: skip


def results(facts: Facts) -> tuple[Result, ...]:
    """Of each probe of a collective over GPUs; for ``Facts.derived``."""
    rates, expected = (
        {labels["probe"]: rate for labels, rate in facts.series(f"commwatch_probe_{name}_bytes_per_second")}
        for name in ("last_bus_bandwidth", "expected_bandwidth")
    )
    return tuple(
        Result(one, rates.get(one.probe), expected.get(one.probe))
        for one in facts.derived(all_conditions)
        if one.measure not in ("pairs", "host_copies")
    )


def all_reduces(facts: Facts, since: float = ALWAYS) -> tuple[Result, ...]:
    """Current results of all_reduces over all GPUs of the node, the largest messages first.

    Args:
        facts: what is exposed.
        since: older ones are left out, seconds since 1970.
    """
    count = len(facts.derived(gpus_of))
    found = [
        one
        for one in facts.derived(results)
        if one.operation == "all_reduce" and one.bandwidth is not None and is_since(one.conditions, since)
        and one.conditions.ranks == count > 1
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.conditions.size_bytes, one.bandwidth)))


def copies(facts: Facts) -> Iterator[tuple[Conditions, list[Copy]]]:
    """By probe what it copied."""
    expected = {
        (labels["probe"], labels["gpu"], labels["direction"]): rate
        for labels, rate in facts.series("commwatch_probe_copy_expected_bandwidth_bytes_per_second")
    }
    measured = list(facts.series("commwatch_probe_copy_bandwidth_bytes_per_second"))
    for conditions in facts.derived(all_conditions):
        if conditions.measure == "host_copies":
            yield conditions, [
                Copy(labels["gpu"], labels["pci_bus_id"], labels["direction"], rate,
                     expected.get((conditions.probe, labels["gpu"], labels["direction"])))
                for labels, rate in measured
                if labels["probe"] == conditions.probe
            ]  # fmt: skip


def pair_rates(facts: Facts) -> tuple[PairRate, ...]:
    """Of the last matrix of GPUs; for ``Facts.derived``."""
    gpus = facts.derived(gpus_of)
    both, expected = (
        {(labels["src"], labels["dst"]): rate for labels, rate in facts.series(f"commwatch_pair_{name}_per_second")}
        for name in ("both_ways_bandwidth_bytes", "expected_bandwidth_bytes")
    )
    found = []
    for labels, rate in facts.series("commwatch_pair_bandwidth_bytes_per_second"):
        ends = (labels["src"], labels["dst"])
        if labels["backend"] != "gloo" and set(ends) <= gpus.keys():
            found.append(PairRate(*ends, rate, both.get(ends), expected.get(ends)))
    return tuple(found)


def gpu_name(facts: Facts) -> str:
    """Of all GPUs; empty where they differ."""
    names = {labels["name"] for labels, _ in facts.series("commwatch_gpu_info")}
    return names.pop() if len(names) == 1 else ""


# --- classes of paths ---


class PcieLinks(NamedTuple):
    """The best generation and number of lanes that each PCIe link can have, by address of a device on it."""

    generations: Mapping[str, float]
    lanes: Mapping[str, float]

    def narrowest(self, addresses: tuple[str, ...]) -> tuple[int, int] | None:
        """Generation and lanes of the slowest link; None where one is not known.

        A link that is narrowed now counts as it should be: the class does not shrink with the fault.
        """
        if not set(addresses) <= self.generations.keys() & self.lanes.keys():
            return None
        links = [(int(self.generations[one]), int(self.lanes[one])) for one in addresses]
        rates = [(planned_pcie_rate(*link), link) for link in links]
        known = [(rate, link) for rate, link in rates if rate is not None]
        return min(known)[1] if known and len(known) == len(rates) else None


def pcie_links(facts: Facts) -> PcieLinks:
    """What the links of GPUs and of the bridges above them can do; for ``Facts.derived``."""
    generations, lanes = (
        {labels["device"]: value for labels, value in facts.series(f"commwatch_pcie_device_link_{name}")}
        | {labels["pci_bus_id"]: value for labels, value in facts.series(f"commwatch_pcie_link_{name}")}
        for name in ("generation_max", "width_max_lanes")
    )
    return PcieLinks(generations, lanes)


def path_to_host(facts: Facts, address: str) -> tuple[int, int] | None:
    """Generation and lanes of the slowest link between a GPU and its host; None where not known."""
    above = [one for one in facts.derived(ways_of).above(address) if not one.startswith("pci")]
    return facts.derived(pcie_links).narrowest((address, *above))


def path_under_switch(facts: Facts, first: str, second: str) -> tuple[int, int] | None:
    """The same between two GPUs that read each other's memory under one PCIe switch; None for all others."""
    ways = facts.derived(ways_of)
    if not (ways.only_over_pcie(first, second) and ways.share_switch(first, second)):
        return None
    reads = {
        (labels["pci_bus_id"], labels["peer_pci_bus_id"]): status
        for labels, status in facts.series("commwatch_gpu_p2p_status")
        if labels["capability"] == "read"
    }
    if reads.get((first, second)) != 0 or reads.get((second, first)) != 0:
        return None
    common = ways.common_bridge(first, second)
    up, down = (_below(ways, end, common) for end in (first, second))
    return facts.derived(pcie_links).narrowest((first, *up, second, *down))


def _below(ways: GpuWays, address: str, bridge: str) -> tuple[str, ...]:
    above = ways.above(address)
    return above[: above.index(bridge)]


def nvlink_version(facts: Facts) -> str:
    """Oldest version of the NVLinks that join all GPUs of the node; empty where they do not."""
    ways = facts.derived(ways_of)
    addresses = tuple(ways.gpus.values())
    if len(addresses) < 2 or any(ways.only_over_pcie(*pair) for pair in combinations(addresses, 2)):
        return ""
    versions = {labels["version"] for labels, _ in facts.series("commwatch_nvlink_info") if labels["version"]}
    return min(versions, default="")


def pair_class(ways: GpuWays, first: str, second: str) -> str:
    """What lies between two GPUs, for people."""
    if ways.over_nvlink(first, second):
        return "NVLink"
    if not ways.only_over_pcie(first, second):
        return "NVLink, perhaps down"
    if ways.share_switch(first, second):
        return "one PCIe switch"
    return "PCIe across the CPU" if ways.meet_at_cpu(first, second) else "PCIe"
