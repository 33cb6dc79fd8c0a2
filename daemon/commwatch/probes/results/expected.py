"""The expected result of a probe: configured, from published results, or from a model over the topology.

The record of a probe replaces a model's value by what it has learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, log2
from typing import TYPE_CHECKING, Literal, TypeAlias

from commwatch.probes.results.bus_bandwidth import bus_bandwidth, factor
from commwatch.probes.results.published import published, published_latency
from commwatch.probes.results.ring import narrowest_split, slowest_hop
from commwatch.state.records import PositiveRate, Seconds

if TYPE_CHECKING:
    from commwatch.node.topology.reach import GpuPaths
    from commwatch.probes.rank_plan import Operation, Step

ExpectedSource: TypeAlias = Literal["configured", "reference", "learned", "model"]

_BASE_SECONDS = 8.4e-6
_NVLINK_STEP_SECONDS = 3.4e-6
_PCIE_STEP_SECONDS = 5.7e-6
"""Start and one step of a ring with protocol Simple (NCCL src/graph/tuning.cc)."""


_LL_BASE_SECONDS = 6.6e-6
_LL_NVLINK_STEP_SECONDS = 0.6e-6
_LL_PCIE_STEP_SECONDS = 1.0e-6
"""The same with protocol LL, which calls of a few bytes take (also src/graph/tuning.cc)."""
_SMALL_BYTES = 1024
"""Up to here the time of a call hardly depends on its size: 12.5 to 15.7 us on 8 H20 (DeepEP issue 303)."""


@dataclass(frozen=True, slots=True)
class ExpectedLatency:
    """The expected time of a small call."""

    seconds: Seconds
    source: Literal["reference", "model"]
    basis: str
    """Where the number comes from, for the operator."""


@dataclass(frozen=True, slots=True)
class Expected:
    bytes_per_second: PositiveRate
    """Bus bandwidth."""
    source: ExpectedSource
    basis: str
    """Where the number comes from, for the operator."""

    @property
    def is_firm(self) -> bool:
        """Whether pairs that all fall short of it are slow: a model may be wrong for a machine as a whole."""
        return self.source != "model"


@dataclass(frozen=True, slots=True)
class _Way:
    bytes_per_second: float
    step_seconds: float
    basis: str


def expected_of_step(step: Step, paths: GpuPaths | None, configured: float | None = None) -> Expected | None:
    """The expected bandwidth of a step; None if there is no expectation, as for latency and for pairs, which
    ``expected_of_pair`` has one by one. A nominal link rate is never the answer.

    Args:
        step: of a cycle whose ranks have a GPU each.
        paths: between these GPUs; None if they are not known, and for gloo, which measures the host.
        configured: the operator's own number, bytes per second; it wins.
    """
    if step.purpose in ("latency", "work") or step.pairs:
        return None
    if configured is not None:
        return _configured(configured)
    if paths is None or not set(step.members) <= set(range(len(paths.addresses))):
        return None
    if step.operation in ("host_to_device", "device_to_host"):
        return _copy(paths.host_rates[step.members[0]])
    if len(step.members) < 2:
        return None
    if step.operation == "all_reduce" and (reference := _reference(paths, step)):
        return reference
    way = _all_to_all(paths, step.members) if step.operation == "all_to_all" else _ring(paths, step.members)
    return _model(step.operation, len(step.members), step.size_bytes, way)


def expected_of_pair(
    pair: tuple[int, int], size_bytes: int, paths: GpuPaths | None, configured: float | None = None
) -> Expected | None:
    """The expected bandwidth from one GPU to another, one way or both ways at once; None if there is no expectation.

    Args:
        pair: ranks of source and destination.
        size_bytes: of one call.
        paths: as for ``expected_of_step``, like the other arguments.
    """
    if configured is not None:
        return _configured(configured)
    found = None if paths is None else paths.between(*pair)
    if found is None or found.bytes_per_second is None:
        return None
    step_seconds = _NVLINK_STEP_SECONDS if found.nvlinks else _PCIE_STEP_SECONDS
    return _model("send_recv", 2, size_bytes, _Way(found.bytes_per_second, step_seconds, found.basis))


def _configured(bytes_per_second: float) -> Expected:
    return Expected(float(bytes_per_second), "configured", "expected_bandwidth in the configuration")


def _copy(rate: float | None) -> Expected | None:
    return None if rate is None else Expected(rate, "model", "PCIe to the host, NCCL's planning rate")


def _model(operation: Operation, ranks: int, size_bytes: int, way: _Way | None) -> Expected | None:
    """Start and steps of a ring, then the bytes that each rank passes on."""
    if way is None:
        return None
    seconds = _start_seconds(operation, ranks, way.step_seconds)
    seconds += size_bytes * factor(operation, ranks) / way.bytes_per_second
    return Expected(bus_bandwidth(operation, ranks, size_bytes, seconds), "model", f"{way.basis}, NCCL's own constants")


def _start_seconds(operation: Operation, ranks: int, step_seconds: float) -> float:
    """Seconds of a call before its bytes count: the start, and each step of the ring."""
    return _BASE_SECONDS + (2 if operation == "all_reduce" else 1) * (ranks - 1) * step_seconds


def _reference(paths: GpuPaths, step: Step) -> Expected | None:
    """A published result; they are all of GPUs that reach each other over NVLink: H100 PCIe is not H100 SXM."""
    if not _over_nvlink(paths, step.members):
        return None
    found = published(paths.common_name(step.members), len(step.members), step.size_bytes)
    return None if found is None else Expected(found[0], "reference", found[1])


def _over_nvlink(paths: GpuPaths, members: Sequence[int]) -> float:
    return narrowest_split(members, paths.direct_rate, paths.switch_rates.__getitem__)


def _ring(paths: GpuPaths, members: Sequence[int]) -> _Way | None:
    """Rings over NVLink where it joins all members, else the best ring over whatever lies between them."""
    over_nvlink = _over_nvlink(paths, members)
    if over_nvlink > 0:
        return _Way(over_nvlink, _NVLINK_STEP_SECONDS, f"rings over NVLink at {over_nvlink / 1e9:g} GB/s")
    slowest = slowest_hop(members, lambda first, second: _rate(paths, first, second))
    if slowest is None:
        return None
    hops = [paths.between(first, second) for first, second in combinations(members, 2)]
    basis = next(hop.basis for hop in hops if hop is not None and hop.bytes_per_second == slowest)
    return _Way(slowest, _PCIE_STEP_SECONDS, f"ring limited by {basis}")


def _rate(paths: GpuPaths, first: int, second: int) -> float | None:
    found = paths.between(first, second)
    return None if found is None else found.bytes_per_second


def _all_to_all(paths: GpuPaths, members: Sequence[int]) -> _Way | None:
    """Every two members exchange an equal share at the same time: the busiest link decides.

    The rate is that of the bytes that one member sends, over the time of the busiest link.
    """
    share_seconds: dict[str, float] = {}
    basis: dict[str, str] = {}

    def load(link: str, rate: float, text: str) -> None:
        share_seconds[link] = share_seconds.get(link, 0.0) + 1 / rate
        basis[link] = text

    over_pcie = False
    for first, second in combinations(members, 2):
        found = paths.between(first, second)
        if found is None or found.bytes_per_second is None:
            return None
        if found.through_switches:
            for one in (first, second):
                load(f"NVSwitches {one}", paths.switch_rates[one], found.basis)
        elif found.nvlinks:
            load(f"NVLink {first} {second}", found.bytes_per_second, found.basis)
        else:
            over_pcie = True
            for link, rate in found.pcie_links:
                load(link, rate, found.basis)
    busiest = max(share_seconds, key=share_seconds.__getitem__)
    rate = (len(members) - 1) / share_seconds[busiest]
    step_seconds = _PCIE_STEP_SECONDS if over_pcie else _NVLINK_STEP_SECONDS
    return _Way(rate, step_seconds, f"all pairs at once, limited by {basis[busiest]}")


def latency_mark(step: Step, paths: GpuPaths | None, *, factor: float, most: float) -> float:
    """Seconds above which the call of a latency step is slow, before the node has results of its own.

    The constants are those of protocol Simple. A call of a few bytes takes LL, which is faster: published are 12 to
    35 us for 8 GPUs over NVLink, where this gives 56 us.

    Args:
        step: of a cycle whose ranks have a GPU each.
        paths: what lies between these GPUs; None where not known: then ``most``.
        factor: times the start and the steps of a ring on this path.
        most: seconds, whatever the path.
    """
    if paths is None or not set(step.members) <= set(range(len(paths.addresses))):
        return most
    step_seconds = _NVLINK_STEP_SECONDS if _over_nvlink(paths, step.members) > 0 else _PCIE_STEP_SECONDS
    return min(most, factor * _start_seconds(step.operation, len(step.members), step_seconds))


def expected_latency(step: Step, paths: GpuPaths | None) -> ExpectedLatency | None:
    """The expected time of a latency step's call: published for such nodes, else by NCCL's constants of protocol LL.

    None if there is no expectation: for unknown paths, and for calls above 1 KiB, whose size counts.

    Args:
        step: of a cycle whose ranks have a GPU each.
        paths: as for ``expected_of_step``.
    """
    count = len(step.members)
    if paths is None or count < 2 or step.size_bytes > _SMALL_BYTES:
        return None
    if not set(step.members) <= set(range(len(paths.addresses))):
        return None
    over_nvlink = _over_nvlink(paths, step.members) > 0
    if over_nvlink and step.operation == "all_reduce":
        found = published_latency(paths.common_name(step.members), count)
        if found is not None:
            return ExpectedLatency(found[0], "reference", found[1])
    steps = min(2 * (count - 1), 2 * ceil(log2(count))) if step.operation == "all_reduce" else count - 1
    step_seconds = _LL_NVLINK_STEP_SECONDS if over_nvlink else _LL_PCIE_STEP_SECONDS
    basis = f"{steps} steps over {'NVLink' if over_nvlink else 'PCIe'}, NCCL's own constants of protocol LL"
    return ExpectedLatency(_LL_BASE_SECONDS + steps * step_seconds, "model", basis)
