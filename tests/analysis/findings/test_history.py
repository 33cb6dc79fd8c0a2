"""How counters moved: over the window asked for, over resets, and never more than was seen."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.findings.history import CHANGES_MAX, CounterHistory, HistoryState

METRIC = "commwatch_nvlink_recoveries_total"
XID = "commwatch_gpu_xid_events_total"
LABELS = ("0", "0000:17:00.0", "3")


def stored(state: HistoryState) -> HistoryState:
    """What is read back of a state that was written."""
    return msgspec.json.decode(msgspec.json.encode(state), type=HistoryState)


def history(*readings: tuple[float, float]) -> CounterHistory:
    """Readings: seconds and number."""
    known = CounterHistory({METRIC: 3600.0})
    for now, value in readings:
        known.take(METRIC, LABELS, value, now)
    return known


def test_the_first_reading_is_no_increase() -> None:
    """A counter that was 5 at the first look happened before us."""
    assert history((0.0, 5.0)).increase(METRIC, LABELS, 10.0, 3600.0) == 0.0


def test_an_increase_leaves_its_window() -> None:
    """What rose an hour ago does not count in the last hour."""
    known = history((0.0, 5.0), (10.0, 7.0), (1810.0, 8.0))

    assert known.increase(METRIC, LABELS, 1810.0, 3600.0) == 3.0
    assert known.increase(METRIC, LABELS, 1810.0, 1800.0) == 1.0
    assert known.increase(METRIC, LABELS, 3611.0, 3600.0) == 1.0


def test_a_counter_that_started_again_shows_what_happened_since() -> None:
    """5 to 2 is two events after a reset, not minus three."""
    assert history((0.0, 5.0), (10.0, 2.0)).increase(METRIC, LABELS, 10.0, 3600.0) == 2.0


def test_a_series_that_was_never_seen_has_no_increase() -> None:
    """Absent is not zero."""
    assert history().increase(METRIC, LABELS, 0.0, 3600.0) is None


def test_a_window_longer_than_what_is_kept_is_an_error() -> None:
    """A rule that looks back further than it said would see less than it thinks."""
    with pytest.raises(ValueError, match="kept for 3600"):
        history((0.0, 5.0)).increase(METRIC, LABELS, 0.0, 7200.0)


@given(st.lists(st.tuples(st.floats(0.1, 600.0), st.integers(0, 5)), min_size=1, max_size=60))
def test_the_increase_is_what_the_readings_say(steps: list[tuple[float, int]]) -> None:
    """For any course without resets it is the last number less the one that stood when the window began."""
    now, value, readings = 0.0, 0, []
    for wait, rise in steps:
        now, value = now + wait, value + rise
        readings.append((now, value))
    before = [value for when, value in readings if when <= now - 3600.0]
    start = before[-1] if before else readings[0][1]

    assert history(*readings).increase(METRIC, LABELS, now, 3600.0) == value - start


def test_counters_that_stand_still_need_no_look() -> None:
    """Only those that changed within what is kept are told, and not forever."""
    known = history((0.0, 5.0), (10.0, 6.0))
    known.take(METRIC, ("1", "0000:18:00.0", "0"), 9.0, 10.0)

    assert known.moved(METRIC) == [LABELS]
    known.forget(3600.0)
    assert known.moved(METRIC) == [LABELS]
    known.forget(3610.0)
    assert known.moved(METRIC) == []
    assert known.increase(METRIC, LABELS, 3610.0, 3600.0) == 0.0


def test_an_index_that_moved_is_no_new_counter() -> None:
    """When a card is lost the others count on under another index, and nothing has happened on them."""
    known = CounterHistory({XID: 3600.0}, {XID})
    known.take(XID, ("4", "0000:9a:00.0", "79"), 3.0, 0.0)
    known.take(XID, ("3", "0000:9a:00.0", "79"), 3.0, 10.0)

    assert known.moved(XID) == []
    known.take(XID, ("3", "0000:9a:00.0", "79"), 4.0, 20.0)
    assert known.moved(XID) == [("3", "0000:9a:00.0", "79")]
    assert known.increase(XID, ("3", "0000:9a:00.0", "79"), 20.0, 3600.0) == 1.0


def test_what_moved_outlives_a_restart() -> None:
    """Rises of before count on, with those that came while no daemon looked; also of what stood still until then."""
    known = history((0.0, 5.0), (10.0, 7.0))
    known.take(METRIC, ("1", "0000:18:00.0", "0"), 9.0, 10.0)
    again = CounterHistory({METRIC: 3600.0}, state=stored(known.state))
    again.take(METRIC, LABELS, 8.0, 30.0)
    again.take(METRIC, ("1", "0000:18:00.0", "0"), 12.0, 30.0)

    assert again.increase(METRIC, LABELS, 30.0, 3600.0) == 3.0
    assert again.increase(METRIC, ("1", "0000:18:00.0", "0"), 30.0, 3600.0) == 3.0


def test_events_of_before_a_restart_are_no_new_ones() -> None:
    """A total that is read again is known; the first of a kind, which came while no daemon looked, counts."""
    known = CounterHistory({XID: 3600.0}, {XID})
    known.take(XID, ("0", "0000:17:00.0", "79"), 3.0, 0.0)
    again = CounterHistory({XID: 3600.0}, {XID}, stored(known.state))
    again.take(XID, ("0", "0000:17:00.0", "79"), 3.0, 60.0)
    again.take(XID, ("0", "0000:17:00.0", "48"), 1.0, 60.0)

    assert again.moved(XID) == [("0", "0000:17:00.0", "48")]


def test_a_metric_that_is_not_watched_any_more_is_left_behind() -> None:
    """Another version may watch others."""
    known = history((0.0, 5.0), (10.0, 7.0))

    assert list(CounterHistory({}, state=known.state).metrics) == []


def test_counters_that_are_gone_leave_nothing_behind() -> None:
    """Those that did not move are forgotten with their device; what rose counts for as long as rules look back."""
    known = history((0.0, 5.0), (10.0, 7.0))
    other = ("1", "0000:18:00.0", "0")
    known.take(METRIC, other, 9.0, 10.0)
    known.retain(METRIC, set())

    assert known.increase(METRIC, other, 20.0, 3600.0) is None
    assert known.increase(METRIC, LABELS, 20.0, 3600.0) == 2.0


def test_a_counter_that_moves_all_the_time_takes_little_room() -> None:
    """Its increase is a lower bound then, short by a 32nd of the window at most; the latest changes are exact."""
    known = history(*((10.0 * step, float(step)) for step in range(1000)))
    now = 9990.0
    (kept,) = known.state.counters

    assert len(kept.rises) <= CHANGES_MAX
    hour = known.increase(METRIC, LABELS, now, 3600.0)
    assert hour is not None
    assert 360.0 * 31 / 32 - 1 <= hour <= 360.0
    assert known.increase(METRIC, LABELS, now, 100.0) == 10.0


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=300), st.floats(1.0, 3600.0))
def test_never_more_than_was_seen(waits: list[float], window: float) -> None:
    """However fast a counter moves and whatever is summed up, and nothing is lost of what is within the window."""
    now, readings = 0.0, [(0.0, 0.0)]
    for count, wait in enumerate(waits, 1):
        now += wait
        readings.append((now, float(count)))
    true = sum(1 for when, _ in readings[1:] if when > now - window)
    told = history(*readings).increase(METRIC, LABELS, now, window)

    assert told is not None
    assert true - sum(1 for when, _ in readings if now - window < when <= now - window + 3600.0 / 32) <= told <= true


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=300), st.floats(1.0, 3600.0))
def test_what_others_are_divided_by_is_never_less_than_was_seen(waits: list[float], window: float) -> None:
    """Nor more than what was seen in the window and in the 32nd of what is kept that lies before it."""
    now, readings = 0.0, [(0.0, 0.0)]
    for count, wait in enumerate(waits, 1):
        now += wait
        readings.append((now, float(count)))
    known, rises = history(*readings), [when for when, _ in readings[1:]]
    told = known.increase(METRIC, LABELS, now, window, at_most=True)

    assert told is not None
    assert sum(when > now - window for when in rises) <= told
    assert told <= sum(when > now - window - 3600.0 / 32 for when in rises)


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    """What happened in what is now the future has happened by now, and leaves the window in its time."""
    known = history((5000.0, 1.0), (5010.0, 3.0), (1000.0, 4.0))

    assert known.increase(METRIC, LABELS, 1000.0, 3600.0) == 3.0
    assert known.increase(METRIC, LABELS, 4700.0, 3600.0) == 0.0


def test_what_rose_unseen_did_not_rise_just_now() -> None:
    """After a pause of 15 min all but one event may be as old as the pause; an hour has them all."""
    known = history((0.0, 5.0))
    known.saw([METRIC], 100.0)
    known.take(METRIC, LABELS, 455.0, 1000.0, known.unseen_since(METRIC, 1000.0))

    assert known.increase(METRIC, LABELS, 1000.0, 300.0) == 1.0
    assert known.increase(METRIC, LABELS, 1000.0, 300.0, at_most=True) == 450.0
    assert known.increase(METRIC, LABELS, 1000.0, 3600.0) == 450.0
    assert known.increase(METRIC, LABELS, 4650.0, 3600.0) == 0.0


def test_a_metric_that_is_there_at_each_look_has_no_gap() -> None:
    """Nor has one that was never there; over a restart of the daemon the gap is known."""
    known = history((0.0, 5.0))
    known.saw([METRIC], 0.0)
    again = CounterHistory({METRIC: 3600.0}, state=stored(known.state))

    assert known.unseen_since(METRIC, 15.0) is None
    assert known.unseen_since(XID, 1000.0) is None
    assert again.unseen_since(METRIC, 1000.0) == 0.0


@pytest.mark.parametrize("ahead", [3600.0, 0.0])
def test_a_clock_that_was_set_back_puts_nothing_together(ahead: float) -> None:
    """A steady counter stays steady where the clock was ahead for a while, and where it falls behind."""
    before = [(10.0 * step, float(step)) for step in range(100)]
    until_now = [(ahead + 10.0 * step, float(step)) for step in range(100, 120)]
    after = [(10.0 * step - 240.0, float(step)) for step in range(120, 130)]

    assert history(*before, *until_now, *after).increase(METRIC, LABELS, 1050.0, 300.0) == 30.0
