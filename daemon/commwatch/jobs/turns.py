"""The order in which files of several users are taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

_One = TypeVar("_One")


def in_turn(these: Iterable[_One], owner: Callable[[_One], int]) -> list[_One]:
    """One of each user after the other, those of one user in their order: the many of one push out no other's."""
    numbers: Counter[int] = Counter()
    turns = []
    for one in these:
        numbers[owner(one)] += 1
        turns.append((numbers[owner(one)], one))
    return [one for _, one in sorted(turns, key=lambda turn: turn[0])]
