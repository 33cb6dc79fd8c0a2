"""Rises of counters within a window."""

from __future__ import annotations

from commwatch.node.rises import Rises


def test_a_rise_is_told_while_it_is_in_the_window() -> None:
    """Rises add up; each leaves after the length of the window."""
    rises: Rises[str] = Rises(300.0)
    for time, total in ((0.0, 5), (10.0, 6), (100.0, 9), (110.0, 9)):
        rises.take("a", total, time)

    assert [rises.within(time) for time in (110.0, 309.0)] == [{"a": 4}, {"a": 4}]
    assert not rises.is_outdated(309.0)
    assert rises.is_outdated(310.0)
    assert [rises.within(time) for time in (310.0, 399.0, 400.0)] == [{"a": 3}, {"a": 3}, {}]


def test_a_first_total_and_a_counter_that_starts_again_are_no_rise() -> None:
    """What a counter says first may be of long ago; after a reset it is compared with the lower number."""
    rises: Rises[str] = Rises(300.0)
    assert [rises.take("a", total, 0.0) for total in (7, 0, 2, 2)] == [False, False, True, False]
    assert rises.within(0.0) == {"a": 2}


def test_a_counter_whose_beginning_is_known_rises_with_its_first_reading() -> None:
    """Such as that of an Xid that never came before."""
    rises: Rises[str] = Rises(300.0)
    rises.take("a", 3, 0.0, first=0)

    assert rises.within(0.0) == {"a": 3}
