"""Pairs that are measured at the same time: rounds in which no GPU has two partners, and no two pairs share a link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]
"""Two ranks, the smaller one first."""


def circle_rounds(count: int) -> Iterator[tuple[Pair, ...]]:
    """Every two of ``count`` ranks once, in as few rounds of disjoint pairs as there can be.

    The circle method: one rank stays, the others move one place on around the table after each round. An even number
    takes count - 1 rounds, an odd one count rounds with one rank idle in each. Below two ranks there is no round.
    """
    if count < 2:
        return
    # With an odd number a ghost sits at the table; who is opposite to it is idle.
    table = list(range(count + count % 2))
    for _ in range(len(table) - 1):
        opposite = zip(table[: len(table) // 2], reversed(table), strict=False)
        yield tuple(sorted((min(pair), max(pair)) for pair in opposite if count not in pair))
        table.insert(1, table.pop())


def split_round(pairs: Iterable[Pair], shared_links: Callable[[int, int], frozenset[str]]) -> list[tuple[Pair, ...]]:
    """One round as several, so that no two pairs of one cross the same link.

    Each pair goes into the first round that has none of its links yet.

    Args:
        shared_links: links that the traffic of two ranks crosses beside their own.
    """
    rounds: list[tuple[list[Pair], set[str]]] = []
    for pair in pairs:
        links = shared_links(*pair)
        for members, used in rounds:
            if not links & used:
                members.append(pair)
                used.update(links)
                break
        else:
            rounds.append(([pair], set(links)))
    return [tuple(members) for members, _ in rounds]
