"""Which pairs of a matrix are slow, and what shape they make: a GPU, a pair, a class of ways, a group; pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Literal, TypeAlias

from commwatch.node.topology.pair_matrix import PairMatrix, Quantity
from commwatch.node.topology.paths import CLASSES, THROUGH_CPU
from commwatch.node.topology.ways import Cell, PairWay
from commwatch.probes.results.cells import (
    Slowness,
    against_peers,
    class_levels,
    combined,
    log_times,
    rounds_of,
    without_ramp,
)
from commwatch.probes.results.culprit import BANDWIDTH_RULE, LATENCY_RULE
from commwatch.probes.results.slow_cells import names_of

ShapeKind: TypeAlias = Literal["even", "uniform", "pair", "gpu", "path class", "group", "scattered"]
"""even: no pair is slow; uniform: most are; scattered: those that are have nothing in common that was looked for."""

FIT_MIN = 0.75
"""Slow cells that lie in a group, over all cells that are slow or in it: below this the group is not the pattern."""

CLASS_WORDS: Mapping[str, str] = {
    "NV": "joined by NVLink",
    "PIX": "under one PCIe switch",
    "PXB": "under several PCIe switches of one host bridge",
    "PHB": "below one host bridge of the CPU",
    "NODE": "across host bridges of one NUMA node",
    "SYS": "across NUMA nodes",
}


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs below one part of the machine."""

    name: str
    """As a sentence calls it: ``PCIe switch 0000:21:00.0``, ``NUMA node 0``."""
    kind: Literal["switch", "numa"]
    places: frozenset[int]
    """In ``PairMatrix.endpoints``."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What counts as slow beside the marks of the suspects (docs/using/culprit.md)."""

    low_ratio: float
    """Below this share of the expected bandwidth a cell is slow whatever its peers do."""
    nearer_ratio: float
    """Below this share of the usual way through the CPU a cell under a PCIe switch is slow."""
    most_ratio: float
    """Where a larger share of the cells is below what is expected, it is all of them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the slow cells of a matrix have in common."""

    kind: ShapeKind
    name: str = ""
    """``GPU3 (all it sends)``, ``GPU0-GPU1``, ``pairs under one PCIe switch (PIX)``; empty where nothing is slow."""
    slow: tuple[Cell, ...] = ()
    """The slow cells, the slowest first."""
    typical: float | None = None
    """Median of the cells of the shape; of all where nothing is slow."""
    others: float | None = None
    """Median of the rest; None without any."""
    mark: float | None = None
    """What the slowest of them should reach at least; of a latency, at most."""
    expected: bool = False
    """Whether the mark is that of what is expected; else it is that of the other pairs."""


def class_of(path: str) -> str:
    """``NV`` for ``NV18``; the other classes as they are."""
    return "NV" if path.startswith("NV") else path


def class_words(path: str) -> str:
    """``under one PCIe switch (PIX)``; the label alone where it says no more."""
    words = CLASS_WORDS.get(class_of(path), "")
    return f"{words} ({path})" if words else path


def values_of(matrix: PairMatrix, quantity: Quantity) -> dict[Cell, float]:
    """Bytes per second or seconds of each cell that was measured."""
    found = {(cell.source, cell.destination): matrix.value(cell, quantity) for cell in matrix.cells}
    return {cell: value for cell, value in found.items() if value is not None and value > 0}


def shape_of(
    matrix: PairMatrix, quantity: Literal["bandwidth", "latency"], groups: Sequence[Group], limits: Limits
) -> Shape | None:
    """The shape of the slow cells; None where nothing was measured.

    A cell is slow against those with the same way, as for the suspects; a bandwidth also against what is expected, and
    under a PCIe switch against the ways through the CPU.

    Args:
        matrix: of GPUs.
        quantity: which of its numbers.
        groups: what else than GPUs and classes of ways pairs can have in common.
        limits: what counts as slow.
    """
    values = values_of(matrix, quantity)
    if not values:
        return None
    paths = {(cell.source, cell.destination): cell.path for cell in matrix.cells}
    floors = _floors(matrix, values, paths, limits) if quantity == "bandwidth" else _NO_FLOORS
    below = {cell for cell, floor in floors.expected.items() if values[cell] < floor}
    if len(below) > limits.most_ratio * len(values):
        return _uniform(values, floors.expected, below)
    low = below | {cell for cell, floor in floors.nearer.items() if values[cell] < floor}
    rule = LATENCY_RULE if quantity == "latency" else BANDWIDTH_RULE
    slowness = _against_peers(matrix, quantity)
    slow = low | {cell for cell, value in slowness.items() if value >= rule.slow}
    best = _best(slow, values, _candidates(matrix, values, paths, groups)) if slow else None
    # The noise of a single pair is larger than that of what several have in common.
    if best is None or (best.kind == "pair" and not low and max(map(slowness.__getitem__, slow)) < rule.slow_pair):
        return Shape("even", typical=median(values.values()))
    ordered = _slowest_first(slow, values, quantity)
    peers = _peer_marks(matrix, quantity, rule.slow_pair if best.kind == "pair" else rule.slow)
    marks = [one[ordered[0]] for one in (peers, floors.expected, floors.nearer) if ordered[0] in one]
    rest = [value for cell, value in values.items() if cell not in best.cells and cell not in slow]
    return Shape(
        best.kind,
        best.name,
        ordered,
        median(value for cell, value in values.items() if cell in best.cells),
        median(rest) if rest else None,
        min(marks) if quantity == "latency" else max(marks),
        expected=max(marks) == floors.expected.get(ordered[0]),
    )


# --- what a cell is held against ---


@dataclass(frozen=True, slots=True)
class _Floors:
    """Bytes per second that a cell must reach whatever those with the same way do."""

    expected: Mapping[Cell, float]
    """A share of what the way should give."""
    nearer: Mapping[Cell, float]
    """Of cells under a PCIe switch: a share of what the usual way through the CPU carries."""


_NO_FLOORS = _Floors({}, {})


def _floors(matrix: PairMatrix, values: Mapping[Cell, float], paths: Mapping[Cell, str], limits: Limits) -> _Floors:
    expected = {
        (cell.source, cell.destination): limits.low_ratio * cell.expected_bandwidth
        for cell in matrix.cells
        if cell.expected_bandwidth and (cell.source, cell.destination) in values
    }
    far = [value for cell, value in values.items() if paths[cell] in THROUGH_CPU - {"?"}]
    near = [cell for cell in values if paths[cell] in ("PIX", "PXB")] if far else []
    return _Floors(expected, {cell: limits.nearer_ratio * median(far) for cell in near})


def _against_peers(matrix: PairMatrix, quantity: Quantity) -> Slowness:
    ways = _ways(matrix)

    def judge(one: PairMatrix, which: Quantity) -> Slowness:
        return without_ramp(against_peers(log_times(one, which), {}, ways), rounds_of(one))

    # A spike hits one of the two measurements of a bandwidth, a fault both.
    return combined(matrix, ("latency",) if quantity == "latency" else ("bandwidth", "both_ways"), judge)


def _peer_marks(matrix: PairMatrix, quantity: Quantity, slow: float) -> dict[Cell, float]:
    """What a cell must reach, or may take, by those with the same way."""
    ways, times = _ways(matrix), log_times(matrix, quantity)
    levels = class_levels(times, ways)
    sign = 1 if quantity == "latency" else -1
    return {cell: math.exp(sign * (levels[ways[cell].peers] + slow)) for cell in times}


def _ways(matrix: PairMatrix) -> dict[Cell, PairWay]:
    return {(cell.source, cell.destination): PairWay((), cell.path) for cell in matrix.cells}


# --- what slow cells can have in common ---


@dataclass(frozen=True, slots=True)
class _Candidate:
    kind: ShapeKind
    name: str
    cells: frozenset[Cell]


def _candidates(
    matrix: PairMatrix, values: Mapping[Cell, float], paths: Mapping[Cell, str], groups: Sequence[Group]
) -> Iterator[_Candidate]:
    """Of those that fit equally well the first one counts."""
    names = names_of(matrix.endpoints)
    places = range(len(names))
    for first, second in combinations(places, 2):
        pair = f"{names[first]}-{names[second]}"
        yield _Candidate("pair", pair, frozenset({(first, second), (second, first)}))
        for source, target in ((first, second), (second, first)):
            yield _Candidate("pair", f"{names[source]} to {names[target]}", frozenset({(source, target)}))
    for place in places:
        sends = frozenset(cell for cell in values if cell[0] == place)
        receives = frozenset(cell for cell in values if cell[1] == place)
        yield _Candidate("gpu", names[place], sends | receives)
        yield _Candidate("gpu", f"{names[place]} (all it sends)", sends)
        yield _Candidate("gpu", f"{names[place]} (all it receives)", receives)
    for path in sorted({path for path in paths.values() if path}, key=nearness):
        cells = frozenset(cell for cell in values if paths.get(cell) == path)
        yield _Candidate("path class", f"pairs {class_words(path)}", cells)
    yield from _of_groups(values, groups)


def nearness(path: str) -> tuple[int, str]:
    """Sorts classes of ways: the nearest first."""
    known = [str(one) for one in CLASSES]
    kind = class_of(path)
    return (known.index(kind) if kind in known else len(known), path)


def _of_groups(values: Mapping[Cell, float], groups: Sequence[Group]) -> Iterator[_Candidate]:
    for group in groups:
        inside = frozenset(cell for cell in values if group.places.issuperset(cell))
        leaving = frozenset(cell for cell in values if cell[0] in group.places and cell[1] not in group.places)
        coming = frozenset((target, source) for source, target in leaving)
        yield _Candidate("group", f"pairs below {group.name}", inside)
        yield _Candidate("group", f"pairs from and to {group.name}", leaving | coming)
        yield _Candidate("group", f"pairs from {group.name}", leaving)
        yield _Candidate("group", f"pairs to {group.name}", coming)
        yield _Candidate("group", f"all pairs at {group.name}", inside | leaving | coming)
    for first, second in combinations(groups, 2):
        if first.kind != second.kind or first.places & second.places:
            continue
        forth = frozenset(cell for cell in values if cell[0] in first.places and cell[1] in second.places)
        back = frozenset((target, source) for source, target in forth)
        yield _Candidate("group", f"pairs between {first.name} and {second.name}", forth | back)
        yield _Candidate("group", f"pairs from {first.name} to {second.name}", forth)
        yield _Candidate("group", f"pairs from {second.name} to {first.name}", back)


def _best(slow: Collection[Cell], values: Mapping[Cell, float], among: Iterator[_Candidate]) -> _Candidate:
    """The candidate that holds the slow cells and little else; scattered where none does."""
    wanted = frozenset(slow)
    best, best_fit = None, 0.0
    for candidate in among:
        cells = candidate.cells & values.keys()
        fit = len(cells & wanted) / len(cells | wanted)
        if fit > best_fit:
            best, best_fit = candidate, fit
    if best is None or best_fit < FIT_MIN:
        return _Candidate("scattered", "pairs with nothing in common", wanted)
    return best


# --- the answer ---


def _uniform(values: Mapping[Cell, float], expected: Mapping[Cell, float], below: Collection[Cell]) -> Shape:
    rest = [value for cell, value in values.items() if cell not in below]
    name = "all pairs" if not rest else f"{len(below)} of {len(values)} paths between two GPUs"
    ordered = _slowest_first(below, values, "bandwidth")
    typical = median(values[cell] for cell in below)
    return Shape("uniform", name, ordered, typical, median(rest) if rest else None, expected[ordered[0]], expected=True)


def _slowest_first(cells: Collection[Cell], values: Mapping[Cell, float], quantity: Quantity) -> tuple[Cell, ...]:
    return tuple(sorted(cells, key=lambda cell: (-values[cell] if quantity == "latency" else values[cell], cell)))
