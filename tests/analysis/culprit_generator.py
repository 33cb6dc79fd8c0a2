"""What the pairs of nodes that do not exist measure, with and without a fault; knows nothing of the judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeAlias

from analysis.culprit_nodes import Cell, Node, Part


class Measured(NamedTuple):
    """One cell; None for what is missing."""

    latency: float | None
    one_way: float | None
    both_ways: float | None


Matrix: TypeAlias = dict[Cell, Measured]


@dataclass(frozen=True)
class Fault:
    """Some cells take longer."""

    cells: frozenset[Cell]
    factor: float
    """Of their time: 1/0.7 for 30 % less bandwidth."""
    latency_factor: float = 1.0


@dataclass
class Machine:
    """A node with the unevenness of its own, which stays, and the noise of every measurement."""

    node: Node
    random: Random
    static: dict[Cell, tuple[float, float, float]] = field(init=False)
    ramp: float = field(init=False)
    decay: float = field(init=False)
    sigma: float = field(init=False)
    spikes: float = field(init=False)
    missing: float = field(init=False)

    def __post_init__(self) -> None:
        random = self.random
        uneven = random.uniform(0.005, 0.02), random.uniform(0.005, 0.025)
        ends = [random.gauss(0.0, uneven[0]) for _ in range(self.node.gpus)]
        levels = {way.peers: random.uniform(0.7, 1.2) for way in self.node.ways.values()}
        duplex = {way.peers: random.uniform(0.75, 1.0) for way in self.node.ways.values()}
        self.static = {}
        for cell, way in self.node.ways.items():
            own = levels[way.peers] * (1 + ends[cell[0]] + ends[cell[1]])
            rate = way.rate * own * random.lognormvariate(0.0, uneven[1])
            both = way.rate * own * duplex[way.peers] * random.lognormvariate(0.0, uneven[1])
            self.static[cell] = (way.latency * random.lognormvariate(0.0, 0.03), rate, both)
        self.ramp = random.choice((0.0, random.uniform(0.0, 0.2)))
        self.decay = random.uniform(0.3, 0.8)
        self.sigma = random.uniform(0.02, 0.03)
        self.spikes = random.uniform(0.01, 0.02)
        self.missing = random.uniform(0.05, 0.10)

    def matrix(self, faults: Sequence[Fault] = ()) -> Matrix:
        """One cycle over all pairs."""
        random = self.random
        common = random.lognormvariate(0.0, 0.02)
        ramp = self.ramp * random.uniform(0.5, 1.5)
        shared = self._disturbed()
        # How much a part holds up is not the same each time.
        wavering = [random.lognormvariate(0.0, 0.03) for _ in faults]
        found: Matrix = {}
        for cell, (latency, rate, both) in self.static.items():
            if random.random() < self.missing / 2:
                continue
            factor = common * (1 + ramp * self.decay ** self.node.rounds[cell]) * shared.get(cell, 1.0)
            slow, late = 1.0, 1.0
            for fault, now in zip(faults, wavering, strict=True):
                if cell in fault.cells:
                    slow, late = max(slow, fault.factor * now), max(late, fault.latency_factor * now)
            found[cell] = Measured(
                self._seen(latency * factor * late, 2.0),
                self._inverse(rate / (factor * slow)),
                self._inverse(both / (factor * slow)),
            )
        return found

    def _disturbed(self) -> dict[Cell, float]:
        """Now and then the host is busy while a pair, or a whole round, is measured."""
        random = self.random
        found: dict[Cell, float] = {}
        for source, target in self.node.ways:
            if source < target and random.random() < 0.003:
                found[source, target] = found[target, source] = random.uniform(1.1, 5.0)
        if random.random() < 0.01:
            number, factor = random.choice(list(self.node.rounds.values())), random.uniform(1.1, 2.0)
            found |= {cell: factor for cell, other in self.node.rounds.items() if other == number}
        return found

    def _seen(self, seconds: float, wider: float = 1.0) -> float | None:
        random = self.random
        if random.random() < self.missing / 6:
            return None
        spike = random.uniform(1.2, 5.0) if random.random() < self.spikes else 1.0
        return seconds * spike * random.lognormvariate(0.0, self.sigma * wider)

    def _inverse(self, rate: float) -> float | None:
        seen = self._seen(1.0 / rate)
        return None if seen is None else 1.0 / seen


def fault_of(node: Node, part: Part, share: float, random: Random) -> Fault:
    """A part that lets through a share of the bandwidth; small messages suffer in a third of the cases."""
    return Fault(node.cells(part), 1 / share, random.choice((1.0, 1.0, 1 / share)))


def one_way_fault_of(node: Node, share: float, random: Random) -> Fault:
    """The same in one direction of a part that has two, on two ordered pairs at least."""
    ways = [cells for part in node.parts for way in ("out", "in") if len(cells := node.cells(part, way)) > 1]
    return Fault(random.choice(ways), 1 / share)


def two_faults(node: Node, share: float, random: Random) -> tuple[tuple[Part, Part], tuple[Fault, Fault]]:
    """Two parts at once: neither on all the ways of the other, and together not just what a third part is on."""
    known = {node.cells(part) for part in node.parts}
    while True:
        first, second = random.sample(node.parts, 2)
        cells = node.cells(first), node.cells(second)
        union = cells[0] | cells[1]
        if union not in known and not (cells[0] <= cells[1] or cells[1] <= cells[0]):
            return (first, second), (fault_of(node, first, share, random), fault_of(node, second, share, random))


def slow_pair(node: Node, share: float, random: Random) -> tuple[tuple[int, int], Fault]:
    """Two GPUs, the lower first, whose ways to each other are slow."""
    low, high = sorted(random.sample(range(node.gpus), 2))
    return (low, high), Fault(frozenset({(low, high), (high, low)}), 1 / share)


def unrelated_cells(node: Node, share: float, random: Random) -> Fault:
    """Two ordered pairs of four different GPUs, and all that they have in common is chance."""
    first, second, third, fourth = random.sample(range(node.gpus), 4)
    return Fault(frozenset({(first, second), (third, fourth)}), 1 / share)
