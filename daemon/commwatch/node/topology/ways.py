"""Parts on the paths between the endpoints of a pair matrix, and which of them pairs alone can distinguish; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

CLASS_SHARE_MAX = 0.75
"""A part that touches more of a class of peers cannot be seen against them."""

ElementKind: TypeAlias = Literal[
    "gpu", "link_group", "pcie_link", "pcie_switch", "socket_link", "numa_node", "nic", "node", "pair"
]
"""The kinds of parts that can be at fault. On the same pairs the earlier one is named first: it is more often the
cause."""

KINDS: tuple[ElementKind, ...] = (
    "gpu",
    "link_group",  # the NVLinks of a GPU to the switches, or those between two GPUs
    "pcie_link",
    "pcie_switch",
    "socket_link",  # between two NUMA nodes
    "numa_node",  # root complex and memory of a NUMA node
    "nic",
    "node",  # all of a machine: power, clocks, driver, settings
    "pair",  # two ends with no part of their own on the way
)

Direction: TypeAlias = Literal["out", "in", "through"]
"""How traffic passes a part: away from the GPUs behind it, towards them, or among them."""

Cell: TypeAlias = tuple[int, int]
"""Source and destination: places in ``PairMatrix.endpoints``."""


@dataclass(frozen=True, slots=True, order=True)
class Element:
    """One part that traffic goes through."""

    kind: ElementKind
    name: str
    """Value of the label ``element``: ``GPU3``, ``GPU0-GPU1``, ``0000:16:00.0``, ``NUMA0``, ``NUMA0-NUMA1``."""
    text: str = field(default="", compare=False)
    """As a sentence calls it: ``GPU3 (0000:5d:00.0)``; empty: kind and name."""
    check: str = field(default="", compare=False)
    """The check to make if it is suspected."""

    @property
    def called(self) -> str:
        """Its name in a sentence."""
        return self.text or f"{self.kind.replace('_', ' ').replace('pcie', 'PCIe')} {self.name}".removeprefix("gpu ")


@dataclass(frozen=True, slots=True)
class Passage:
    """A part on one ordered way, and how the traffic passes it."""

    element: Element
    direction: Direction


@dataclass(frozen=True, slots=True)
class PairWay:
    passages: tuple[Passage, ...]
    peers: str
    """Ways with the same text should carry the same: path class and what the links on it can do."""


Ways: TypeAlias = Mapping[Cell, PairWay]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Parts that lie on exactly the same ways: one explanation of slow cells."""

    cells: tuple[Cell, ...]
    elements: tuple[Element, ...]
    """The most likely first; pairs alone cannot distinguish them."""
    pairs: int
    """Pairs, whichever way."""

    @property
    def one_way(self) -> bool:
        """Whether it is about one direction only."""
        return not any((destination, source) in self.cells for source, destination in self.cells)

    @property
    def is_pair(self) -> bool:
        """Whether no part is named, only two ends."""
        return self.elements[0].kind == "pair"


Keep: TypeAlias = Callable[[frozenset[Cell]], frozenset[Cell]]


def candidates(ways: Ways, name_of: Callable[[int], str], keep: Keep | None = None) -> tuple[Candidate, ...]:
    """All explanations that these ways allow: each part, each part in one direction, each pair, each ordered pair.

    Args:
        ways: of every ordered pair of the matrix.
        name_of: what an end is called, by its place.
        keep: of the cells of a part those in which its fault could be seen; None for all.
    """
    named: dict[frozenset[Cell], list[Element]] = {}
    for cells, element in _cells_of_parts(ways):
        seen = cells if keep is None else keep(cells)
        if seen:
            known = named.setdefault(seen, [])
            if element not in known:
                known.append(element)
    for source, destination in ways:
        both = frozenset({(source, destination), (destination, source)} & ways.keys())
        first, second = sorted((source, destination))
        pair = Element(
            "pair", f"{name_of(first)}-{name_of(second)}", f"The pair {name_of(first)} and {name_of(second)}"
        )
        for cells in (both, frozenset({(source, destination)})):
            named.setdefault(cells, [pair])
    return tuple(
        Candidate(
            tuple(sorted(cells)),
            tuple(sorted(elements, key=lambda one: (KINDS.index(one.kind), one.name))),
            len({frozenset(cell) for cell in cells}),
        )
        for cells, elements in named.items()
    )


def _cells_of_parts(ways: Ways) -> Iterable[tuple[frozenset[Cell], Element]]:
    """Each part with its cells, then each with those of one direction."""
    passed: dict[Element, dict[Direction, set[Cell]]] = {}
    for cell, way in ways.items():
        for passage in way.passages:
            passed.setdefault(passage.element, {}).setdefault(passage.direction, set()).add(cell)
    for element, cells in passed.items():
        yield frozenset().union(*cells.values()), element
    for element, cells in passed.items():
        for direction in ("out", "in"):
            if cells.get(direction, set()) and len(cells) > 1:
                yield frozenset(cells[direction]), element


def in_some_of_their_peers(ways: Ways, most: float) -> Keep:
    """Keeps the cells of those classes of peers of which a part touches no more than a share.

    Where nothing but the peers says what a cell should give, a part that slows all of them cannot be seen there.
    """
    sizes: dict[str, int] = {}
    for way in ways.values():
        sizes[way.peers] = sizes.get(way.peers, 0) + 1

    def keep(cells: frozenset[Cell]) -> frozenset[Cell]:
        touched: dict[str, int] = {}
        for cell in cells:
            touched[ways[cell].peers] = touched.get(ways[cell].peers, 0) + 1
        return frozenset(cell for cell in cells if touched[ways[cell].peers] <= most * sizes[ways[cell].peers])

    return keep


@dataclass(frozen=True)
class Parts:
    """The parts of one node, prepared for the search: made once for a topology."""

    ways: Ways
    """Of every ordered pair, by places in the endpoints; empty where no topology is known."""
    names: tuple[str, ...]
    """Name of each endpoint in a sentence: ``GPU3``."""

    def _name(self, place: int) -> str:
        return self.names[place]

    @cached_property
    def known(self) -> Ways:
        """The ways; without a topology those of a node about which only its pairs are known."""
        if self.ways:
            return self.ways
        places = range(len(self.names))
        return {(source, target): PairWay((), "") for source in places for target in places if source != target}

    @cached_property
    def all(self) -> tuple[Candidate, ...]:
        """For cells that are compared with their own history."""
        return candidates(self.known, self._name)

    @cached_property
    def among_peers(self) -> tuple[Candidate, ...]:
        """For cells that are compared with each other."""
        return candidates(self.known, self._name, in_some_of_their_peers(self.known, CLASS_SHARE_MAX))
