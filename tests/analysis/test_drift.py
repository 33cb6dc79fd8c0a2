"""The course of a quantity over days: reference, drift and steps, each at its edge."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.thresholds import load_thresholds
from commwatch.probes.results.course import KEPT_RESULTS, Baseline, Course, held_to
from support.passes import in_one_pass

RULE = load_thresholds(None)
DAY = 86400.0

times = st.floats(min_value=1e-6, max_value=1.0)


def course(seconds: Sequence[float], apart: float = 900.0, start: Course | None = None) -> Course:
    """A course of good results, so many seconds apart."""
    found = start or Course()
    since = 0.0 if found.since is None else found.since + apart * len(found.good)
    for number, one in enumerate(seconds):
        found = found.after(one, good=True, now=since + number * apart, rule=RULE)
    return found


def test_the_reference_is_of_a_whole_day() -> None:
    """97 results 15 min apart are a day; one fewer is not. What comes later does not change it."""
    young = course([1.0] * 96)
    assert young.reference is None

    settled = course([3.0] * 100, start=young.after(1.0, good=True, now=DAY, rule=RULE))

    assert settled.reference == Baseline(1.0, 0.0)


def test_seldom_results_take_longer_than_a_day() -> None:
    """Once a day: twenty results are needed all the same."""
    assert course([1.0] * 19, apart=DAY).reference is None
    assert course([1.0] * 20, apart=DAY).reference == Baseline(1.0, 0.0)


def test_frequent_results_need_no_day() -> None:
    """Every second: as many as are kept are enough, since the first ones would be forgotten."""
    assert course([1.0] * (KEPT_RESULTS - 1), apart=1.0).reference is None
    assert course([1.0] * KEPT_RESULTS, apart=1.0).reference == Baseline(1.0, 0.0)


def test_bad_results_are_in_no_baseline_and_do_not_begin_the_day() -> None:
    """They count as latest results only."""
    found = Course().after(9.0, good=False, now=0.0, rule=RULE)

    assert (found.good, found.latest, found.since) == ((), (9.0,), None)


def test_a_clock_set_back_makes_no_day() -> None:
    """Results from before the first one do not settle the reference."""
    found = course([1.0] * 20, apart=1.0).after(1.0, good=True, now=-2 * DAY, rule=RULE)

    assert found.reference is None


def test_drift_at_its_edges() -> None:
    """Twice as slow is 2, twice as fast 0.5; without reference or with too few results nothing is said."""
    assert Course(since=0.0, good=(2.0,) * 20, reference=Baseline(1.0, 0.1)).drift_ratio(RULE) == 2.0
    assert Course(since=0.0, good=(0.5,) * 20, reference=Baseline(1.0, 0.1)).drift_ratio(RULE) == 0.5
    assert Course(since=0.0, good=(2.0,) * 20).drift_ratio(RULE) is None
    assert Course(since=0.0, good=(1.0,) * 19, reference=Baseline(1.0, 0.0)).drift_ratio(RULE) is None
    assert Course(since=0.0, good=(1.0,) * 20, reference=Baseline(1.0, 0.0)).drift_ratio(RULE) == 1.0


def test_a_decline_over_weeks_is_held_against_the_first_day() -> None:
    """Half a percent a day: after 40 days the drift is that of the middle of the results kept."""
    found = course([1.005 ** (number / 96) for number in range(40 * 96)])

    assert found.drift_ratio(RULE) == pytest.approx(1.005 ** (40 - KEPT_RESULTS / 96 / 2 - 0.5), rel=2e-3)


def test_what_judges_follows_improvement_and_no_decline() -> None:
    """The median rises to 1.15 times the reference and no further, the deviation likewise; both may fall."""
    reference = Baseline(1.0, 0.1)

    assert held_to(Baseline(1.15, 0.1), reference, 1.15) == Baseline(1.15, 0.1)
    assert held_to(Baseline(1.16, 0.2), reference, 1.15) == Baseline(1.15, 1.15 * 0.1)
    assert held_to(Baseline(0.5, 0.01), reference, 1.15) == Baseline(0.5, 0.01)
    assert held_to(Baseline(5.0, 1.0), None, 1.15) == Baseline(5.0, 1.0)
    assert held_to(None, reference, 1.15) is None


@in_one_pass(
    "seconds, expected",
    [
        ([1.0] * 20 + [2.0] * 5, 2.0),
        ([1.0] * 20 + [1.0, 1.0, 2.0, 2.0, 2.0], 2.0),  # three of five make it
        ([1.0] * 20 + [1.0, 1.0, 1.0, 9.0, 9.0], 1.0),  # two do not
        ([1.0] * 20 + [2.0] * 14, 2.0),  # nine of the twenty before are slow
        ([1.0] * 20 + [2.0] * 16, 1.0),  # eleven are: the step has become the normal
        ([2.0] * 20 + [1.0] * 5, 0.5),
        ([1.0] * 24, None),
        ([0.0] * 20 + [1.0] * 5, None),
    ],
)
def test_steps_at_their_edges(seconds: list[float], expected: float | None) -> None:
    """Medians of the last five and of the twenty before; nothing with fewer than both."""
    assert course(seconds).step_ratio(RULE) == expected


CALM = [1.0] * 20
UNEASY = [0.9, 1.1] * 10  # a spread of 0.2


@in_one_pass(
    "seconds, expected",
    [
        (CALM + [0.85, 1.15] * 10, pytest.approx(2.0)),  # a spread of 0.3 against one of 0.15, which calm counts as
        (CALM + [0.86, 1.15] * 10, pytest.approx(1.93, abs=0.01)),
        (UNEASY + [0.8, 1.2] * 10, pytest.approx(2.0)),
        (UNEASY + UNEASY, pytest.approx(1.0)),
        (CALM + [1.0] * 15 + [9.0] * 5, 0.0),  # five of the last twenty are far: a quarter is left out
        (CALM + [1.0] * 14 + [9.0] * 6, pytest.approx(8 / 0.15)),
        ([9.0] * 5 + [1.0] * 15 + CALM, 0.0),
        (CALM + CALM[:19], None),
        ([0.0] * 20 + [1.0] * 20, None),
    ],
)
def test_swings_at_their_edges(seconds: list[float], expected: float | None) -> None:
    """Ranges of the middle half of the last twenty and of the twenty before; nothing with fewer than both."""
    assert course(seconds).swing_ratio(RULE) == expected


@given(st.lists(times, max_size=2 * KEPT_RESULTS + 10), st.lists(times, max_size=40))
def test_what_is_kept(good: list[float], bad: list[float]) -> None:
    """At most 200 good results, and as many of all as the search for a swing needs, the latest ones in order."""
    found = course(good, apart=1.0)
    for one in bad:
        found = found.after(one, good=False, now=0.0, rule=RULE)

    assert list(found.good) == good[-KEPT_RESULTS:]
    assert list(found.latest) == [*good, *bad][-40:]


@given(st.lists(times, min_size=25, max_size=40), st.integers(min_value=0, max_value=39), times)
def test_a_slower_last_result_never_improves_a_ratio(seconds: list[float], place: int, by: float) -> None:
    """More time in one of the last five results raises the step, in any kept one the drift, or leaves them."""
    reference = Baseline(0.1, 0.0)
    place %= len(seconds)
    slower = [one + by * (number == place) for number, one in enumerate(seconds)]
    before, after = Course(tuple(seconds), (), 0.0, reference), Course(tuple(slower), (), 0.0, reference)

    assert (after.drift_ratio(RULE) or 0) >= (before.drift_ratio(RULE) or 0) > 0
    if place >= len(seconds) - 5:
        before, after = Course(latest=tuple(seconds)), Course(latest=tuple(slower))
        assert (after.step_ratio(RULE) or 0) >= (before.step_ratio(RULE) or 0) > 0


@given(st.lists(times, min_size=20, max_size=60), times, times)
def test_what_judges_is_bounded_by_both(known: list[float], middle: float, spread: float) -> None:
    """The baseline that judges is at most the rolling one and at most 1.15 times the reference, in both figures."""
    rolling = Baseline(median(known), spread)
    reference = Baseline(middle, spread / 2)

    found = held_to(rolling, reference, 1.15)

    assert found == Baseline(min(rolling.median, 1.15 * middle), min(spread, 1.15 * (spread / 2)))
