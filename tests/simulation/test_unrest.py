"""The unrest of healthy measurements on the simulated node."""

from __future__ import annotations

from statistics import fmean, median

from commwatch.simulation.pace import lot, unrest

WARM = 1000
"""Calls after which clocks have long risen."""


def series(rank: int = 0, calls: int = 20_000, time: float = 100.0) -> list[float]:
    return [unrest(time, 7, WARM + call, rank) for call in range(calls)]


def test_lots_are_even_and_their_own() -> None:
    """Each seed has one lot; many of them spread evenly from 0 to 1."""
    lots = [lot(3, number) for number in range(10_000)]

    assert lots == [lot(3, number) for number in range(10_000)]
    assert len(set(lots)) == len(lots)
    assert 0 <= min(lots) < max(lots) < 1
    for tenth in range(10):
        assert 900 < sum(tenth / 10 <= one < (tenth + 1) / 10 for one in lots) < 1100


def test_most_calls_differ_by_a_few_percent() -> None:
    """The median is what it should be within 1.5 %, and all but one in a hundred are within 5 % of it."""
    found = series()
    middle = median(found)

    assert abs(middle - 1) < 0.015
    assert sum(abs(one / middle - 1) > 0.05 for one in found) / len(found) < 0.01


def test_a_call_is_late_now_and_then() -> None:
    """About one in 250 takes at least 1.2 times as long, some several times, none more than seven times."""
    late = [one for one in series() if one > 1.2]

    assert 40 < len(late) < 130
    assert 3 < max(late) < 7
    assert fmean(late) > 1.5


def test_ranks_end_almost_together() -> None:
    """What one call takes on two ranks differs by less than half a percent, late calls among them."""
    for one, other in zip(series(rank=0, calls=2000), series(rank=7, calls=2000), strict=True):
        assert abs(one / other - 1) < 0.005


def test_seconds_differ() -> None:
    """The same call a minute later has another unrest."""
    assert series(calls=5) != series(calls=5, time=160.0)


def test_clocks_rise_in_the_first_calls() -> None:
    """The first call takes about 40 % longer, the third 10 %; the twentieth nothing more."""
    seconds = range(200)
    factors = [median(unrest(second, 1, call, 0) for second in seconds) for call in (0, 2, 20)]

    assert [round(factor, 1) for factor in factors] == [1.4, 1.1, 1.0]
