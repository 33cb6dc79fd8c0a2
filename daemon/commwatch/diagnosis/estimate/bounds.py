"""How long a collective takes over nodes: between the best that a hierarchy could do and a flat ring."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.diagnosis.estimate.job import Fabric, Layout
from commwatch.diagnosis.estimate.quantities import Span
from commwatch.diagnosis.estimate.strategy import Operation, Scope
from commwatch.probes.results.bus_bandwidth import factor


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds of one or several collectives."""

    network_seconds: float = 0.0
    """For which the NICs of a node are busy at least: each node gets once what it lacks."""
    node_seconds: float = 0.0
    """The same of what joins the GPUs of a node."""
    ring_seconds: float = 0.0
    """Of flat rings over all who take part, one call after another."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.network_seconds + other.network_seconds,
            self.node_seconds + other.node_seconds,
            self.ring_seconds + other.ring_seconds,
        )

    def times(self, count: int) -> Traffic:
        """So many of them in a row."""
        return Traffic(self.network_seconds * count, self.node_seconds * count, self.ring_seconds * count)

    @property
    def seconds(self) -> Span:
        """Hierarchical bound, with network and nodes busy at the same time, to flat ring."""
        return Span(min(self.ring_seconds, max(self.network_seconds, self.node_seconds)), self.ring_seconds)


def traffic(operation: Operation, size_bytes: int, scope: Scope, layout: Layout, fabric: Fabric) -> Traffic | None:
    """What a collective takes; None where a rate that it needs is not known.

    Hierarchical bound: (N-1)/N of S has to reach each of N nodes through its NICs, and (G-1)/G of S each of the G GPUs
    of a node from the others; an all-reduce does both twice. The fastest known rates count. Flat ring: (n-1)/n of S, or
    twice that, passes every place of a ring over all n GPUs, which runs at the slowest known rate on its way. Latency
    is left out.

    Args:
        operation: of nccl-tests.
        size_bytes: S, by the convention of nccl-tests. Between nodes that of a whole node.
        scope: who takes part.
        layout: the GPUs.
        fabric: what joins them.
    """
    gpus = 1 if scope == "between" else layout.gpus
    nodes = 1 if scope == "node" else layout.nodes
    if gpus * nodes == 1:
        return Traffic()
    rates: list[Span] = []
    network_seconds = node_seconds = 0.0
    if nodes > 1:
        if fabric.network is None:
            return None
        rates.append(fabric.network)
        network_seconds = factor(operation, nodes) * size_bytes / fabric.network.high
    if gpus > 1:
        in_node = fabric.among(gpus)
        if in_node is None:
            return None
        rates.append(in_node)
        node_seconds = factor(operation, gpus) * size_bytes / in_node.high
    slowest = min(rate.low for rate in rates)
    return Traffic(network_seconds, node_seconds, factor(operation, gpus * nodes) * size_bytes / slowest)
