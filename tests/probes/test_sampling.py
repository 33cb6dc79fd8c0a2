"""How many calls a step makes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config import settings
from commwatch.probes.cycle.sampling import (
    SYNC_CALLS,
    WANTED,
    Sampling,
    affordable,
    filling,
    relative_error,
    step_seconds,
)
from commwatch.probes.plan import Measure
from commwatch.probes.rank_plan import Purpose, Step
from commwatch.probes.workload import plan_cycle

LATENCY, BANDWIDTH = WANTED["latency"], WANTED["bandwidth"]


def step(purpose: Purpose, *members: int) -> Step:
    return Step(operation="all_reduce", purpose=purpose, size_bytes=8, members=members)


def test_a_small_call_gets_a_quarter_of_the_time() -> None:
    """A cycle of a collective gives a quarter to the small calls and the rest to the large ones."""
    assert step_seconds([step("latency", 0, 1), step("bandwidth", 0, 1)], 0.1) == pytest.approx((0.025, 0.075))


def test_steps_of_different_ranks_do_not_share_their_time() -> None:
    """GPUs that copy one after another have the whole time each; a step waits for its busiest member."""
    steps = [step("bandwidth", 0), step("bandwidth", 1), step("bandwidth", 1, 2), step("bandwidth", 1, 2)]

    assert step_seconds(steps, 0.12) == pytest.approx((0.12, 0.04, 0.04, 0.04))


@given(
    st.sampled_from(["all_reduce", "pairs", "host_copies", "scaling"]),
    st.integers(min_value=2, max_value=9),
    st.sampled_from([None, lambda one, two: frozenset({"socket"})]),
)
def test_no_rank_is_busy_for_longer_than_the_cycle_may(measure: Measure, ranks: int, shared_links: object) -> None:
    """The shares of the steps in which a rank takes part are at most the whole, whatever is measured."""
    plan = plan_cycle(
        "x",
        settings.Probe(measure=measure),
        settings.Probes(),
        backend="nccl",
        devices=tuple(str(gpu) for gpu in range(ranks)),
        shared_links=shared_links,  # type: ignore[arg-type]
    )
    shares = step_seconds(plan.steps, 0.1)

    for rank in range(ranks):
        own = sum(share for one, share in zip(plan.steps, shares, strict=True) if rank in one.members)
        assert own <= 0.1 * (1 + 1e-9)


def test_fast_calls_are_sampled_in_full() -> None:
    """On NVLink all calls of a cycle take a small part of the time they may."""
    assert affordable(LATENCY, 60e-6, 0.025) == LATENCY
    assert affordable(BANDWIDTH, 600e-6, 0.075) == BANDWIDTH
    assert affordable(BANDWIDTH, 0.0, 0.075) == BANDWIDTH


def test_what_a_tight_budget_leaves_out_first() -> None:
    """Timings above the least go first, then warm-up, then calls of a timing, then timings."""
    wanted = Sampling(warmup=5, calls=5, least_timings=4, most_timings=12)

    assert affordable(wanted, 1.0, 78.0) == wanted
    assert affordable(wanted, 1.0, 36.0) == Sampling(5, 5, 4, 5)
    assert affordable(wanted, 1.0, 28.0) == Sampling(3, 5, 4, 4)
    assert affordable(wanted, 1.0, 24.0) == Sampling(0, 5, 4, 4)
    assert affordable(wanted, 1.0, 12.0) == Sampling(0, 2, 4, 4)
    assert affordable(wanted, 1.0, 5.0) == Sampling(0, 1, 4, 2)
    assert affordable(wanted, 1.0, 1.5) == Sampling(0, 1, 4, 0)


@given(
    st.sampled_from([LATENCY, BANDWIDTH]),
    st.floats(min_value=1e-6, max_value=0.1),
    st.floats(min_value=1e-3, max_value=2.0),
)
def test_calls_keep_to_their_budget(wanted: Sampling, call_seconds: float, budget: float) -> None:
    """All calls together take at most the budget, and are never more than wanted."""
    sampling = affordable(wanted, call_seconds, budget)

    warmup = sampling.warmup + SYNC_CALLS if sampling.warmup else 0
    calls = warmup + sampling.most_timings * (sampling.calls + SYNC_CALLS)
    assert calls * call_seconds <= budget * (1 + 1e-9)
    assert (sampling.warmup, sampling.calls) <= (wanted.warmup, wanted.calls)
    assert sampling.most_timings <= wanted.most_timings


@pytest.mark.parametrize(
    ("timings", "error"),
    [
        ((1.0, 1.0, 1.0), 0.0),
        ((0.9, 1.1), 0.1),
        ((9.0, 10.0, 11.0), 0.1 / math.sqrt(3)),
        ((1.0,), math.inf),
        ((0.0, 0.0), 0.0),
    ],
)
def test_standard_error_of_timings(timings: tuple[float, ...], error: float) -> None:
    """As a part of the mean; one timing says nothing about the next."""
    assert relative_error(timings) == pytest.approx(error)


# --- a sustained step ---


@given(st.floats(min_value=1e-5, max_value=0.3), st.floats(min_value=2.0, max_value=10.0))
def test_a_sustained_step_fills_its_time_and_no_more(call_seconds: float, budget: float) -> None:
    """However many calls fit: with the estimate and the check at most the budget, and no more than a timing less."""
    sampling = filling(call_seconds, budget)

    of_timing = (sampling.calls + SYNC_CALLS) * call_seconds
    spent = sampling.most_timings * of_timing + 5 * call_seconds
    assert spent <= budget + 1e-9 or sampling.most_timings == 1
    assert spent > budget - of_timing - call_seconds
    assert sampling.least_timings == sampling.most_timings


def test_a_call_longer_than_the_step_is_made_once() -> None:
    """A path that crawls is measured all the same."""
    assert filling(5.0, 2.0) == Sampling(warmup=0, calls=1, least_timings=1, most_timings=1)
    assert filling(0.0, 2.0).most_timings == 1
