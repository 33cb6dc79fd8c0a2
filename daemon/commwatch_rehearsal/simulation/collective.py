"""Time of an operation between GPUs on a simulated node: latency plus size over bandwidth, by ring or by tree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from commwatch_rehearsal.simulation.transfer import Medium, Way, Ways

_US = 1e-6
_TREE_SHARE = 0.92
"""Bandwidth of trees as a share of that of rings, in NCCL's planning."""
_COPY_SECONDS = 6 * _US
"""Assumed: start of one copy between GPU and host."""

_SWITCH_SUMS: Mapping[int, tuple[float, float]] = {6: (83 * _US, 15.2e9), 7: (141 * _US, 26.9e9)}
"""All-reduce by NVLink SHARP: start, and bytes of the buffer per second and link, by NVML's code of NVLink's version.

Fitted to the published results of 8 H100 and 8 B200 from 64 MiB on (``probes/results/published.py``).
"""
_SWITCH_SUMS_FROM_BYTES = 32 * 2**20
"""Smaller buffers take rings here, which give the same on 8 H100."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
COPIES = ("host_to_device", "device_to_host")
PRODUCTS = ("matrix_product", "overlapped")
_PRODUCT_SECONDS = 250 * _US
"""Assumed, of any GPU: 2 × 4096³ operations in half precision at 550 TFLOP/s."""
_HIDDEN_SHARE = 0.85
"""Assumed: what both at once hide of the shorter one. A sum takes multiprocessors from the product."""


@dataclass(frozen=True, slots=True)
class _Protocol:
    """How NCCL sends: at once with a flag beside every word, or in large pieces with a fence after each."""

    base_seconds: float
    step_seconds: Mapping[Medium, float]
    """One step of a small message."""
    share: float
    """Payload of what is sent."""


_PROTOCOLS = (
    _Protocol(
        6.6 * _US, {"nvlink": 0.6 * _US, "switch": 1.0 * _US, "host": 1.9 * _US, "sockets": 2.4 * _US}, share=0.5
    ),
    _Protocol(
        8.4 * _US, {"nvlink": 3.4 * _US, "switch": 5.7 * _US, "host": 8.0 * _US, "sockets": 9.0 * _US}, share=1.0
    ),
)
"""LL and Simple with the figures that NCCL plans with; those by way of the host are assumed."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of one call without variation."""

    latency_seconds: float
    """Part that the size does not change."""
    transfer_seconds: float
    late: frozenset[int] = frozenset()
    """GPUs that slow parts delay; they finish last."""

    @property
    def seconds(self) -> float:
        """The whole call."""
        return self.latency_seconds + self.transfer_seconds


@dataclass(frozen=True, slots=True)
class _Route:
    """One manner of a collective."""

    steps: int
    sent_bytes: float
    """Bytes that cross each of its hops."""
    hops: Sequence[tuple[int, int]]


def send_recv_cost(ways: Ways, size_bytes: int, source: int, destination: int, both_ways: bool) -> Cost:
    """One message from a GPU to another; ``both_ways``: as much comes back at the same time."""
    way = ways.between(source, destination)
    rate = way.bytes_per_second * (way.both_ways_share if both_ways else 1.0)
    hops = {(source, destination): Way(way.medium, rate, 1.0, way.bandwidth_factor, way.latency_factor)}
    return _cheapest([_Route(1, size_bytes, tuple(hops))], hops)


def copy_cost(ways: Ways, size_bytes: int, gpu: int) -> Cost:
    """One copy between a GPU and pinned memory of its host, in either direction."""
    way = ways.host(gpu)
    seconds = size_bytes / (way.bytes_per_second * way.bandwidth_factor)
    return Cost(_COPY_SECONDS * way.latency_factor, seconds, frozenset({gpu} if _slow(way) else ()))


def product_cost(ways: Ways, operation: str, size_bytes: int, gpus: Sequence[int]) -> Cost:
    """A product of matrices on each GPU, alone or with an all_reduce at the same time; arguments as there."""
    if operation == "matrix_product":
        return Cost(_PRODUCT_SECONDS, 0.0)
    alone = collective_cost(ways, "all_reduce", size_bytes, gpus)
    longer, shorter = max(alone.seconds, _PRODUCT_SECONDS), min(alone.seconds, _PRODUCT_SECONDS)
    return Cost(0.0, longer + (1 - _HIDDEN_SHARE) * shorter, alone.late)


def collective_cost(ways: Ways, operation: str, size_bytes: int, gpus: Sequence[int]) -> Cost:
    """One call of a collective over some GPUs, in the order of their ranks.

    Ring or tree, LL or Simple: what would be fastest if no part were slow, for NCCL chooses before it measures. A ring
    goes through the GPUs in their order; where NVLinks join every two of them without a switch, rings in every order
    share all links. Each hop is taken with as much flowing back.

    Args:
        operation: one of ``COLLECTIVES``.
        size_bytes: S of nccl-tests: all_gather, reduce_scatter and all_to_all count what a rank has of all ranks.
        gpus: places in the preset.
    """
    if operation == "all_to_all":
        return _all_to_all(ways, size_bytes, gpus)
    hops = {hop: _in_collective(ways.between(*hop)) for hop in permutations(gpus, 2)}
    if operation == "all_reduce" and size_bytes >= _SWITCH_SUMS_FROM_BYTES:
        version, links = ways.summing_links(gpus)
        if version in _SWITCH_SUMS:
            ring = {hop: hops[hop] for hop in zip(gpus, (*gpus[1:], gpus[0]), strict=True)}
            return _summed_by_switches(size_bytes, links, *_SWITCH_SUMS[version], ring)
    routes = list(_routes(operation, size_bytes, gpus))
    rate = ways.joined(gpus)
    if rate is not None:
        hops = {hop: Way("nvlink", rate, 1.0, way.bandwidth_factor, way.latency_factor) for hop, way in hops.items()}
        routes = [_Route(route.steps, route.sent_bytes, tuple(hops)) for route in routes]
    return _cheapest(routes, hops)


def _routes(operation: str, size_bytes: int, gpus: Sequence[int]) -> Iterator[_Route]:
    count = len(gpus)
    ring = [(here, gpus[(place + 1) % count]) for place, here in enumerate(gpus) if count > 1]
    part = (count - 1) / count * size_bytes
    if operation == "all_reduce":
        yield _Route(2 * (count - 1), 2 * part, ring)
        depth = math.ceil(math.log2(count))
        branches = [(gpus[child], gpus[(child - 1) // 2]) for child in range(1, count)]
        both = [*branches, *((above, below) for below, above in branches)]
        yield _Route(2 * depth, 2 * size_bytes / _TREE_SHARE, both)
    elif operation == "broadcast":
        yield _Route(count - 1, size_bytes, ring[:-1])
    else:
        yield _Route(count - 1, part, ring)


def _in_collective(way: Way) -> Way:
    return Way(way.medium, way.bytes_per_second * way.both_ways_share, 1.0, way.bandwidth_factor, way.latency_factor)


def _cheapest(routes: Sequence[_Route], hops: Mapping[tuple[int, int], Way]) -> Cost:
    """The cost of the route and protocol that would be fastest if no part were slow."""
    costs = [
        (_cost(route, protocol, hops, planned=True).seconds, position, protocol)
        for position, route in enumerate(routes)
        for protocol in _PROTOCOLS
    ]
    _, position, protocol = min(costs, key=lambda one: one[0])
    return _cost(routes[position], protocol, hops, planned=False)


def _cost(route: _Route, protocol: _Protocol, hops: Mapping[tuple[int, int], Way], *, planned: bool) -> Cost:
    latency, transfer = protocol.base_seconds, 0.0
    for hop in route.hops:
        way = hops[hop]
        own_latency = protocol.base_seconds + route.steps * protocol.step_seconds[way.medium]
        own_transfer = route.sent_bytes / (way.bytes_per_second * protocol.share)
        if not planned:
            own_latency *= way.latency_factor
            own_transfer /= way.bandwidth_factor
        latency, transfer = max(latency, own_latency), max(transfer, own_transfer)
    return Cost(latency, transfer, _late(route.hops, hops))


def _summed_by_switches(
    size_bytes: int, links: int, start_seconds: float, link_rate: float, hops: Mapping[tuple[int, int], Way]
) -> Cost:
    """Each GPU sends its buffer to the switches once; slow parts hold it up as they do a ring."""
    latency = start_seconds * max(way.latency_factor for way in hops.values())
    transfer = size_bytes / (links * link_rate * min(way.bandwidth_factor for way in hops.values()))
    return Cost(latency, transfer, _late(tuple(hops), hops))


def _late(crossed: Sequence[tuple[int, int]], hops: Mapping[tuple[int, int], Way]) -> frozenset[int]:
    """The GPUs that all slow hops of a call share, or else their ends."""
    slow = [frozenset(hop) for hop in crossed if _slow(hops[hop])]
    return frozenset.intersection(*slow) or frozenset.union(*slow) if slow else frozenset()


def _all_to_all(ways: Ways, size_bytes: int, gpus: Sequence[int]) -> Cost:
    """Each pair sends its share over its own way at the same time; what ways have in common carries the sum."""
    hops = {hop: _in_collective(ways.between(*hop)) for hop in permutations(gpus, 2)}
    share = max(size_bytes, 1) / len(gpus)
    planned, actual = (_crowded(ways, hops, share, slowed=slowed) for slowed in (False, True))
    crowded = {
        hop: Way(way.medium, share / planned[hop], 1.0, planned[hop] / actual[hop], way.latency_factor)
        for hop, way in hops.items()
    }
    cost = _cheapest([_Route(len(gpus) - 1, share, tuple(hops))], crowded)
    return Cost(cost.latency_seconds, cost.transfer_seconds, _late(tuple(hops), hops))


def _crowded(
    ways: Ways, hops: Mapping[tuple[int, int], Way], share: float, *, slowed: bool
) -> dict[tuple[int, int], float]:
    """Seconds that each hop needs for its share: alone, or until the parts on its way have carried all of theirs."""
    loads: dict[str, float] = {}
    for hop, way in hops.items():
        for part, rate in ways.between(*hop).shared:
            loads[part] = loads.get(part, 0.0) + share / (rate * (way.bandwidth_factor if slowed else 1.0))
    return {
        hop: max(
            share / (way.bytes_per_second * (way.bandwidth_factor if slowed else 1.0)),
            *(loads[part] for part, _ in ways.between(*hop).shared),
            0.0,
        )
        for hop, way in hops.items()
    }


def _slow(way: Way) -> bool:
    return way.bandwidth_factor < 1 or way.latency_factor > 1
