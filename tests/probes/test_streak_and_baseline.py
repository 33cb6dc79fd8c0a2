"""When a latency is a spike, and when bad results are a row."""

from __future__ import annotations

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.probes.gate.budget import DAY_SECONDS, WINDOW_SECONDS, Occupied, recent, used
from commwatch.probes.results.course import Baseline, SpikeRule, baseline_of, is_spike
from commwatch.probes.results.streak import Streak, is_current, max_age

RULE = SpikeRule(deviations=6.0, ratio=1.5, absolute_seconds=None)
HOUR = 3600.0

latencies = st.floats(min_value=1e-6, max_value=1.0)


def test_no_baseline_below_the_fewest_results() -> None:
    """Nineteen good results are no baseline, twenty are."""
    assert baseline_of([1e-5] * 19, 20) is None
    assert baseline_of([1e-5] * 20, 20) == Baseline(1e-5, 0.0)


def test_deviation_is_the_median_absolute_one() -> None:
    """One far result moves neither the median nor the deviation."""
    assert baseline_of([1.0, 2.0, 3.0, 4.0, 100.0], 5) == Baseline(3.0, 1.0)


@pytest.mark.parametrize(
    ("baseline", "limit"),
    [
        (Baseline(2.0, 0.0), 3.0),  # a quiet baseline: the ratio decides
        (Baseline(2.0, 0.5), 5.0),  # an unquiet one: the deviations do
    ],
)
def test_spike_at_its_edge(baseline: Baseline, limit: float) -> None:
    """A latency at the limit is no spike, the next larger one is."""
    assert not is_spike(limit, baseline, RULE)
    assert is_spike(math.nextafter(limit, math.inf), baseline, RULE)


@given(st.lists(latencies, min_size=20, max_size=60), latencies, latencies)
def test_a_slower_result_never_stops_being_a_spike(known: list[float], latency: float, by: float) -> None:
    """What is a spike stays one when it takes longer."""
    baseline = baseline_of(known, 20)

    assert is_spike(latency + by, baseline, RULE) or not is_spike(latency, baseline, RULE)


def test_absolute_limit_needs_no_baseline() -> None:
    """Where a limit is set, a first result can already be a spike."""
    rule = SpikeRule(6.0, 1.5, absolute_seconds=0.015)

    assert not is_spike(0.015, None, rule)
    assert is_spike(0.0151, None, rule)
    assert not is_spike(10.0, None, RULE)


def test_absolute_limit_does_not_hide_the_baselines() -> None:
    """Below the absolute limit the baseline still judges."""
    assert is_spike(20e-6, Baseline(10e-6, 0.0), SpikeRule(6.0, 1.5, absolute_seconds=0.015))


@given(st.lists(latencies, min_size=20, max_size=60), latencies)
def test_spike_is_above_both_limits(known: list[float], latency: float) -> None:
    """A spike is above 1.5 medians and above six deviations over the median, whatever the baseline."""
    middle = median(known)
    deviation = median(abs(one - middle) for one in known)

    spike = is_spike(latency, baseline_of(known, 20), RULE)

    assert spike == (latency > 1.5 * middle and latency > middle + 6 * deviation)


def test_a_row_grows_and_a_good_result_ends_it() -> None:
    """Bad results in a row count; one good result and the count is 0."""
    streak = Streak().bad(0, HOUR).bad(900, HOUR).bad(1800, HOUR)

    assert streak == Streak(3, 1800)
    assert streak.good() == Streak(0, None)


def test_more_than_an_hour_between_members_restarts_the_row() -> None:
    """At exactly the gap the row goes on; a second later a new one begins."""
    streak = Streak().bad(0, HOUR).bad(900, HOUR)

    assert streak.bad(900 + 3600, HOUR).count == 3
    assert streak.bad(901 + 3600, HOUR) == Streak(1, 4501)


def test_a_clock_set_far_back_restarts_the_row() -> None:
    """Members from the future are not in a row with those of now."""
    assert Streak().bad(10_000, HOUR).bad(0, HOUR).count == 1


@given(st.lists(st.tuples(st.booleans(), st.floats(min_value=0, max_value=HOUR)), max_size=40))
def test_streak_is_the_number_of_bad_results_at_the_end(results: list[tuple[bool, float]]) -> None:
    """With gaps of at most an hour, the streak counts the bad results after the last good one."""
    streak, now = Streak(), 0.0
    for bad, pause in results:
        now += pause
        streak = streak.bad(now, HOUR + 1) if bad else streak.good()

    kinds = [bad for bad, _ in results]
    assert streak.count == len(kinds) - (max((i for i, bad in enumerate(kinds) if not bad), default=-1) + 1)


@pytest.mark.parametrize(("interval", "age"), [(900, 2700), (600, 1800), (60, 1800), (7200, 21600)])
def test_results_age_by_their_interval(interval: float, age: float) -> None:
    """A result counts for three intervals, and for half an hour at least."""
    assert max_age(interval) == age
    assert is_current(1000.0, interval, 1000.0 + age)
    assert not is_current(1000.0, interval, 1000.5 + age)
    assert not is_current(None, interval, 0.0)


def test_what_lies_far_in_the_future_does_not_count() -> None:
    """A clock that was set back makes no result current for ever, and keeps no budget used up."""
    ahead = 1e9
    assert is_current(ahead, HOUR, ahead - 60.0)
    assert not is_current(ahead, HOUR, ahead - 4 * HOUR)
    assert used([Occupied(ahead, 5.0)], ahead - 60.0) == 5.0
    assert used([Occupied(ahead, 5.0)], ahead - WINDOW_SECONDS) == 0.0
    assert recent([Occupied(ahead, 5.0)], ahead - DAY_SECONDS) == []
