"""Finds parts that have less than their equals on the same node, which learning cannot find: it was so on the first
day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

_Key = TypeVar("_Key")

LEAST_EQUALS = 4
"""With two or three equals it is unknown which is the odd one: boards with one wide slot are sold."""


def shortfalls(parts: Mapping[_Key, tuple[str, int]], most_odd: float, ends: int = 1) -> dict[_Key, int]:
    """How much less each part has than its equals do; parts without enough equals that agree are left out.

    Args:
        parts: what each is equal to the others in, such as its model, and how much of something it has.
        most_odd: share of the equals that may differ from the others, one at least. Where more do, it is made so.
        ends: parts that have one less each where a single thing lacks: two GPUs that a link joins.
    """
    groups: dict[str, list[int]] = {}
    for equal_in, has in parts.values():
        groups.setdefault(equal_in, []).append(has)
    usual: dict[str, int] = {}
    for equal_in, numbers in groups.items():
        most, same = max(Counter(numbers).items(), key=lambda one: (one[1], one[0]))
        odd = [number for number in numbers if number != most]
        is_one_thing = odd == [most - 1] * ends and same >= ends
        if len(numbers) >= LEAST_EQUALS and (len(odd) <= max(1, int(most_odd * len(numbers))) or is_one_thing):
            usual[equal_in] = most
    return {key: max(0, usual[equal_in] - has) for key, (equal_in, has) in parts.items() if equal_in in usual}
