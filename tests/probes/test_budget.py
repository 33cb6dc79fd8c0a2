"""How much of the GPUs' time probes may take, and what the default schedule takes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import Probe, Probes
from commwatch.probes.gate.budget import (
    DAY_SECONDS,
    WINDOW_SECONDS,
    Occupied,
    expected_gpu_seconds,
    first_guess_seconds,
    fits,
    recent,
    used,
)
from commwatch.probes.workload import plan_cycle
from support.passes import in_one_pass

NOW = 1_000_000.0


LATELY = Occupied(NOW - 100, 100.0)


@in_one_pass(
    "cycles, expected, more, fitting",
    [
        # 1 % of four hours is 144 s for each GPU: what was used and what is expected must fit together.
        ([LATELY], 44.0, {}, True),
        ([LATELY], 44.1, {}, False),
        # A frequent probe leaves what a rare one waits for, or that one would never run.
        ([LATELY], 4.0, {"reserved": 40.0}, True),
        ([LATELY], 4.0, {"reserved": 40.1}, False),
        # A search has an eighth of 1 % of a day, 108 s, however full the last hours are,
        ([Occupied(NOW - 100, 144.0), Occupied(NOW - 80_000, 50.0, search=True)], 58.0, {"search": True}, True),
        ([Occupied(NOW - 100, 144.0), Occupied(NOW - 80_000, 50.0, search=True)], 58.1, {"search": True}, False),
        ([Occupied(NOW - 100, 144.0)], 0.1, {}, False),
        # and cycles in turn leave it that share: 756 s, although the last four hours have room.
        ([Occupied(NOW - 20_000, 700.0), Occupied(NOW - 100, 100.0, search=True)], 56.0, {}, True),
        ([Occupied(NOW - 20_000, 700.0), Occupied(NOW - 100, 100.0, search=True)], 56.1, {}, False),
    ],
)
def test_the_budget_at_its_edges(cycles: list[Occupied], expected: float, more: Any, fitting: bool) -> None:
    """Of one GPU at a limit of 1 %."""
    assert fits(cycles, expected=expected, limit=0.01, gpus=1, now=NOW, **more) is fitting


def test_cycles_leave_the_window() -> None:
    """What ended more than four hours ago counts no more, and is kept for a day."""
    cycles = [Occupied(NOW - one, 1000.0) for one in (DAY_SECONDS, WINDOW_SECONDS)]
    cycles.append(Occupied(NOW - WINDOW_SECONDS + 1, 10.0))

    assert used(cycles, NOW) == 10.0
    assert recent(cycles, NOW) == cycles[1:]
    # A clock set back: cycles from the future still count, as long as those of the past do.
    assert used([Occupied(NOW + 5000, 10.0)], NOW) == 10.0
    assert used([Occupied(NOW + WINDOW_SECONDS, 10.0)], NOW) == 0.0
    assert recent([Occupied(NOW + DAY_SECONDS, 10.0)], NOW) == []


def test_the_next_cycle_is_expected_to_be_like_the_last_ones() -> None:
    """One slow start among five cycles does not close the budget."""
    cycles = [Occupied(NOW, seconds) for seconds in (500.0, 80.0, 80.0, 400.0, 80.0, 80.0)]

    assert expected_gpu_seconds(cycles, 8, 2) == 80.0


def test_a_first_guess_grows_with_gpus_and_steps() -> None:
    """Each step has a look at the node before it."""
    assert expected_gpu_seconds([], 4, 2) == 4 * first_guess_seconds(2)
    assert first_guess_seconds(35) > first_guess_seconds(2) > 0
    # A fresh node may be probed at once, also with its longest cycle: the pairs of eight GPUs.
    assert fits([], expected=expected_gpu_seconds([], 8, 35), limit=0.01, gpus=8, now=NOW)
    # A gloo probe on a node without GPUs occupies none.
    assert fits([Occupied(NOW, 1e6)], expected=0.0, limit=0.01, gpus=0, now=NOW)


@given(st.lists(st.tuples(st.floats(10, 2000), st.floats(1, 100), st.booleans()), max_size=200))
def test_no_day_is_over_the_limit(attempts: list[tuple[float, float, bool]]) -> None:
    """Cycles that are let through by what they take never occupy more than the limit of a day, nor, in turn, of 4 h."""
    cycles: list[Occupied] = []
    now = NOW
    for pause, seconds, search in attempts:
        now += pause
        if fits(cycles, expected=seconds, limit=0.01, gpus=1, now=now, search=search):
            cycles = [*recent(cycles, now), Occupied(now, seconds, search)]
        assert used([one for one in cycles if not one.search], now) <= 0.01 * WINDOW_SECONDS
        assert used(cycles, now, DAY_SECONDS) <= 0.01 * DAY_SECONDS


def test_the_default_schedule_keeps_to_the_limit() -> None:
    """On eight GPUs, at the first guess, all default probes together take less than 1 %."""
    limits = Probes()

    def seconds(name: str, probe: Probe) -> float:
        devices = tuple(f"GPU-{number}" for number in range(8))
        return first_guess_seconds(len(plan_cycle(name, probe, limits, backend="nccl", devices=devices).steps))

    shares = [seconds(name, probe) / probe.interval for name, probe in limits.definitions.items()]

    assert 0.005 < sum(shares) < limits.occupancy_limit
