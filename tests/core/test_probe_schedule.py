"""When a probe is due: first cycles, retries, the nodes of a cluster out of step."""

from __future__ import annotations

import pytest

from commwatch.probes.schedule import (
    BURST_SECONDS,
    BURST_WINDOW_SECONDS,
    FIRST_SPREAD_SECONDS,
    SOONEST_SECONDS,
    TRY_AGAIN_SECONDS,
    ProbeSchedule,
)
from support.passes import in_one_pass

DAY = 86400.0


def schedule(interval: float = 900.0, share: float = 0.5) -> ProbeSchedule:
    return ProbeSchedule(interval, start_delay=10.0, share=share)


@in_one_pass("last", [None, 0.0, 1e9])
def test_a_frequent_probe_begins_soon(last: float | None) -> None:
    """Whatever was known before: ten seconds after the start."""
    assert schedule().first(last, now=1e6) == 10.0


def test_a_probe_without_a_spread_begins_at_once() -> None:
    """As on a simulated node, where no others are to be kept apart."""
    assert ProbeSchedule(DAY, 10.0, 1.0, first_spread=0.0).first(None, now=1e6) == 10.0


def test_a_seldom_probe_begins_within_an_hour_at_the_nodes_own_time() -> None:
    """On a node that was never probed."""
    assert schedule(DAY, share=0.0).first(None, now=1e6) == 10.0
    assert schedule(DAY, share=1.0).first(None, now=1e6) == 10.0 + FIRST_SPREAD_SECONDS


def test_a_seldom_probe_goes_on_where_it_was() -> None:
    """A restart neither repeats what ran this morning nor loses a day."""
    assert schedule(DAY).first(1e6 - 3600, now=1e6) == DAY - 3600
    assert schedule(DAY).after(ran=True, suspicious=False, now=0.0, wall=0.0) is None
    assert schedule(DAY).first(1e6 - 2 * DAY, now=1e6) == 10.0 + FIRST_SPREAD_SECONDS / 2


def test_a_clock_that_was_set_back_puts_nothing_off_for_ever() -> None:
    """A last result from the future counts as one of now."""
    assert schedule(DAY).first(1e6 + 30 * DAY, now=1e6) == DAY


def test_a_skipped_cycle_of_a_seldom_probe_is_tried_again() -> None:
    """Once a day, when idle: not once a day at an hour in which a job runs."""
    daily = schedule(DAY)
    assert daily.after(ran=False, suspicious=False, now=0.0, wall=1e6) is not None
    assert schedule(TRY_AGAIN_SECONDS).after(ran=False, suspicious=False, now=0.0, wall=1e6) is None


@in_one_pass("wall", [0.0, 1.0, 839.9, 840.0, 840.1, 899.0, 1e9])
def test_seldom_probes_try_again_together(wall: float) -> None:
    """At the next quarter of an hour that is at least a minute away."""
    delay = schedule(DAY).after(ran=False, suspicious=False, now=0.0, wall=wall)

    assert delay is not None
    assert SOONEST_SECONDS < delay <= TRY_AGAIN_SECONDS + SOONEST_SECONDS
    assert (wall + delay) % TRY_AGAIN_SECONDS == pytest.approx(0.0, abs=1e-6)


def test_a_frequent_probe_learns_in_a_burst_that_it_pays_for() -> None:
    """Five cycles 5 min apart while there are too few results; then twice the interval while the budget looks back."""
    one, now, delays = schedule(share=1.0), 0.0, list[float]()
    while now < BURST_WINDOW_SECONDS - 60:
        delay = one.after(ran=True, suspicious=False, now=now, wall=now, learning=len(delays) < 5)
        delays.append(900.0 if delay is None else delay)
        now += delays[-1]

    assert delays[:5] == [BURST_SECONDS] * 5
    assert set(delays[5:]) == {1800.0}
    assert one.after(ran=True, suspicious=False, now=now + BURST_WINDOW_SECONDS, wall=now) is None


def test_a_burst_that_gives_no_results_ends_all_the_same() -> None:
    """A probe that only fails has no more cycles in its burst than one that learns, and then its own interval."""
    one = schedule(share=1.0)
    delays = [one.after(ran=True, suspicious=False, now=300.0 * turn, wall=0.0, learning=True) for turn in range(7)]

    assert delays == [BURST_SECONDS] * 5 + [900.0, None]


@in_one_pass("interval", [30.0, BURST_SECONDS, DAY])
def test_neither_a_rare_probe_nor_a_quick_one_has_a_burst(interval: float) -> None:
    """A rare one costs too much, a quick one has its results within the hour anyway."""
    one = schedule(interval, share=1.0)
    one.after(ran=True, suspicious=False, now=0.0, wall=0.0, learning=True)

    assert one.after(ran=True, suspicious=False, now=1.0, wall=0.0, learning=True) is None
