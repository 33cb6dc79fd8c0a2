"""How much of the GPUs' time probes may take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.probes.budget import WINDOW_SECONDS, Occupied, expected_gpu_seconds, fits, recent, used

NOW = 1_000_000.0


def test_the_first_cycle_fits() -> None:
    """A fresh node may be probed at once."""
    assert fits([], expected=expected_gpu_seconds([], 8), limit=0.01, gpus=8, now=NOW)


@pytest.mark.parametrize(("expected", "fitting"), [(44.0, True), (44.1, False)])
def test_budget_at_its_edge(expected: float, fitting: bool) -> None:
    """1 % of four hours is 144 s for each GPU; what was used and what is expected must fit together."""
    cycles = [Occupied(NOW - 100, 50.0), Occupied(NOW - 200, 50.0)]

    assert fits(cycles, expected=expected, limit=0.01, gpus=1, now=NOW) is fitting


def test_cycles_leave_the_window() -> None:
    """What ended more than four hours ago counts no more."""
    cycles = [Occupied(NOW - WINDOW_SECONDS, 1000.0), Occupied(NOW - WINDOW_SECONDS + 1, 10.0)]

    assert used(cycles, NOW) == 10.0
    assert recent(cycles, NOW) == cycles[1:]


def test_a_clock_set_back_frees_nothing() -> None:
    """Cycles from the future still count."""
    assert used([Occupied(NOW + 5000, 10.0)], NOW) == 10.0


def test_the_next_cycle_is_expected_to_be_like_the_last_ones() -> None:
    """One slow start among five cycles does not close the budget."""
    cycles = [Occupied(NOW, seconds) for seconds in (500.0, 80.0, 80.0, 400.0, 80.0, 80.0)]

    assert expected_gpu_seconds(cycles, 8) == 80.0


def test_without_gpus_there_is_no_budget() -> None:
    """A gloo probe on a node without GPUs occupies none."""
    assert fits([Occupied(NOW, 1e6)], expected=0.0, limit=0.01, gpus=0, now=NOW)


@given(st.lists(st.tuples(st.floats(10, 2000), st.floats(1, 100)), max_size=200))
def test_no_day_is_over_the_limit(attempts: list[tuple[float, float]]) -> None:
    """Cycles that are let through by what they take never occupy more than the limit of any trailing window."""
    cycles: list[Occupied] = []
    now = NOW
    for pause, seconds in attempts:
        now += pause
        if fits(cycles, expected=seconds, limit=0.01, gpus=1, now=now):
            cycles = [*recent(cycles, now), Occupied(now, seconds)]
        assert used(cycles, now) <= 0.01 * WINDOW_SECONDS
