"""Who measures with whom: three rounds, whatever the number of nodes; pure.

Every member computes the same pairs from the same members, groups, seed and results, so there is no leader. Round 1
pairs nodes of a leaf, round 2 nodes of different leaves, round 3 suspects with witnesses. The order comes from a hash
and not from ``random``, whose sequence belongs to a version of Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from itertools import chain, combinations, count, product
from typing import Final, NamedTuple

from commwatch.probes.rounds import split_round

NO_LEAF: Final = ""
"""The leaf of a node of which none is known."""
SENDING_SHARE: Final = 8
"""One of this number of nodes of a leaf sends to other leaves at once: jobs on the shared uplinks feel little."""
FEW_MEMBERS: Final = 4
"""Up to this number of members, all meet in three rounds."""
REPEATED_MEMBERS: Final = 8
"""Up to this number of members, a pair is measured again where no other witness is near, and an end with more bad cells
than good ones; of more nodes, one with more than twice as many."""
MOST_TURNS: Final = 8
"""Of a member, so that a run holds its GPUs for 40 s at most."""
MOST_PASSES: Final = 4
"""Times that suspects are measured again."""
_TRIES: Final = 64
"""Exchanges that are tried for each node of round 2, on average, before a pair within a leaf is accepted."""


class Pair(NamedTuple):
    """Two nodes that measure together, as places in the list of members; both directions and all rails."""

    first: int
    second: int
    wave: int = 0
    """Pairs of a later wave begin when those of the earlier ones are done."""


class Suspect(NamedTuple):
    """A node whose measurements were all slow, on some rails."""

    member: int
    rails: AbstractSet[int | None]
    witnesses: int
    """The number of witnesses with which it is to be measured again."""


def first_round(leaves: Sequence[str], seed: str, rails: Sequence[int] = ()) -> tuple[Pair, ...]:
    """Pairs within each leaf, at random, of nodes with as many rails; what is left over is paired together.

    Args:
        seed: of the run; another one gives other pairs.
        rails: of each member, how many it has; empty: all have as many.
    """
    of_leaf: dict[str, list[int]] = {}
    order = _shuffled(range(len(leaves)), seed, "first")
    for member in sorted(order, key=lambda member: rails[member]) if rails else order:
        of_leaf.setdefault(leaves[member], []).append(member)
    left = [members.pop() for members in of_leaf.values() if len(members) % 2]
    pairs = [
        Pair(*sorted(members[place : place + 2]))
        for members in (*of_leaf.values(), left)
        for place in range(0, len(members) - 1, 2)
    ]
    return tuple(sorted(pairs))


def second_round(
    leaves: Sequence[str], seed: str, first: Sequence[Pair], rails: Sequence[int] = ()
) -> tuple[Pair, ...]:  # fmt: skip
    """Pairs between leaves, at random, so that the partners of a leaf are spread over many; none of round 1 again.

    Where one leaf has more than half of the nodes, some pairs stay within it. Nodes with as many rails are paired where
    that costs neither. Arguments as ``first_round``.
    """
    met = {frozenset(pair[:2]) for pair in first}
    rested = set(range(len(leaves))) - {member for pair in first for member in pair[:2]}
    order = _shuffled(range(len(leaves)), seed, "second")
    # No member pauses twice: with an odd number the last one of the order pauses.
    order.sort(key=lambda member: member not in rested)
    pairs = [[order[place], order[place + 1]] for place in range(0, len(order) - 1, 2)]

    grouped = len(set(leaves)) > 1

    def cost(one: int, other: int) -> int:
        same_leaf = grouped and leaves[one] == leaves[other]
        return 4 * (frozenset((one, other)) in met) + 2 * same_leaf + bool(rails and rails[one] != rails[other])

    tries = _TRIES * len(leaves)
    for place, pair in enumerate(pairs):
        for step in range(1, len(pairs)):
            if not cost(*pair) or tries == 0:
                break
            tries -= 1
            other = pairs[(place + step) % len(pairs)]
            before = cost(*pair) + cost(*other)
            for swapped in ((pair[0], other[1], other[0], pair[1]), (pair[0], other[0], pair[1], other[1])):
                if cost(*swapped[:2]) + cost(*swapped[2:]) < before:
                    pair[:], other[:] = swapped[:2], swapped[2:]
                    break
    if len(pairs) == 1 and len(order) == 3 and cost(*pairs[0]):
        pairs = [[order[0], order[2]]]  # of three nodes the one that rested meets one of the others
    return tuple(_in_waves([(min(pair), max(pair)) for pair in pairs], leaves))


def _in_waves(pairs: Sequence[tuple[int, int]], leaves: Sequence[str]) -> Iterator[Pair]:
    """The pairs with waves, so that few nodes of a leaf send between leaves at once."""
    sizes: dict[str, int] = {}
    for leaf in leaves:
        sizes[leaf] = sizes.get(leaf, 0) + 1
    taken: dict[tuple[str, int], int] = {}
    for first, second in sorted(pairs):
        ends = {leaves[first], leaves[second]}
        wave = 0
        if len(ends) > 1:
            wave = next(
                one
                for one in count()
                if all(taken.get((leaf, one), 0) < max(1, sizes[leaf] // SENDING_SHARE) for leaf in ends)
            )
            for leaf in ends:
                taken[leaf, wave] = taken.get((leaf, wave), 0) + 1
        yield Pair(first, second, wave)


def witness_round(
    leaves: Sequence[str],
    seed: str,
    suspects: Sequence[Suspect],
    doubtful: Mapping[int, AbstractSet[int | None]],
    met: Iterable[frozenset[int]],
    sides: Sequence[int] = (),
    rails: Sequence[int] = (),
) -> tuple[Pair, ...]:
    """Each suspect with witnesses of its own leaf that were good on the suspect's rails; each of these once a wave.

    Where its leaf has none, one of its side, or any other; if none was good, another member. One that it has met comes
    again only where there is no other. Up to four nodes make all pairs, whatever is suspected: if most pairs were slow,
    the usual rate is not known yet. It is called again with its results, until it is empty.

    Args:
        doubtful: members that had a slow measurement, and on which rails.
        met: pairs that have been measured, as often as they were.
        sides: of each member, equal where no slower path is between two; empty: not known.
        rails: of each member, how many it has; empty: all have as many.
    """
    met = list(met)
    times = Counter(met)
    few, repeats = len(leaves) <= FEW_MEMBERS, len(leaves) <= REPEATED_MEMBERS
    missing = [pair for pair in combinations(range(len(leaves)), 2) if few and not times[frozenset(pair)]]
    if missing:
        waves = split_round(missing, lambda *pair: frozenset(map(str, pair)))
        return tuple(Pair(*pair, wave) for wave, pairs in enumerate(waves) for pair in pairs)
    if not (suspects or few) and repeats and set(leaves) == {NO_LEAF} and len(met) <= len(leaves):
        # Two rounds of few nodes may all have gone between two islands, of which nothing is known then.
        return second_round(leaves, f"{seed} again", [Pair(*sorted(pair)) for pair in met], rails)
    order = _shuffled(range(len(leaves)), seed, f"third {len(met)}")
    near: dict[tuple[str, object], list[int]] = {}
    for member in order:
        for group in _groups(member, leaves, sides):
            near.setdefault(group, []).append(member)
    turns = Counter(chain.from_iterable(met))
    accused = {one.member for one in suspects}
    pairs: list[Pair] = []
    for wave in range(max((one.witnesses for one in suspects), default=0)):
        busy = {member for member, count in turns.items() if count >= MOST_TURNS}
        waiting = sorted(one for one in suspects if one.witnesses > wave)
        if repeats:  # a pair that was measured once decides more than one that was measured twice
            others = {one: [frozenset((one, other)) for other in order if other != one] for one in order}
            waiting.sort(key=lambda one: min(times[pair] for pair in others[one.member]))
        for only_good, suspect in product((True, False), waiting):
            own = suspect.member
            if own in busy:
                continue
            least = 1 + max((rail for rail in suspect.rails if rail is not None), default=0)
            if repeats:  # a good one of its side that it has met least
                cost = [
                    _distance(own, one, leaves, sides)
                    + times[frozenset((own, one))]
                    - _was_good(one, suspect, accused, doubtful)
                    for one in range(len(leaves))
                ]
                candidates: Iterable[int] = sorted(order, key=cost.__getitem__)
            else:
                candidates = (
                    one
                    for one in chain(*(near[group] for group in _groups(own, leaves, sides)), order)
                    if not times[frozenset((own, one))]
                    and (not only_good or _was_good(one, suspect, accused, doubtful))
                )
            free = (one for one in candidates if one not in busy and one != own and (not rails or rails[one] >= least))
            other = next(free, None)
            if other is not None:
                busy |= {own, other}
                times[frozenset((own, other))] += 1
                turns.update((own, other))
                pairs.append(Pair(min(own, other), max(own, other), wave))
    return tuple(pairs)


def _was_good(
    member: int, suspect: Suspect, accused: AbstractSet[int], doubtful: Mapping[int, AbstractSet[int | None]]
) -> bool:  # fmt: skip
    """Whether a member is no suspect itself, and had no slow measurement on the rails of one."""
    return member not in accused and not suspect.rails & doubtful.get(member, frozenset())


def _groups(member: int, leaves: Sequence[str], sides: Sequence[int]) -> Iterator[tuple[str, object]]:
    """The nearest group of a member first: its leaf, its side."""
    if leaves[member] != NO_LEAF:
        yield "leaf", leaves[member]
    if sides:
        yield "side", sides[member]


def _distance(member: int, other: int, leaves: Sequence[str], sides: Sequence[int]) -> int:
    """0 in one leaf or on one side, 2 with a slower path between, 1 if that is not known."""
    if not sides:
        return int(leaves[member] != leaves[other])
    return 0 if sides[member] == sides[other] else 2 if sides[member] // 2 == sides[other] // 2 else 1


def _shuffled(members: Sequence[int], seed: str, what: str) -> list[int]:
    """The members in an order that depends on the seed alone."""
    return sorted(members, key=lambda one: blake2b(f"{seed}/{what}/{one}".encode(), digest_size=8).digest())
