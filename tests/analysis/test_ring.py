"""The best ring and the narrowest split, held against trying out all of them."""

from __future__ import annotations

from functools import partial
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.probes.results.ring import narrowest_split, slowest_hop


@st.composite
def graphs(draw: st.DrawFn, least: int = 2) -> tuple[int, dict[tuple[int, int], float]]:
    """A number of places, and a rate between every two, 0 where none is known."""
    count = draw(st.integers(min_value=least, max_value=6))
    rate = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0])
    return count, {ends: draw(rate) for ends in combinations(range(count), 2)}


def rate_between(rates: dict[tuple[int, int], float], first: int, second: int) -> float:
    return rates[min(first, second), max(first, second)]


def way_between(rates: dict[tuple[int, int], float], first: int, second: int) -> float | None:
    return rate_between(rates, first, second) or None


@given(graphs())
def test_the_best_ring_is_the_best_of_all(graph: tuple[int, dict[tuple[int, int], float]]) -> None:
    """Every order is tried: the best slowest hop, or nothing where each ring needs a way that is not known."""
    count, rates = graph
    slowest = [
        min(rate_between(rates, *hop) for hop in pairwise((0, *order, 0))) for order in permutations(range(1, count))
    ]

    found = slowest_hop(range(count), partial(way_between, rates))

    assert found == (max(slowest) or None)


@given(graphs(), st.floats(min_value=1.0, max_value=2.0))
def test_a_slower_way_never_improves_a_ring(graph: tuple[int, dict[tuple[int, int], float]], by: float) -> None:
    """Neither the best ring nor the narrowest split gains when one way loses."""
    count, rates = graph
    slower = rates | {(0, 1): rates[0, 1] / by}

    rings = [slowest_hop(range(count), partial(way_between, of)) or 0 for of in (slower, rates)]
    splits = [narrowest_split(range(count), partial(rate_between, of), lambda _: 0.0) for of in (slower, rates)]

    assert rings[0] <= rings[1]
    assert splits[0] <= splits[1]


@given(graphs(least=3), st.lists(st.sampled_from([0.0, 4.0, 6.0]), min_size=6, max_size=6))
def test_the_narrowest_split_is_the_narrowest_of_all(
    graph: tuple[int, dict[tuple[int, int], float]], switches: list[float]
) -> None:
    """Every way to put the members on two sides is tried, by the bits of a number."""
    count, rates = graph
    across = []
    for sides in range(1, 2**count - 1):
        ends = [[place for place in range(count) if sides >> place & 1 == side] for side in (0, 1)]
        direct = sum(rate_between(rates, one, other) for one in ends[0] for other in ends[1])
        across.append(direct + min(sum(switches[place] for place in side) for side in ends))

    found = narrowest_split(range(count), partial(rate_between, rates), switches.__getitem__)

    assert found == pytest.approx(min(across))


def test_members_are_named_by_their_own_numbers() -> None:
    """A ring over some of all ranks asks for these only."""
    asked: set[tuple[int, int]] = set()

    def rate(first: int, second: int) -> float:
        asked.add((first, second))
        return 1.0

    assert slowest_hop((3, 5, 7), rate) == 1.0
    assert asked == {(3, 5), (3, 7), (5, 7)}


def test_sixteen_members_are_the_most() -> None:
    """Sixteen equal ones have a ring; of more nothing is said. One alone has none."""
    assert slowest_hop(range(16), lambda *_: 2.0) == 2.0
    assert slowest_hop(range(17), lambda *_: 2.0) is None
    assert slowest_hop((0,), lambda *_: 2.0) is None


def test_many_members_behind_switches() -> None:
    """Above twelve members only single ones are split off: the one with the fewest links decides."""
    rates = [300.0] * 16
    rates[11] = 150.0

    assert narrowest_split(range(16), lambda *_: 0.0, rates.__getitem__) == 150.0
    rates[11], rates[0] = 300.0, 100.0
    assert narrowest_split(range(16), lambda *_: 0.0, rates.__getitem__) == 100.0
