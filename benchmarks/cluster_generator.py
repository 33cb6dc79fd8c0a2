"""A cluster with faults that measures between its nodes; it imports nothing of commwatch and no rule of the judge.

A transfer goes through parts in a row: node, NIC, leaf switch, uplink, spine, uplink, leaf switch, NIC, node. The
tightest of them decides what it carries, then come noise, other jobs' traffic and moments in which all stands still.
Above the leaves there may be tiers, such as pods or islands, between which a spine carries less. Nodes may have fewer
rails than others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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


class Tier(NamedTuple):
    """Groups of nodes between which a transfer is slower."""

    group_of: tuple[int, ...]
    """The group of each node."""
    share: float
    """Of the rate, between groups."""


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
    tails: float = 0.0
    """Degrees of freedom of Student's t for the noise, whose fast side ends at three deviations; 0: a normal one."""
    node_moments: float = 0.0
    """Share of the turns of a node in which it stands still for a moment, on all rails."""


@dataclass
class Cluster:
    """Nodes that take part, the leaf of each, and what is wrong."""

    leaf_of: list[int]
    rails: int
    faults: list[Fault]
    conditions: Conditions
    random: Random
    tiers: Sequence[Tier] = ()
    rails_of: Sequence[int] = ()
    """Rails of each node, where not all have the same."""
    _left: dict[tuple[object, ...], float] = field(init=False, default_factory=dict)
    _dead: set[tuple[int, int]] = field(init=False, default_factory=set)
    _hot: set[tuple[int, int]] = field(init=False, default_factory=set)

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
        for tier in self.tiers:
            if tier.group_of[source] != tier.group_of[destination]:
                tightest = min(tightest, tier.share)
        return tightest * (BETWEEN_LEAVES if here != there else 1.0)

    def _noise(self, deviation: float) -> float:
        """Of a transfer, as a factor of its rate."""
        value = self.random.gauss(0, 1)
        if freedom := self.conditions.tails:
            value = min(3.0, value / math.sqrt(self.random.gammavariate(freedom / 2, 2) / freedom))
        return math.exp(deviation * value)

    def measure(self, pairs: Iterable[tuple[int, int]]) -> Iterator[Reading]:
        """All rails of pairs."""
        random, here = self.random, self.conditions
        for first, second in pairs:
            is_far = self.leaf_of[first] != self.leaf_of[second]
            whole = 1 / random.uniform(1.2, 5) if random.random() < here.pair_moments else 1.0
            for _ in range(2 if here.node_moments else 0):
                whole = min(whole, 1 / random.uniform(1.2, 5) if random.random() < here.node_moments else 1.0)
            hops = is_far + sum(tier.group_of[first] != tier.group_of[second] for tier in self.tiers)
            rails = min(self.rails_of[first], self.rails_of[second]) if self.rails_of else self.rails
            for rail in range(rails):
                failed = (first, rail) in self._dead or (second, rail) in self._dead
                moment = 1 / random.uniform(1.2, 5) if random.random() < here.spikes else whole
                is_hot = bool({(self.leaf_of[first], rail), (self.leaf_of[second], rail)} & self._hot)
                ways = []
                for source, destination in ((first, second), (second, first)):
                    value = RATE * self._share(source, destination, rail) * moment
                    if is_far and random.random() < (1 / 3 if is_hot else here.congestion):
                        value *= random.uniform(0.3, 0.95)
                    ways.append(value * self._noise(here.noise))
                latency = (LATENCY + HOP_LATENCY * hops) / self._noise(here.latency_noise) / moment
                yield Reading(first, second, rail, ways[0], ways[1], latency, failed)


def cluster_of(
    nodes: int, conditions: Conditions, random: Random, *, rails: int = 8, leaf_size: int = 32, busy: float = 0.0,
    tiers: Iterable[tuple[int, float]] = (), fewer_rails: float = 0.0,
) -> Cluster:  # fmt: skip
    """A healthy one.

    Args:
        nodes: that there are.
        conditions: of the run.
        random: decides all of it.
        rails: of a node.
        leaf_size: nodes of a leaf.
        busy: share of the nodes that take no part.
        tiers: nodes of a group, and the share of the rate between groups.
        fewer_rails: share of the nodes that have half of the rails.
    """
    here = [node for node in range(nodes) if random.random() >= busy]
    above = [Tier(tuple(node // size for node in here), share) for size, share in tiers]
    rails_of = [rails // 2 if random.random() < fewer_rails else rails for _ in here] if fewer_rails else ()
    return Cluster([node // leaf_size for node in here], rails, [], conditions, random, above, rails_of)


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
        node = random.randrange(len(cluster.leaf_of))
        rail = random.randrange(cluster.rails_of[node] if cluster.rails_of else cluster.rails)
        leaf = cluster.leaf_of[node]
        place = node if kind in ("nic", "node", "dead") else ("leaf", leaf, rail)
        if place in taken:
            continue
        taken.add(place)
        out, into = random.choice([(True, False), (False, True), (True, True)]) if kind in _ONE_WAY else (True, True)
        other = random.choice([one for one in cluster.leaf_of if one != leaf] or [leaf])
        faults.append(Fault(kind, node, leaf, rail, out, into, left, other))
    return replace(cluster, faults=faults)


_ONE_WAY = ("nic", "uplink")
MIXED = {"nic": 0.4, "node": 0.2, "leaf": 0.12, "uplink": 0.16, "path": 0.06, "dead": 0.06}
NICS = {"nic": 1.0}
