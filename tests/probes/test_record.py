"""What a probe's record makes of a series of outcomes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from commwatch.probes.plan import Skipped, Yielded
from commwatch.probes.prospect import Prospect
from commwatch.probes.rank_plan import FailureReason
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.record import LatencyCourse
from probes.recorded import FIRM, GPUS, LIMITS, Probe
from probes.results import MIB, measured, plan_of
from support.passes import in_one_pass

SLOW = {"latency": 2e-3}
DAY = 97
"""Results of a first day: the last of them comes when it is over."""
ROWS: dict[str, tuple[list[Any], dict[str | tuple[str, str], Any]]] = {
    "three slow results are a streak of three": (
        [{}] * 20 + [SLOW] * 3, {"latency_spike_streak": 3, "latency_spikes_total": 3}),
    "a good result is no spike": ([{}] * 20, {"latency_spike_streak": 0}),
    "however long it stays slow, slow does not become the measure of slow": (
        [{}] * 20 + [SLOW] * 300, {"baseline_latency_seconds": 1e-3, "latency_spike_streak": 300}),
    "there is no drift before the first day is over": (
        [{}] * (DAY - 1), {"latency_drift_ratio": None, "bandwidth_drift_ratio": None}),
    "no change is a drift of 1": ([{}] * DAY, {"latency_drift_ratio": 1, "bandwidth_drift_ratio": 1}),
    "a step needs 25 results": ([{}] * 20 + [SLOW] * 4, {"latency_step_ratio": None}),
    "of a step bad results count as well": ([{}] * 20 + [SLOW] * 5, {"latency_step_ratio": pytest.approx(2.0)}),
    "after one good result three times the usual is nothing": ([{}, {"latency": 3e-3}], {"latency_spike_streak": 0}),
    "after two 2.5 times is nothing": ([{}, {}, {"latency": 2.5e-3}], {"latency_spike_streak": 0}),
    "after two three times is a spike": ([{}, {}, {"latency": 3e-3}], {"latency_spike_streak": 1}),
    "15 ms is slow on every path, without any baseline": ([{"latency": 0.0151}] * 3, {"latency_spike_streak": 3}),
    "a hang while measuring is the slowest result of all, one in set-up says nothing of latency": (
        [{}] * 20 + ["measure_timeout", "setup_timeout"], {
            "latency_spike_streak": 1, "latency_spikes_total": 1, "attempts_total": 22,
            ("failures_total", "measure_timeout"): 1, ("failures_total", "setup_timeout"): 1}),
    "a path that hangs from the first day has no baseline, but a streak": (
        ["measure_timeout"] * 3, {"latency_spike_streak": 3}),
    "where nothing is expected nothing is low": (
        [{"bandwidth": 1.0, "expected": None}], {"low_bandwidth_streak": None, "bandwidth_utilization_ratio": None}),
    **{f"a result is compared with what {source} expects": (
           [{"bandwidth": 1.0, "expected": replace(FIRM, source=source)}],
           {"low_bandwidth_streak": 1, "bandwidth_utilization_ratio": pytest.approx(0.01)})
       for source in ("configured", "model")},
    **{f"{latency} s after {usual} is a streak of {streak}": (  # above 1.5 medians and six deviations over the median
           [{"latency": one} for one in usual] * 10 + [{"latency": latency}], {"latency_spike_streak": streak})
       for usual, latency, streak in (((1e-3, 1e-3), 1.5e-3, 0), ((1e-3, 1e-3), 1.5001e-3, 1),
                                      ((0.8e-3, 1.2e-3), 2.199e-3, 0), ((0.8e-3, 1.2e-3), 2.201e-3, 1))},
    "a ratio above 1 is shown as it is": ([{"bandwidth": 5e-3}], {"bandwidth_utilization_ratio": pytest.approx(2.0)}),
}  # fmt: skip
"""Results, or why there was none, and what is shown then."""


@pytest.mark.parametrize(("outcomes", "shown"), ROWS.values(), ids=ROWS)
def test_what_a_row_of_outcomes_shows(
    outcomes: list[dict[str, Any] | FailureReason], shown: dict[str | tuple[str, str], Any]
) -> None:
    """Each is 15 min after the one before; a usual result takes 1 ms and 10 ms, which is what is expected."""
    probe = Probe()
    for one in outcomes:
        probe.result(**one) if isinstance(one, dict) else probe.failure(one)

    keys = {key: (key,) if isinstance(key, str) else key for key in shown}
    assert {key: probe.value(*parts) for key, parts in keys.items()} == shown


@in_one_pass(
    "outcome, is_suspicious",
    [({}, False), (SLOW, True), ({"bandwidth": 1.0}, True), ({"bandwidth": 1.0, "expected": None}, False)],
)
def test_a_bad_result_calls_for_another_look(outcome: dict[str, Any], is_suspicious: bool) -> None:
    """A slow one, or one that is low."""
    probe = Probe().baseline(20 if "latency" in outcome else 0)
    probe.result(**outcome)

    assert probe.record.suspicious == is_suspicious


@in_one_pass("pause, streak", [(2700.0, 3), (2701.0, 1), (-20_000.0, 1)])
def test_more_than_an_hour_between_two_results_restarts_the_row(pause: float, streak: int) -> None:
    """At exactly an hour it goes on; results of a clock that was ahead are in no row with those of now."""
    probe = Probe().baseline()
    probe.result(latency=2e-3)
    probe.result(latency=2e-3)

    probe.now += pause  # 15 min more pass to the next result
    probe.result(latency=2e-3)

    assert probe.value("latency_spike_streak") == streak


def test_a_step_is_shown_and_asks_for_one_more_look() -> None:
    """Five results that are 30 % slower than the 20 before: no spikes, but a step, and a loss after three of them."""
    probe = Probe().baseline(25)
    assert probe.value("latency_step_ratio") == probe.value("bandwidth_step_ratio") == 1

    looks = []
    for _ in range(5):
        probe.result(latency=1.3e-3, bandwidth=1.3e-2)
        looks.append(probe.record.suspicious)

    assert probe.value("latency_step_ratio") == pytest.approx(1.3)
    assert probe.value("bandwidth_step_ratio") == pytest.approx(1.3)
    assert looks == [True, True, True, False, False]
    assert probe.value("latency_spikes_total") == 0


def test_the_course_of_the_latency_is_told_with_its_limit() -> None:
    """What the page draws: the last results, good and bad, what is usual, and above what a result is a spike."""
    probe = Probe()
    assert probe.record.latency_course() is None
    probe.result()
    first = probe.record.latency_course()
    probe.baseline()
    probe.result(latency=5e-3)
    later = probe.record.latency_course()

    assert first == LatencyCourse((1e-3,), None, LIMITS.probe_latency_mark_max_seconds)
    assert later is not None
    assert later.latest[-2:] == (1e-3, 5e-3)
    assert (later.usual, later.limit) == (1e-3, 1.5e-3)


def judged_by(probe: Probe) -> str:
    """Why the latency is judged, or why not."""
    [by] = [key[1] for key in probe.series() if key[0] == "latency_judged_info"]
    return by


def test_the_streak_is_there_with_0_as_soon_as_it_is_judged() -> None:
    """By the mark from the first result on; gloo has none, and says that it has too few results."""
    probe = Probe()
    assert (judged_by(probe), probe.value("latency_spike_streak")) == ("no_result", None)
    probe.result()
    assert (judged_by(probe), probe.value("latency_spike_streak")) == ("mark", 0)
    assert probe.value("latency_limit_seconds") == LIMITS.probe_latency_mark_max_seconds
    assert judged_by(Probe().baseline()) == "baseline"
    first = Probe().baseline(2)
    assert (judged_by(first), first.value("baseline_latency_seconds")) == ("first_results", 1e-3)

    gloo = Probe(plan_of(backend="gloo")).baseline(1)
    assert (judged_by(gloo), gloo.value("latency_spike_streak")) == ("too_few_results", None)


def test_skips_and_yields_leave_a_streak_and_good_results_end_it() -> None:
    """A cycle that did not run to its end says nothing about the fabric, and is no attempt."""
    probe = Probe().baseline()
    probe.result(latency=2e-3)
    attempts = probe.value("attempts_total")

    yielded = Yielded(finished_at=probe.now, reason="process_appeared", detail="", occupied_seconds=1.0)
    probe.record.take(yielded, probe.now)
    probe.record.take(Skipped(finished_at=probe.now, reason="no_gpu_backend", detail=""), probe.now)
    probe.record.skip("gpu_busy")

    assert probe.value("latency_spike_streak") == 1
    assert probe.value("yields_total", "process_appeared") == 1
    assert probe.value("skips_total", "no_gpu_backend") == 1
    assert probe.value("skips_total", "gpu_busy") == 1
    assert probe.value("attempts_total") == attempts
    probe.result()
    assert probe.value("latency_spike_streak") == 0


@pytest.mark.parametrize(("share", "streak"), [(0.6, 0), (0.599, 1)])
def test_low_bandwidth_at_its_edge(share: float, streak: int) -> None:
    """At 60 % of the expected bandwidth a result is not low, just below it is, and stays out of the baseline."""
    probe = Probe()

    probe.result(bandwidth=1e-2, expected=replace(FIRM, bytes_per_second=FIRM.bytes_per_second / share))

    assert probe.value("bandwidth_utilization_ratio") == pytest.approx(share)
    assert probe.value("low_bandwidth_streak") == streak
    assert len(probe.record.history.courses["all_reduce 2"].good) == 1 - streak
    probe.result()
    assert probe.value("low_bandwidth_streak") == 0


@pytest.mark.parametrize("changes", [{"nccl_version": "2.28.3"}, {"settings": {"NCCL_ALGO": "Tree"}}])
def test_other_conditions_begin_anew(changes: dict[str, Any]) -> None:
    """Results of two NCCL versions, or of other settings, are not one series."""
    probe = Probe().baseline(97)
    probe.result(latency=2e-3, bandwidth=2e-2)
    assert (probe.value("latency_spike_streak"), probe.value("low_bandwidth_streak")) == (1, 1)
    spikes = probe.value("latency_spikes_total")

    probe.steps(5e-3, 2e-2, expected={1: FIRM}, **changes)

    assert probe.value("latency_spikes_total") == spikes
    assert probe.record.history.latency_streak.count == 0
    assert probe.value("low_bandwidth_streak") == 1
    assert probe.value("latency_drift_ratio") is None
    assert [len(course.latest) for course in probe.record.history.courses.values()] == [1, 1]


def test_an_absolute_limit_counts_from_the_first_result_and_again_under_other_conditions() -> None:
    """Above it before and after a new NCCL: two rows of one; below it the baseline judges all the same."""
    probe = Probe(latency_limit=0.015)
    probe.result(latency=0.016)
    assert probe.value("latency_spike_streak") == 1

    probe.steps(0.016, 1e-2, nccl_version="2.28.3")
    assert probe.value("latency_spike_streak") == 1
    assert probe.value("latency_spikes_total") == 2

    probe.baseline().result(latency=2e-3)
    assert probe.value("latency_spike_streak") == 1


@pytest.mark.parametrize(("backend", "kept"), [("simulated", 2), ("gloo", 1)])
def test_another_torch_is_another_gloo(backend: str, kept: int) -> None:
    """gloo is a part of torch, NCCL has a version of its own."""
    probe = Probe(plan_of(backend=backend))
    probe.result()

    probe.steps(1e-3, 1e-2, torch_version="2.10.0")

    assert len(probe.record.history.courses["latency"].good) == kept


def test_another_size_in_the_configuration_begins_anew() -> None:
    """The first result of a new size is not held against those of the old one."""
    before = Probe().baseline()

    after = Probe(plan_of(latency_bytes=2**16), history=before.record.history)
    after.now = before.now
    after.result(latency=5e-3)

    assert after.value("latency_spikes_total") == 0
    assert after.record.history.courses["latency"].good == (5e-3,)


def test_other_gpus_begin_anew_and_a_swapped_card_does_not() -> None:
    """Slots have paths; a new card in an old slot is held against the one before it."""
    probe = Probe().baseline()
    probe.record.adopt_plan(plan_of(devices=("GPU-new", "GPU-1")))
    probe.result()
    assert len(probe.record.history.courses["latency"].good) == 21

    probe.now += 900
    result = measured(probe.plan, probe.now, (1e-3, 1e-2))
    probe.record.take(result, probe.now, Prospect(probe.plan, GPUS[2:4]))

    assert len(probe.record.history.courses["latency"].good) == 1


def test_a_plan_without_gpus_forgets_nothing() -> None:
    """Before the driver was read a plan has no ranks; what was stored stays, and is shown as it was taken."""
    before = Probe().baseline()

    after = Probe(plan_of(ranks=0), history=before.record.history)
    after.now = before.now

    assert after.value("last_bus_bandwidth_bytes_per_second") == before.value("last_bus_bandwidth_bytes_per_second")
    assert after.value("info", "all_reduce", "8", str(MIB), "2", "2.27.5", "2.9.1", "", "configured") == 1
    after.plan = plan_of()
    after.record.adopt_plan(after.plan)
    after.result(latency=2e-3)
    assert after.value("latency_spike_streak") == 1


def test_a_name_keeps_its_backend_for_life() -> None:
    """A probe whose name stands for another backend keeps its label; the gate refuses its cycles."""
    stored = Probe().baseline().record.history
    probe = Probe(plan_of(backend="gloo"), history=stored)

    assert probe.record.other_backend == "simulated"
    probe.record.skip("backend_changed")
    assert probe.value("skips_total", "backend_changed") == 1
    assert all(labels[1] == "simulated" for _, labels, _ in probe.record.readings(probe.now))


def test_a_name_without_any_outcome_is_free() -> None:
    """Until the first cycle has run, the backend may still turn out to be another one."""
    probe = Probe(plan_of(backend="gloo"))

    probe.record.adopt_plan(plan_of())
    probe.result()

    assert probe.record.other_backend == ""
    assert probe.value("attempts_total") == 1


def test_ranks_that_share_a_gpu_give_no_times() -> None:
    """Several ranks on one GPU prove that what arrives is right; their times are time slices."""
    probe = Probe(plan_of(backend="nccl", devices=("GPU-a",)))

    probe.result()

    series = probe.series()
    assert series["attempts_total",] == 1
    assert series["last_completion_timestamp_seconds",] == probe.now
    assert series["last_latency_seconds",] is None
    assert series["latency_seconds_count",] == 0


MODEL = replace(FIRM, source="model")


def learned_of(probe: Probe) -> str:
    """Where the last expectation came from."""
    last = probe.record.history.last
    assert last is not None
    assert last.expected is not None
    return last.expected.source


def test_the_first_good_day_takes_the_place_of_a_model() -> None:
    """After a day the 90th percentile is expected, over a restart and another NCCL; a model is asked no more."""
    probe = Probe()
    for turn in range(98):
        probe.result(bandwidth=1e-2 if turn % 5 else 8e-3, expected=MODEL)

    probe.result(expected=MODEL)
    again = Probe(history=msgspec.json.decode(msgspec.json.encode(probe.record.history), type=ProbeHistory))
    again.steps(1e-3, 8e-3 / 0.55, expected={1: MODEL}, nccl_version="2.99.1")

    assert learned_of(probe) == learned_of(again) == "learned"
    assert again.value("bandwidth_utilization_ratio") == pytest.approx(0.55)
    assert again.value("low_bandwidth_streak") == 1


def test_a_node_that_is_low_from_its_first_day_is_not_learned() -> None:
    """What a fault leaves of the bandwidth never becomes what is expected."""
    probe = Probe()

    for _ in range(120):
        probe.result(bandwidth=2e-2, expected=MODEL)

    assert learned_of(probe) == "model"
    assert probe.value("low_bandwidth_streak") == 120


def test_what_is_published_is_not_replaced() -> None:
    """A configured or published value stands above what a node has shown."""
    probe = Probe().baseline(120)

    assert learned_of(probe) == FIRM.source
    assert probe.record.history.learned == {}
