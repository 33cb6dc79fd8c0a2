"""A cluster with faults that measures between its nodes; it imports nothing of commwatch and no rule of the judge.

A transfer goes through parts in a row: node, NIC, leaf switch, uplink, spine, uplink, leaf switch, NIC, node. The
tightest of them decides what it carries, then come noise, other jobs' traffic and moments in which all stands still.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

RATE = 50e9
"""Bytes per second of a rail: 400 Gbit/s."""
BETWEEN_LEAVES = 0.96
"""What a transfer over a spine reaches of one below a leaf."""
LATENCY = 2.4e-6
HOP_LATENCY = 1.3e-6
"""Seconds that a spine and a second leaf add."""


class Fault(NamedTuple):
    """A part that is worse than it should be."""

    kind: str
    """nic, node, leaf, uplink, path, or dead: a NIC that reaches nobody."""
    node: int
    leaf: int
    rail: int
    out: bool
    into: bool
    left: float
    """Share of its capacity."""
    other_leaf: int = -1


class Reading(NamedTuple):
    """What a rail of a pair measured."""

    first: int
    second: int
    rail: int
    forward: float
    backward: float
    latency: float
    failed: bool


class Conditions(NamedTuple):
    """What else happens in a run."""

    noise: float = 0.03
    """Standard deviation of each transfer, as a share."""
    spikes: float = 0.01
    """Share of the transfers of a rail that a moment slows 1.2 to 5 times, both directions."""
    congestion: float = 0.0
    """Share of the transfers between leaves that other jobs' traffic slows."""
    latency_noise: float = 0.06
    spread: float = 0.0
    """Standard deviation by which healthy NICs differ for good, as a share."""
    pair_moments: float = 0.0
    """Share of the pairs that a moment slows on all rails."""
    hot_uplinks: float = 0.0
    """Share of the uplinks on which other jobs slow a third of the transfers."""


@dataclass
class Cluster:
    """Nodes that take part, the leaf of each, and what is wrong."""

    leaf_of: list[int]
    rails: int
    faults: list[Fault]
    conditions: Conditions
    random: Random
    _left: dict[tuple[object, ...], float] = field(default_factory=dict)
    _dead: set[tuple[int, int]] = field(default_factory=set)
    _hot: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Write down what each part that is at fault still carries."""
        here = self.conditions
        for node in range(len(self.leaf_of) if here.spread else 0):
            for rail in range(self.rails):
                for way in ("out", "in"):
                    self._left["nic", node, rail, way] = math.exp(-abs(self.random.gauss(0, here.spread)))
        for leaf in sorted(set(self.leaf_of)) if here.hot_uplinks else ():
            self._hot |= {(leaf, rail) for rail in range(self.rails) if self.random.random() < here.hot_uplinks}
        for fault in self.faults:
            rails = range(self.rails) if fault.kind == "node" else [fault.rail]
            place = fault.node if fault.kind in ("nic", "node") else fault.leaf
            for rail in rails:
                if fault.kind == "dead":
                    self._dead.add((fault.node, rail))
                elif fault.kind == "path":
                    self._left["path", fault.leaf, fault.other_leaf, rail] = fault.left
                elif fault.kind == "leaf":
                    self._left["leaf", place, rail] = fault.left
                else:
                    part = "uplink" if fault.kind == "uplink" else "nic"
                    for way in [*(["out"] if fault.out else []), *(["in"] if fault.into else [])]:
                        key = (part, place, rail, way)
                        self._left[key] = min(fault.left, self._left.get(key, 1.0))

    def _share(self, source: int, destination: int, rail: int) -> float:
        """Of the rate that the tightest part of a way lets through."""
        here, there, left = self.leaf_of[source], self.leaf_of[destination], self._left
        parts: list[tuple[object, ...]] = [
            ("nic", source, rail, "out"), ("nic", destination, rail, "in"), ("leaf", here, rail), ("leaf", there, rail),
        ]  # fmt: skip
        if here != there:
            parts += [("uplink", here, rail, "out"), ("uplink", there, rail, "in"), ("path", here, there, rail)]
        tightest = min(left.get(part, 1.0) for part in parts)
        return tightest * (BETWEEN_LEAVES if here != there else 1.0)

    def measure(self, pairs: Iterable[tuple[int, int]]) -> Iterator[Reading]:
        """All rails of pairs."""
        random, here = self.random, self.conditions
        for first, second in pairs:
            is_far = self.leaf_of[first] != self.leaf_of[second]
            whole = 1 / random.uniform(1.2, 5) if random.random() < here.pair_moments else 1.0
            for rail in range(self.rails):
                failed = (first, rail) in self._dead or (second, rail) in self._dead
                moment = 1 / random.uniform(1.2, 5) if random.random() < here.spikes else whole
                is_hot = bool({(self.leaf_of[first], rail), (self.leaf_of[second], rail)} & self._hot)
                ways = []
                for source, destination in ((first, second), (second, first)):
                    value = RATE * self._share(source, destination, rail) * moment
                    if is_far and random.random() < (1 / 3 if is_hot else here.congestion):
                        value *= random.uniform(0.3, 0.95)
                    ways.append(value * math.exp(random.gauss(0, here.noise)))
                latency = (LATENCY + HOP_LATENCY * is_far) * math.exp(random.gauss(0, here.latency_noise)) / moment
                yield Reading(first, second, rail, ways[0], ways[1], latency, failed)


def cluster_of(
    nodes: int, conditions: Conditions, random: Random, *, rails: int = 8, leaf_size: int = 32, busy: float = 0.0
) -> Cluster:
    """A healthy one; busy nodes take no part."""
    leaf_of = [node // leaf_size for node in range(nodes) if random.random() >= busy]
    return Cluster(leaf_of, rails, [], conditions, random)


def with_faults(cluster: Cluster, count: int, left: float, kinds: dict[str, float]) -> Cluster:
    """The same with faults of the parts that take part, each of another node or another leaf's rail.

    Args:
        cluster: a healthy one.
        count: of faults.
        left: share of the capacity that is left.
        kinds: how often each kind is drawn.
    """
    random = cluster.random
    faults: list[Fault] = []
    taken: set[object] = set()
    while len(faults) < count:
        (kind,) = random.choices(list(kinds), list(kinds.values()))
        node, rail = random.randrange(len(cluster.leaf_of)), random.randrange(cluster.rails)
        leaf = cluster.leaf_of[node]
        place = node if kind in ("nic", "node", "dead") else ("leaf", leaf, rail)
        if place in taken:
            continue
        taken.add(place)
        out, into = random.choice([(True, False), (False, True), (True, True)]) if kind in _ONE_WAY else (True, True)
        other = random.choice([one for one in cluster.leaf_of if one != leaf] or [leaf])
        faults.append(Fault(kind, node, leaf, rail, out, into, left, other))
    return Cluster(cluster.leaf_of, cluster.rails, faults, cluster.conditions, random)


_ONE_WAY = ("nic", "uplink")
MIXED = {"nic": 0.4, "node": 0.2, "leaf": 0.12, "uplink": 0.16, "path": 0.06, "dead": 0.06}
NICS = {"nic": 1.0}
