"""Nodes that do not exist, with the parts on the way of every pair of their GPUs; knows nothing of the judge."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
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


def network(machines: int, per_machine: int, per_nic: int) -> Node:
    """Several machines: NVSwitch within each, one NIC for so many GPUs between them."""

    def ends(source: int, target: int) -> Iterator[Passed]:
        for gpu, direction in ((source, "out"), (target, "in")):
            yield _gpu(gpu, direction)
            if source // per_machine == target // per_machine:
                yield Passed(Part("link_group", f"GPU{gpu}"), direction)
            else:
                yield Passed(Part("nic", f"NIC{gpu // per_nic}"), direction)
                yield Passed(Part("node", f"node{gpu // per_machine}"), direction)

    def way(source: int, target: int) -> Way:
        passed = tuple(ends(source, target))
        if source // per_machine == target // per_machine:
            whole = Passed(Part("node", f"node{source // per_machine}"), "through")
            return Way((*passed, whole), "NV switch", "NV18", 300e9, 6e-6)
        return Way(passed, "NET", "NET", 45e9, 18e-6)

    return _node(f"{machines} × {per_machine} GPUs, {per_nic} for a NIC,", machines * per_machine, way)


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
    "two GPUs": (pcie(Board(1, 0, 2)), pcie(Board(1, 1, 2)), pcie(Board(1, 0, 2, True)), nvswitch(2)),
    "several machines": (network(2, 4, 1), network(4, 2, 1), network(4, 2, 2), network(2, 4, 2)),
}
"""Machines by what joins their GPUs."""
