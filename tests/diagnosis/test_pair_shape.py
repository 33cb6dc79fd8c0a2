"""The shape that slow pairs make, against matrices in which the fault is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pytest

from commwatch.diagnosis.pair_shape import Group, Limits, Shape, shape_of
from commwatch.node.topology.pair_matrix import PairMatrix
from heatmap.matrices import matrix, of_gpu

LIMITS = Limits(low_ratio=0.6, nearer_ratio=0.85, most_ratio=0.5)
SWITCHES = (
    Group("PCIe switch a", "switch", frozenset({0, 1})),
    Group("PCIe switch b", "switch", frozenset({2, 3})),
)
SOCKETS = (Group("NUMA node 0", "numa", frozenset(range(4))), Group("NUMA node 1", "numa", frozenset(range(4, 8))))


def two_switches(place: int, other: int) -> str:
    """Four GPUs, two below each PCIe switch."""
    return "PIX" if place // 2 == other // 2 else "NODE"


def two_sockets(place: int, other: int) -> str:
    """Eight GPUs, four below each CPU."""
    return "NODE" if place // 4 == other // 4 else "SYS"


def over_pcie(
    factors: Mapping[tuple[int, int], float], count: int = 4, way: Callable[[int, int], str] = two_switches
) -> PairMatrix:
    """GPUs without NVLink, of which a model expects what they give."""
    made = matrix(count, bandwidth=12.7e9, expected=11.9e9, path="", factors=factors)
    cells = tuple(msgspec.structs.replace(one, path=way(one.source, one.destination)) for one in made.cells)
    return msgspec.structs.replace(made, cells=cells)


def shape(made: PairMatrix, *groups: Group) -> Shape:
    """The shape by bandwidth."""
    found = shape_of(made, "bandwidth", groups, LIMITS)
    assert found is not None
    return found


def both(*pairs: tuple[int, int], factor: float = 0.4) -> dict[tuple[int, int], float]:
    """Pairs that are slow in both directions."""
    return {cell: factor for pair in pairs for cell in (pair, pair[::-1])}


def test_a_healthy_matrix_is_even() -> None:
    """Noise of a few percent is no pattern, over NVLink as over PCIe."""
    assert shape(matrix(noise=0.05)).kind == "even"
    assert shape(over_pcie({}), *SWITCHES).kind == "even"
    assert shape(over_pcie({}, 8, two_sockets), *SOCKETS).kind == "even"


def test_nothing_measured_has_no_shape() -> None:
    """A matrix without a bandwidth, or without a latency, says nothing of it."""
    made = matrix(2, missing=[(0, 1), (1, 0)])

    assert shape_of(made, "bandwidth", (), LIMITS) is None
    assert shape_of(made, "latency", (), LIMITS) is None


@pytest.mark.parametrize(
    ("factors", "kind", "name"),
    [
        (dict.fromkeys(of_gpu(3), 0.5), "gpu", "GPU3"),
        ({cell: 0.5 for cell in of_gpu(3) if cell[0] == 3}, "gpu", "GPU3 (all it sends)"),
        ({cell: 0.5 for cell in of_gpu(3) if cell[1] == 3}, "gpu", "GPU3 (all it receives)"),
        (both((2, 5)), "pair", "GPU2-GPU5"),
        ({(5, 2): 0.4}, "pair", "GPU5 to GPU2"),
        (both((0, 1), (2, 5), (3, 7)), "scattered", "pairs with nothing in common"),
    ],
)
def test_a_shape_is_named(factors: dict[tuple[int, int], float], kind: str, name: str) -> None:
    """A GPU, what it sends or receives, a pair, one direction of it; else the pairs one by one."""
    found = shape(matrix(factors=factors))

    assert (found.kind, found.name) == (kind, name)
    assert set(found.slow) == set(factors)
    assert found.others == pytest.approx(360e9, rel=0.02)


def test_the_slow_pair_under_one_switch_is_named_and_not_the_other() -> None:
    """Of two pairs under a switch one carries less than pairs across the CPU."""
    found = shape(over_pcie(both((0, 1), factor=0.6)), *SWITCHES)

    assert (found.kind, found.name) == ("pair", "GPU0-GPU1")
    assert found.typical == pytest.approx(0.6 * 12.7e9, rel=0.02)
    assert found.others == pytest.approx(12.7e9, rel=0.02)


def test_all_pairs_under_switches_are_a_class() -> None:
    """Where all near pairs are slower than the far ones it is the kind of way, though they are alike."""
    found = shape(over_pcie(both((0, 1), (2, 3), factor=0.67)), *SWITCHES)

    assert (found.kind, found.name) == ("path class", "pairs under one PCIe switch (PIX)")


@pytest.mark.parametrize(("factor", "kind"), [(0.84, "pair"), (0.87, "even")])
def test_near_pairs_are_held_against_far_ones(factor: float, kind: str) -> None:
    """From 85 % of what the CPU's way carries on a pair under a switch is well."""
    quiet = over_pcie(both((0, 1), factor=factor))
    cells = tuple(
        msgspec.structs.replace(one, bandwidth=12.7e9 * (factor if {one.source, one.destination} == {0, 1} else 1))
        for one in quiet.cells
    )

    assert shape(msgspec.structs.replace(quiet, cells=cells), *SWITCHES).kind == kind


def test_pairs_between_sockets_and_below_one_are_groups() -> None:
    """What lies on the way of all of them is one part: a NUMA node, or what is between two."""
    within = {(one, two): 0.5 for one in range(4, 8) for two in range(4, 8) if one != two}
    across = {(one, two): 0.5 for one in range(4) for two in range(4, 8)}

    assert shape(over_pcie(within, 8, lambda one, two: "SYS"), *SOCKETS).name == "pairs below NUMA node 1"
    found = shape(over_pcie(across, 8, lambda one, two: "SYS"), *SOCKETS)
    assert found.name in ("pairs from NUMA node 0", "pairs from NUMA node 0 to NUMA node 1")


@pytest.mark.parametrize(("factor", "kind"), [(0.70, "pair"), (0.82, "even")])
def test_a_single_pair_must_be_slower_than_a_part(factor: float, kind: str) -> None:
    """One pair counts from 78 % downwards; noise makes a lone 82 %."""
    assert shape(matrix(factors=both((2, 5), factor=factor))).kind == kind


@pytest.mark.parametrize(("factor", "kind"), [(0.55, "uniform"), (0.65, "even")])
def test_all_pairs_below_expectation_are_uniform(factor: float, kind: str) -> None:
    """Only an expectation can say that all are slow: among each other they are even."""
    every = {(one, two): factor for one in range(4) for two in range(4) if one != two}

    found = shape(matrix(4, expected=360e9, factors=every))

    assert (found.kind, found.expected) == (kind, kind == "uniform")


def test_clocks_that_are_not_up_in_the_first_round_are_no_fault() -> None:
    """All pairs of the first round are slower than the rest, as at the start of a cycle."""
    rounds = {0: [(0, 3), (1, 2)], 1: [(0, 2), (1, 3)], 2: [(0, 1), (2, 3)]}
    first = both(*rounds[0], factor=0.8)
    made = matrix(4, factors=first, expected=None)
    of_round = {cell: number for number, pairs in rounds.items() for pair in pairs for cell in (pair, pair[::-1])}
    cells = tuple(msgspec.structs.replace(one, round=of_round[one.source, one.destination]) for one in made.cells)

    assert shape(msgspec.structs.replace(made, cells=cells)).kind == "even"


def test_latency_has_a_shape_of_its_own() -> None:
    """Small messages of one GPU take three times as long; bandwidth is even."""
    made = matrix()
    cells = tuple(
        msgspec.structs.replace(one, latency_seconds=30e-6) if 3 in (one.source, one.destination) else one
        for one in made.cells
    )
    slow = msgspec.structs.replace(made, cells=cells)

    found = shape_of(slow, "latency", (), LIMITS)

    assert found is not None
    assert (found.name, found.typical) == ("GPU3", 30e-6)
    assert found.mark == pytest.approx(1.5 * 9e-6, rel=0.02)
    assert shape(slow).kind == "even"


def test_a_spike_of_one_of_two_measurements_is_no_fault() -> None:
    """A cell is measured alone and both ways at once: a fault is in both."""
    made = matrix()
    cells = tuple(
        msgspec.structs.replace(one, bandwidth=240e9) if (one.source, one.destination) == (2, 5) else one
        for one in made.cells
    )

    assert shape(msgspec.structs.replace(made, cells=cells)).kind == "even"
