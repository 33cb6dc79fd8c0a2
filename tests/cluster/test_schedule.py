"""Who measures with whom: three rounds, whatever the number of nodes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as some

from commwatch.cluster.schedule import NO_LEAF, Pair, Suspect, first_round, second_round, witness_round
from support.examples import examples
from support.passes import in_one_pass


def leaves_of(sizes: list[int]) -> list[str]:
    """Members of leaves of these sizes."""
    return [f"leaf{number}" for number, size in enumerate(sizes) for _ in range(size)]


def ends(pairs: tuple[Pair, ...]) -> list[int]:
    """All members of pairs."""
    return [member for pair in pairs for member in pair[:2]]


@examples(50)
@given(some.lists(some.integers(1, 9), min_size=1, max_size=12), some.text(max_size=4))
def test_rounds_take_each_member_once(sizes: list[int], seed: str) -> None:
    """At most one rests, and not the same one twice; within a leaf as many pairs as fit."""
    leaves = leaves_of(sizes)

    first = first_round(leaves, seed)
    second = second_round(leaves, seed, first)

    for pairs in (first, second):
        assert len(set(ends(pairs))) == len(ends(pairs)) == len(leaves) - len(leaves) % 2
    inner = sum(leaves[pair.first] == leaves[pair.second] for pair in first)
    assert inner == sum(size // 2 for size in sizes)
    if len(leaves) > 1:
        assert set(ends(first)) | set(ends(second)) == set(range(len(leaves)))


@in_one_pass("sizes", [[32] * 32, [4] * 4, [7, 5, 9, 6], [3, 3, 2], []])
def test_second_round_joins_other_leaves_only(sizes: list[int]) -> None:
    """No pair shares a leaf, none has met; without groups both rounds are random and different."""
    leaves = leaves_of(sizes) or [NO_LEAF] * 64
    first = first_round(leaves, "run")

    second = second_round(leaves, "run", first)

    assert len(second) == len(leaves) // 2
    assert not sizes or not [pair for pair in second if leaves[pair.first] == leaves[pair.second]]
    assert not {pair[:2] for pair in first} & {pair[:2] for pair in second}


def test_partners_of_a_leaf_are_spread() -> None:
    """The 32 nodes of a leaf meet nodes of at least a dozen others: no leaf is judged by one other."""
    leaves = leaves_of([32] * 32)

    second = second_round(leaves, "run", first_round(leaves, "run"))

    met: dict[str, set[str]] = {}
    for pair in second:
        met.setdefault(leaves[pair.first], set()).add(leaves[pair.second])
        met.setdefault(leaves[pair.second], set()).add(leaves[pair.first])
    assert min(map(len, met.values())) >= 12


def test_few_nodes_of_a_leaf_send_between_leaves_at_once() -> None:
    """One in eight, so that running jobs feel little."""
    leaves = leaves_of([32] * 8)

    second = second_round(leaves, "run", first_round(leaves, "run"))

    sending = Counter((leaves[member], pair.wave) for pair in second for member in pair[:2])
    assert max(sending.values()) == 4
    assert max(pair.wave for pair in second) < 16


def test_pairs_depend_on_the_seed_alone() -> None:
    """Each member computes the same ones; another run has others. The order of a hash is fixed for ever."""
    leaves = leaves_of([3, 3])

    assert first_round(leaves, "run") == first_round(leaves, "run") == ((0, 2, 0), (1, 5, 0), (3, 4, 0))
    assert len({first_round(leaves, str(seed)) for seed in range(20)}) > 3


@in_one_pass("members", [3, 4])
@in_one_pass("seed", range(12))
def test_three_or_four_nodes_meet_in_three_rounds(members: int, seed: int) -> None:
    """Also where nobody is suspected: with two slow pairs of three, nothing says what is usual."""
    leaves = [NO_LEAF] * members
    first = first_round(leaves, str(seed))
    second = second_round(leaves, str(seed), first)
    met = {frozenset(pair[:2]) for pair in (*first, *second)}

    third = witness_round(leaves, str(seed), [], {}, met)

    assert len(met) == len(first) + len(second)
    assert len(met | {frozenset(pair[:2]) for pair in third}) == members * (members - 1) // 2


def test_witness_is_of_the_suspects_leaf_and_was_good() -> None:
    """Each once a wave; a witness may be doubtful on another rail."""
    leaves = leaves_of([4, 4])
    suspects = [Suspect(0, {3}, 2), Suspect(1, {3}, 1)]

    pairs = witness_round(leaves, "run", suspects, {0: {3}, 1: {3}, 2: {3}, 3: {5}}, {frozenset((0, 1))})

    assert next(set(pair[:2]) for pair in pairs if pair.wave == 0) == {0, 3}
    assert all(not {1, 2} >= set(pair[:2]) for pair in pairs)
    assert Counter(ends(pairs))[0] == 2
    assert all(max(Counter(ends(tuple(one for one in pairs if one.wave == wave))).values()) == 1 for wave in (0, 1))


def test_members_of_a_large_cluster_are_paired_quickly_in_one_leaf_and_in_many() -> None:
    """The work grows with the number of members, also where a leaf has most of them."""
    for sizes in ([256] * 8, [2000, 48], [2048]):
        leaves = leaves_of(sizes)
        assert len(second_round(leaves, "run", first_round(leaves, "run"))) == 1024


def test_nodes_with_as_many_rails_are_paired() -> None:
    """So each rail is measured; one pair of a leaf may be mixed."""
    leaves, rails = leaves_of([8] * 4), [4, 8, 8, 8] * 8

    first = first_round(leaves, "run", rails)
    second = second_round(leaves, "run", first, rails)

    assert sum(rails[pair.first] != rails[pair.second] for pair in (*first, *second)) <= 4


def test_a_witness_has_the_rail_of_the_suspect() -> None:
    """One with fewer rails would measure nothing of it."""
    pairs = witness_round(leaves_of([8]), "run", [Suspect(0, {5}, 3)], {}, set(), rails=[8, 4, 4, 8, 4, 8, 4, 4])

    assert {frozenset(pair[:2]) for pair in pairs[:2]} == {frozenset((0, 3)), frozenset((0, 5))}
    assert all({pair.first, pair.second} <= {0, 3, 5} for pair in pairs)


def test_a_witness_is_of_the_same_side_of_a_slower_path() -> None:
    """Over that path a slow rail cannot be told from the path."""
    pairs = witness_round([NO_LEAF] * 12, "run", [Suspect(0, {1}, 4)], {}, set(), sides=[0, 1] * 6)

    assert len(pairs) == 4
    assert all(pair.second % 2 == 0 for pair in pairs)


def test_nobody_has_more_turns_than_its_gpus_may_be_held_for() -> None:
    """Nor a suspect that nothing clears."""
    met = [frozenset((0, other)) for other in range(1, 8)]

    pairs = witness_round(leaves_of([64]), "run", [Suspect(0, {1}, 5)], {}, met)

    assert len(pairs) == 1
    # From five nodes on, where nobody is suspected, the round is empty.
    assert witness_round(leaves_of([5]), "run", [], {}, set()) == ()


def test_of_three_nodes_the_pair_that_was_measured_least_comes_again() -> None:
    """It decides most; all have met."""
    met = [frozenset(pair) for pair in ((0, 1), (0, 1), (0, 2), (0, 2), (1, 2))]

    pairs = witness_round([NO_LEAF] * 3, "run", [Suspect(member, {0}, 1) for member in range(3)], {}, met)

    assert [pair[:2] for pair in pairs] == [(1, 2)]
