"""Parts that have less than their equals."""

from __future__ import annotations

from commwatch.node.equals import shortfalls
from support.passes import in_one_pass


def short(numbers: list[int], most_odd: float = 0.25, ends: int = 1) -> list[int] | None:
    """How much each of some equal parts is short of; None where nothing can be said."""
    found = shortfalls({place: ("one model", has) for place, has in enumerate(numbers)}, most_odd, ends)
    return [found[place] for place in range(len(numbers))] if found else None


@in_one_pass(
    "numbers, ends, found",
    [
        ([18, 18, 18], 1, None),  # too few to say which is odd
        ([18, 18, 18, 18], 1, [0, 0, 0, 0]),
        ([18, 17, 18, 18], 1, [0, 1, 0, 0]),
        ([16, 8, 16, 16, 8, 16, 16, 16], 1, [0, 8, 0, 0, 8, 0, 0, 0]),
        ([16, 8, 16, 16, 8, 16, 8, 16], 1, None),  # three of eight: it is made so
        ([4, 4, 3, 3], 1, None),
        ([12, 11, 12, 11], 2, [0, 1, 0, 1]),  # one link joins two of them
        ([12, 10, 12, 10], 2, None),
        ([12, 0, 12, 0], 2, None),  # two with a bridge, two without
        ([12, 11, 11, 11], 2, [0, 0, 0, 0]),  # more than the others is no fault
    ],
)
def test_the_odd_ones_are_named_where_the_others_agree(numbers: list[int], ends: int, found: list[int] | None) -> None:
    """One part, or a quarter of them, or the two ends of one thing."""
    assert short(numbers, ends=ends) == found


def test_parts_of_another_model_are_no_equals() -> None:
    """Each is held against its own."""
    parts = {place: ("a" if place < 4 else "b", 18 if place < 4 else 12) for place in range(8)}

    assert set(shortfalls(parts, 0.25).values()) == {0}
