"""Makes nodes that do not exist, and what their pairs measure with and without a fault; knows nothing of the judge."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import NamedTuple, TypeAlias

Cell: TypeAlias = tuple[int, int]


class Part(NamedTuple):
    """Something that traffic passes."""

    kind: str
    name: str


class Passed(NamedTuple):
    """A part on a way: out of what lies behind it, into it, or through among it."""

    part: Part
    direction: str


@dataclass(frozen=True)
class Way:
    """From one GPU to another."""

    passed: tuple[Passed, ...]
    peers: str
    """Class of the way: with the same text they are built alike."""
    label: str
    rate: float
    """Bytes per second, healthy."""
    latency: float
    """Seconds, healthy."""


@dataclass(frozen=True)
class Node:
    """One machine."""

    shape: str
    gpus: int
    ways: Mapping[Cell, Way]
    rounds: Mapping[Cell, int]
    """Place in the order in which the pairs are measured."""

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys(passed.part for way in self.ways.values() for passed in way.passed))

    @cached_property
    def _cells(self) -> Mapping[tuple[Part, str], frozenset[Cell]]:
        found: dict[tuple[Part, str], set[Cell]] = {}
        for cell, way in self.ways.items():
            for passed in way.passed:
                for direction in ("", passed.direction):
                    found.setdefault((passed.part, direction), set()).add(cell)
        return {key: frozenset(cells) for key, cells in found.items()}

    def cells(self, part: Part, direction: str = "") -> frozenset[Cell]:
        """The ordered pairs whose way passes a part, in a direction or any."""
        return self._cells.get((part, direction), frozenset())

    def visible_among_peers(self, cells: frozenset[Cell]) -> frozenset[Cell]:
        """Of the cells that a fault slows those that have a peer which it does not slow."""
        sound = {way.peers for cell, way in self.ways.items() if cell not in cells}
        return frozenset(cell for cell in cells if self.ways[cell].peers in sound)


# --- shapes ---


def _circle(count: int) -> dict[Cell, int]:
    """Rounds of disjoint pairs: the first one stays, the others turn."""
    ring = list(range(count)) + ([-1] if count % 2 else [])
    found: dict[Cell, int] = {}
    for number in range(len(ring) - 1):
        for first, second in zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True):
            if -1 not in (first, second):
                found[first, second] = found[second, first] = number
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def _node(shape: str, gpus: int, way: Callable[[int, int], Way]) -> Node:
    ways = {cell: way(*cell) for cell in itertools.permutations(range(gpus), 2)}
    return Node(f"{shape} {gpus}", gpus, ways, _measured_alone(_circle(gpus), ways))


def _measured_alone(rounds: Mapping[Cell, int], ways: Mapping[Cell, Way]) -> dict[Cell, int]:
    """The same order in more rounds, where pairs of one round would share a link beside those of their GPUs."""
    found: dict[Cell, int] = {}
    used: list[set[Part]] = []
    for number in sorted(set(rounds.values())):
        begin = len(used)
        for cell in sorted(cell for cell, other in rounds.items() if other == number and cell[0] < cell[1]):
            own = {Part("pcie_link", gpu_link(gpu)) for gpu in cell}
            links = {
                passed.part for passed in ways[cell].passed if passed.part.kind in ("pcie_link", "socket_link")
            } - own
            place = next((one for one in range(begin, len(used)) if not used[one] & links), len(used))
            if place == len(used):
                used.append(set())
            used[place] |= links
            found[cell] = found[cell[1], cell[0]] = place
    return found


def _gpu(place: int, direction: str) -> Passed:
    return Passed(Part("gpu", f"GPU{place}"), direction)


_WHOLE = Passed(Part("node", "node0"), "through")


def nvswitch(gpus: int) -> Node:
    """Every GPU with all its NVLinks to the switches."""

    def way(source: int, target: int) -> Way:
        links = (
            Passed(Part("link_group", f"GPU{source}"), "out"),
            Passed(Part("link_group", f"GPU{target}"), "in"),
        )
        passed = (_gpu(source, "out"), *links, _gpu(target, "in"), _WHOLE)
        return Way(passed, "NV switch", "NV18", 300e9, 6e-6)

    return _node("NVSwitch", gpus, way)


def direct(gpus: int, uneven: bool) -> Node:
    """NVLinks between every two GPUs; uneven: neighbours have twice as many."""

    def way(source: int, target: int) -> Way:
        low, high = sorted((source, target))
        links = 4 if uneven and low // 2 == high // 2 else 2
        passed = (
            _gpu(source, "out"),
            Passed(Part("link_group", f"GPU{low}-GPU{high}"), "out" if source == low else "in"),
            _gpu(target, "in"),
            _WHOLE,
        )
        return Way(passed, f"NV{links}", f"NV{links}", 20e9 * links, 6e-6)

    return _node("uneven direct" if uneven else "direct", gpus, way)


@dataclass(frozen=True)
class Board:
    """Where the GPUs of a PCIe machine sit."""

    sockets: int
    switches_per_socket: int
    """0: every GPU has a root port of its own."""
    per_group: int
    """GPUs of a switch, or of a socket without switches."""
    bridges: bool = False
    """NVLink bridges between every two neighbours."""

    @property
    def gpus(self) -> int:
        return self.sockets * max(self.switches_per_socket, 1) * self.per_group

    def switch(self, gpu: int) -> int | None:
        """Number of its switch."""
        return gpu // self.per_group if self.switches_per_socket else None

    def socket(self, gpu: int) -> int:
        """Number of its socket."""
        return gpu // (max(self.switches_per_socket, 1) * self.per_group)


def gpu_link(gpu: int) -> str:
    """Address of a GPU: the lower end of its PCIe link."""
    return f"0000:{0x10 + gpu:02x}:00.0"


def switch_port(switch: int) -> str:
    """Address of the upstream port of a switch."""
    return f"0000:{0x80 + switch:02x}:00.0"


def pcie(board: Board) -> Node:
    """GPUs on PCIe, behind switches or not, on one or two sockets, with NVLink bridges or not."""

    def way(source: int, target: int) -> Way:
        if board.bridges and source // 2 == target // 2:
            low, high = sorted((source, target))
            link = Passed(Part("link_group", f"GPU{low}-GPU{high}"), "out" if source == low else "in")
            return Way((_gpu(source, "out"), link, _gpu(target, "in"), _WHOLE), "NV4", "NV4", 50e9, 6e-6)
        return _pcie_way(board, source, target)

    named = "bridges" if board.bridges else "PCIe"
    groups = f"{board.switches_per_socket} switches" if board.switches_per_socket else "root ports"
    return _node(f"{named}, {board.sockets} × {groups},", board.gpus, way)


def _pcie_way(board: Board, source: int, target: int) -> Way:
    ends = (
        _gpu(source, "out"),
        Passed(Part("pcie_link", gpu_link(source)), "out"),
        Passed(Part("pcie_link", gpu_link(target)), "in"),
        _gpu(target, "in"),
        _WHOLE,
    )
    switches = board.switch(source), board.switch(target)
    if switches[0] is not None and switches[0] == switches[1]:
        inner = Passed(Part("pcie_switch", switch_port(switches[0])), "through")
        return Way((*ends, inner), "PIX", "PIX", 22e9, 8e-6)
    crossed = []
    for switch, direction in zip(switches, ("out", "in"), strict=True):
        if switch is not None:
            crossed.append(Passed(Part("pcie_switch", switch_port(switch)), direction))
            crossed.append(Passed(Part("pcie_link", switch_port(switch)), direction))
    sockets = board.socket(source), board.socket(target)
    if sockets[0] == sockets[1]:
        cpu = Passed(Part("numa_node", f"NUMA{sockets[0]}"), "through")
        return Way((*ends, *crossed, cpu), "NODE", "NODE", 18e9, 11e-6)
    across = (
        Passed(Part("numa_node", f"NUMA{sockets[0]}"), "out"),
        Passed(Part("numa_node", f"NUMA{sockets[1]}"), "in"),
        Passed(Part("socket_link", "NUMA0-NUMA1"), "out" if sockets[0] < sockets[1] else "in"),
    )
    return Way((*ends, *crossed, *across), "SYS", "SYS", 13e9, 15e-6)


NODES: Mapping[str, tuple[Node, ...]] = {
    "NVSwitch": (nvswitch(8), nvswitch(16), nvswitch(5), nvswitch(4)),
    "NVLink, every two GPUs": (direct(4, False), direct(4, True), direct(6, False)),
    "NVLink bridges, PCIe between": (
        pcie(Board(1, 0, 4, True)),
        pcie(Board(2, 0, 2, True)),
        pcie(Board(2, 0, 4, True)),
        pcie(Board(2, 1, 4, True)),
    ),
    "PCIe switches, one socket": (
        pcie(Board(1, 2, 2)),
        pcie(Board(1, 2, 4)),
        pcie(Board(1, 4, 2)),
        pcie(Board(1, 1, 4)),
        pcie(Board(1, 1, 8)),
    ),
    "PCIe switches, two sockets": (
        pcie(Board(2, 1, 2)),
        pcie(Board(2, 1, 4)),
        pcie(Board(2, 2, 2)),
        pcie(Board(2, 2, 4)),
        pcie(Board(2, 4, 2)),
    ),
    "PCIe root ports": (pcie(Board(1, 0, 4)), pcie(Board(2, 0, 2)), pcie(Board(2, 0, 4)), pcie(Board(2, 0, 3))),
}
"""Machines by what joins their GPUs."""


# --- what they measure ---


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


# --- what goes wrong ---


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


def unrelated_cells(node: Node, share: float, random: Random) -> Fault:
    """Two ordered pairs of four different GPUs, and all that they have in common is chance."""
    first, second, third, fourth = random.sample(range(node.gpus), 4)
    return Fault(frozenset({(first, second), (third, fourth)}), 1 / share)
