"""The score never rises when something that was measured gets worse, unless the GPUs become more equal by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.score.cases import (
    ATTEMPTS,
    BANDWIDTH_STEP,
    FAILED_RECOVERIES,
    FAILURES,
    FLAPS,
    LATENCY,
    LATENCY_DRIFT,
    LATENCY_STEP,
    OLD_RECOVERIES,
    RANK_BALANCE,
    RECOVERIES,
    RISES,
    SPIKE_STREAK,
    SPIKES,
    SUSPECT,
    UTILIZATION,
    Key,
    score,
)
from support.examples import examples

Numbers = dict[Key, float]

BETTER_IF_MORE: dict[Key, st.SearchStrategy[float]] = {
    UTILIZATION: st.floats(0.0, 1.5),
    RANK_BALANCE: st.floats(0.01, 1.0),
}
WORSE_IF_MORE: dict[Key, st.SearchStrategy[float]] = {
    LATENCY: st.floats(1e-6, 1e-3),
    SPIKE_STREAK: st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0]),
    LATENCY_DRIFT: st.floats(0.5, 3.0),
    LATENCY_STEP: st.floats(0.5, 3.0),
    BANDWIDTH_STEP: st.floats(0.5, 3.0),
    SUSPECT: st.floats(0.0, 1.0),
}
EVENTS: dict[Key, st.SearchStrategy[float]] = dict.fromkeys(
    (FAILURES, SPIKES, RECOVERIES, OLD_RECOVERIES, FAILED_RECOVERIES, FLAPS), st.integers(0, 25).map(float)
)
GAUGES = {**BETTER_IF_MORE, **WORSE_IF_MORE}

STATES = st.fixed_dictionaries(GAUGES)
HISTORIES = st.fixed_dictionaries(EVENTS)


def no_better(worse: tuple[Numbers, Numbers], than: tuple[Numbers, Numbers]) -> None:
    """Neither the score nor a part is better."""
    after, before = score(*worse), score(*than)
    rounding = 1e-12
    assert after.ratio is not None
    assert before.ratio is not None
    assert after.ratio <= before.ratio + rounding
    for now, then in zip(after.parts, before.parts, strict=True):
        assert now.ratio is not None
        assert then.ratio is not None
        assert now.ratio <= then.ratio + rounding


@pytest.mark.parametrize("key", GAUGES, ids=[f"{metric}-{labels[0]}-{labels[-1]}" for metric, labels in GAUGES])
@examples(40)
@given(data=st.data())
def test_no_number_that_worsens_raises_the_score(key: Key, data: st.DataObject) -> None:
    """Whatever the others are, and over its whole range."""
    state, history = data.draw(STATES), data.draw(HISTORIES)
    low, high = sorted((state[key], data.draw(GAUGES[key])))
    worse, better = (low, high) if key in BETTER_IF_MORE else (high, low)

    no_better(({**state, key: worse}, history), than=({**state, key: better}, history))


@pytest.mark.parametrize("key", EVENTS, ids=[metric for metric, _ in EVENTS])
@examples(40)
@given(data=st.data())
def test_no_further_event_raises_the_score(key: Key, data: st.DataObject) -> None:
    """Failures, spikes, recoveries and flaps; a failure with and without a cycle more."""
    state, history = data.draw(STATES), data.draw(HISTORIES)
    more: Numbers = {**history, key: history[key] + data.draw(st.integers(1, 5))}

    no_better((state, more), than=(state, history))
    if key == FAILURES:
        one = {key: history[key] + 1, ATTEMPTS: RISES[ATTEMPTS] + 1}
        failures = min(history[key], RISES[ATTEMPTS])  # no cycle fails twice
        no_better((state, {**history, **one, key: failures + 1}), than=(state, {**history, key: failures}))
