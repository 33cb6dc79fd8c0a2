"""Rounds of disjoint pairs."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from commwatch.probes.rounds import Pair, circle_rounds, split_round
from support.examples import examples

NO_LINKS: frozenset[str] = frozenset()


def test_rounds_of_four() -> None:
    """Four ranks meet in three rounds of two pairs."""
    assert list(circle_rounds(4)) == [((0, 3), (1, 2)), ((0, 2), (1, 3)), ((0, 1), (2, 3))]


@given(st.integers(min_value=0, max_value=64))
def test_everybody_meets_everybody_once(count: int) -> None:
    """Every two ranks are a pair in one round, the smaller one first, and nobody has two partners in a round."""
    rounds = list(circle_rounds(count))

    assert sorted(pair for one in rounds for pair in one) == list(combinations(range(count), 2))
    for one in rounds:
        ranks = [rank for pair in one for rank in pair]
        assert len(ranks) == len(set(ranks))


@given(st.integers(min_value=2, max_value=64))
def test_there_is_no_round_too_many(count: int) -> None:
    """An even number of ranks is never idle; of an odd one, one rank is idle in each round and each one once."""
    rounds = list(circle_rounds(count))

    assert len(rounds) == (count if count % 2 else count - 1)
    assert all(len(one) == count // 2 for one in rounds)


@examples(40)  # each draws the links of up to 120 pairs
@given(st.data(), st.integers(min_value=2, max_value=16))
def test_pairs_of_a_split_round_share_no_link(data: st.DataObject, count: int) -> None:
    """Whatever the links, a split round has all pairs of the whole one, and no link twice."""
    links = {
        pair: data.draw(st.frozensets(st.sampled_from(["switch", "socket", "bridge"])))
        for pair in combinations(range(count), 2)
    }
    for whole in circle_rounds(count):
        parts = split_round(whole, lambda one, two: links[one, two])

        assert sorted(pair for part in parts for pair in part) == sorted(whole)
        for part in parts:
            used = [link for pair in part for link in links[pair]]
            assert len(used) == len(set(used))


def test_a_round_without_shared_links_stays_whole() -> None:
    """Pairs are measured one after another only where they must be."""
    whole: tuple[Pair, ...] = ((0, 3), (1, 2))

    assert split_round(whole, lambda *_: NO_LINKS) == [whole]
    assert split_round(whole, lambda one, two: frozenset({f"switch {one}"})) == [whole]


def test_pairs_through_one_link_take_turns() -> None:
    """Three pairs through one socket link and one beside it: three rounds, the free pair in the first."""
    between_sockets = {(0, 4), (1, 5), (2, 6)}

    parts = split_round(
        ((0, 4), (1, 5), (2, 6), (3, 7)),
        lambda one, two: frozenset({"socket"}) if (one, two) in between_sockets else NO_LINKS,
    )

    assert parts == [((0, 4), (3, 7)), ((1, 5),), ((2, 6),)]
