"""What a probe's record makes of a series of outcomes, and which metrics show it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import msgspec
import pytest

from commwatch import config
from commwatch.analysis.baseline import SpikeRule
from commwatch.analysis.expected import Expected
from commwatch.probes.histogram import BUCKETS_SECONDS
from commwatch.probes.plan import Failed, FailureReason, Skipped, SkipReason
from commwatch.probes.record import JudgementRules, ProbeHistory, ProbeRecord, rules_of
from commwatch.thresholds import load_thresholds
from commwatch_exporters.snapshot import Layout, Value
from probes.cycles import cycle_plan, measured

RULES = JudgementRules(
    spike=SpikeRule(deviations=6.0, ratio=1.5, absolute_seconds=None),
    baseline_results_min=20,
    low_bandwidth_ratio=0.6,
    streak_gap_seconds=3600.0,
    interval=900.0,
)
FIRM = Expected(2**20 / 1e-2, "configured", "for the test")
"""What ``measured()`` gives: 1 MiB in 10 ms on two ranks."""
LABELS = ("all_reduce", "simulated")


class Probe:
    """A record with a clock, and one cycle every 15 minutes."""

    def __init__(self, rules: JudgementRules = RULES, history: ProbeHistory | None = None, **plan: object) -> None:
        self.record = ProbeRecord(cycle_plan(**plan), rules, history)
        self.now = 1_000_000.0

    def result(self, latency: float = 1e-3, bandwidth: float = 1e-2, expected: Expected | None = FIRM) -> None:
        self.now += 900
        self.record.apply(measured(self.now, latency, bandwidth), expected, self.now)

    def failure(self, reason: FailureReason) -> None:
        self.now += 900
        failed = Failed(finished_at=self.now, occupied_seconds=5.0, reason=reason, detail="")
        self.record.apply(failed, FIRM, self.now)

    def baseline(self) -> Probe:
        for _ in range(20):
            self.result()
        return self

    def value(self, name: str, *extra: str, after: float = 0.0) -> Value:
        found = [
            value
            for metric, labels, value in self.record.readings(self.now + after)
            if metric == f"commwatch_probe_{name}" and labels[: 2 + len(extra)] == (*LABELS, *extra)
        ]
        assert len(found) == 1, name
        return found[0]


def test_three_slow_results_make_a_streak_of_three() -> None:
    """Spikes count up in a row, in the total, and call for another look."""
    probe = Probe().baseline()
    assert probe.value("latency_spike_streak") == 0
    assert not probe.record.suspicious

    for _ in range(3):
        probe.result(latency=2e-3)

    assert probe.value("latency_spike_streak") == 3
    assert probe.value("latency_spikes_total") == 3
    assert probe.record.suspicious


def test_a_spike_does_not_enter_the_baseline() -> None:
    """However long it stays slow, slow does not become the measure of slow."""
    probe = Probe().baseline()

    for _ in range(100):
        probe.result(latency=2e-3)

    assert probe.value("baseline_latency_seconds") == 1e-3
    assert probe.value("latency_spike_streak") == 100


def test_no_baseline_no_verdict() -> None:
    """Below twenty good results a slow one is nothing, and no streak is shown."""
    probe = Probe()
    for _ in range(18):
        probe.result()

    probe.result(latency=5e-3)

    assert probe.value("latency_spike_streak") is None
    assert probe.value("baseline_latency_seconds") is None
    assert probe.value("latency_spikes_total") == 0


def test_an_absolute_limit_counts_from_the_first_result() -> None:
    """Where a limit is configured there is a verdict without a baseline."""
    probe = Probe(replace(RULES, spike=SpikeRule(6.0, 1.5, absolute_seconds=0.015)))

    probe.result(latency=0.016)

    assert probe.value("latency_spike_streak") == 1


def test_skips_leave_a_streak_and_good_results_end_it() -> None:
    """A cycle that did not run says nothing about the fabric."""
    probe = Probe().baseline()
    probe.result(latency=2e-3)

    probe.record.apply(
        Skipped(finished_at=probe.now, reason="yielded", detail="", occupied_seconds=1.0), None, probe.now
    )
    probe.record.skip("gpu_busy")

    assert probe.value("latency_spike_streak") == 1
    assert probe.value("skips_total", "yielded") == 1
    assert probe.value("skips_total", "gpu_busy") == 1
    probe.result()
    assert probe.value("latency_spike_streak") == 0


def test_a_timeout_while_measuring_is_a_spike_and_a_failure() -> None:
    """A hang in the measuring phase is the slowest result of all; one in set-up says nothing of latency."""
    probe = Probe().baseline()

    probe.failure("measure_timeout")
    probe.failure("setup_timeout")

    assert probe.value("latency_spike_streak") == 1
    assert probe.value("latency_spikes_total") == 1
    assert probe.value("failures_total", "measure_timeout") == 1
    assert probe.value("failures_total", "setup_timeout") == 1
    assert probe.value("attempts_total") == 22
    assert probe.record.suspicious


def test_timeouts_alone_make_a_streak_that_is_shown() -> None:
    """A path that hangs from the first day has no baseline, but a streak."""
    probe = Probe()

    for _ in range(3):
        probe.failure("measure_timeout")

    assert probe.value("latency_spike_streak") == 3


@pytest.mark.parametrize(("share", "streak"), [(0.6, 0), (0.599, 1)])
def test_low_bandwidth_at_its_edge(share: float, streak: int) -> None:
    """At 60 % of the expected bandwidth a result is not low, just below it is."""
    probe = Probe()

    probe.result(bandwidth=1e-2, expected=replace(FIRM, bytes_per_second=FIRM.bytes_per_second / share))

    assert probe.value("bandwidth_utilization_ratio") == pytest.approx(share)
    assert probe.value("low_bandwidth_streak") == streak


@pytest.mark.parametrize("expected", [None, replace(FIRM, source="model")])
def test_a_model_makes_no_streak(expected: Expected | None) -> None:
    """Without a configured or published value there is no low bandwidth, only a ratio where a model gives one."""
    probe = Probe()

    probe.result(bandwidth=1.0, expected=expected)

    assert probe.value("low_bandwidth_streak") is None
    assert (probe.value("bandwidth_utilization_ratio") is None) == (expected is None)
    assert not probe.record.suspicious


def test_ratios_above_one_are_shown() -> None:
    """A probe that is better than expected is shown as it is."""
    probe = Probe()

    probe.result(bandwidth=5e-3)

    assert probe.value("bandwidth_utilization_ratio") == pytest.approx(2.0)


def test_old_results_are_absent() -> None:
    """Past three intervals all that derives from a result is gone, and its time stays."""
    probe = Probe().baseline()
    derived = [
        "last_latency_seconds",
        "last_bus_bandwidth_bytes_per_second",
        "last_algorithm_bandwidth_bytes_per_second",
        "expected_bandwidth_bytes_per_second",
        "bandwidth_utilization_ratio",
        "baseline_latency_seconds",
        "latency_spike_streak",
        "low_bandwidth_streak",
        "setup_seconds",
    ]

    assert all(probe.value(name, after=2700) is not None for name in derived)
    assert all(probe.value(name, after=2701) is None for name in derived)
    assert probe.value("last_completion_timestamp_seconds", after=1e6) == probe.now
    assert probe.value("attempts_total", after=1e6) == 20


def test_another_nccl_version_begins_anew() -> None:
    """Results of two NCCL versions are not one series."""
    probe = Probe().baseline()

    probe.record.apply(measured(probe.now, latency=5e-3, nccl_version="2.28.3"), FIRM, probe.now)

    assert probe.value("latency_spikes_total") == 0
    assert len(probe.record.history.latencies) == 1
    assert probe.value("info", "all_reduce", "8", str(2**20), "2", "2.28.3", "configured") == 1


def test_a_restart_changes_nothing_but_the_counters() -> None:
    """Baseline, streak and last values survive a restart; counters begin at 0 as counters do."""
    before = Probe().baseline()
    before.result(latency=2e-3)
    stored = msgspec.json.decode(msgspec.json.encode(before.record.history), type=ProbeHistory)

    after = Probe(history=stored)
    after.now = before.now

    for name in ("last_latency_seconds", "baseline_latency_seconds", "latency_spike_streak", "low_bandwidth_streak"):
        assert after.value(name) == before.value(name)
    assert after.value("attempts_total") == 0
    after.result(latency=2e-3)
    assert after.value("latency_spike_streak") == 2


def test_another_size_in_the_configuration_begins_anew() -> None:
    """The first result of a new size is not held against those of the old one."""
    before = Probe().baseline()

    after = Probe(history=before.record.history, latency_bytes=2**16)
    after.now = before.now
    after.result(latency=5e-3)

    assert after.value("latency_spikes_total") == 0
    assert after.record.history.latencies == [5e-3]


def test_a_plan_without_gpus_forgets_nothing() -> None:
    """Before the driver was read a plan has no ranks; what was stored stays, and is shown as it was taken."""
    before = Probe().baseline()

    after = Probe(history=before.record.history, ranks=0, devices=())
    after.now = before.now

    assert after.value("last_bus_bandwidth_bytes_per_second") == before.value("last_bus_bandwidth_bytes_per_second")
    assert after.value("info", "all_reduce", "8", str(2**20), "2", "2.27.5", "configured") == 1
    after.record.adopt_plan(cycle_plan())
    after.result(latency=2e-3)
    assert after.value("latency_spike_streak") == 1


def test_a_name_keeps_its_backend_for_life() -> None:
    """A probe whose name stands for another backend is refused, and keeps its label."""
    stored = Probe().baseline().record.history
    probe = Probe(history=stored, backend="gloo")

    assert probe.record.other_backend == "simulated"
    with pytest.raises(ValueError, match="stands for results of simulated"):
        probe.result()
    probe.record.skip("backend_changed")
    assert probe.value("skips_total", "backend_changed") == 1


def test_a_name_without_any_outcome_is_free() -> None:
    """Until the first cycle has run, the backend may still turn out to be another one."""
    probe = Probe(backend="gloo")

    probe.record.adopt_plan(cycle_plan())
    probe.result()

    assert probe.record.other_backend == ""
    assert probe.value("attempts_total") == 1


def test_ranks_that_share_a_gpu_give_no_times() -> None:
    """Several ranks on one GPU prove that sums are right; their times are time slices."""
    probe = Probe(backend="nccl", ranks=2, devices=("GPU-a",))

    probe.record.apply(measured(probe.now), FIRM, probe.now)

    values = {name: value for name, _, value in probe.record.readings(probe.now)}
    assert values["commwatch_probe_attempts_total"] == 1
    assert values["commwatch_probe_last_completion_timestamp_seconds"] == probe.now
    assert values["commwatch_probe_last_latency_seconds"] is None
    assert values["commwatch_probe_latency_seconds_count"] == 0


def test_all_bounded_reasons_are_there_from_the_start() -> None:
    """Every reason has a series at 0, so that the first event is an increase; all series are of the catalogue."""
    readings = Probe().record.readings(0.0)

    counted = {labels[-1] for name, labels, value in readings if name.endswith(("failures_total", "skips_total"))}
    assert counted == {*get_args(FailureReason), *get_args(SkipReason)}
    assert all(value in (0, None) for name, _, value in readings if not name.endswith("_info"))
    Layout((name, labels) for name, labels, _ in readings)


def test_the_series_stay_the_same() -> None:
    """A result changes values, not series, but for the info metric."""
    probe = Probe()
    before = [(name, labels) for name, labels, _ in probe.record.readings(0.0) if not name.endswith("_info")]

    probe.baseline()

    assert before == [(name, labels) for name, labels, _ in probe.record.readings(0.0) if not name.endswith("_info")]


def test_histogram_is_cumulative() -> None:
    """A latency on a bound counts as below it, and every bucket holds those before it."""
    probe = Probe()
    for latency in (1e-5, 1.1e-5, 0.5, 7.0):
        probe.result(latency=latency)

    assert probe.value("latency_seconds_bucket", "1e-05") == 1
    assert probe.value("latency_seconds_bucket", "2e-05") == 2
    assert probe.value("latency_seconds_bucket", "1.0") == 3
    assert probe.value("latency_seconds_bucket", "+Inf") == 4
    assert probe.value("latency_seconds_count") == 4
    assert probe.value("latency_seconds_sum") == pytest.approx(7.500021)
    assert list(BUCKETS_SECONDS) == sorted(BUCKETS_SECONDS)


def test_occupancy_is_gpus_times_the_life_of_the_ranks() -> None:
    """Every cycle that started counts, whatever came of it."""
    probe = Probe()

    probe.result()
    probe.failure("crashed")

    assert probe.value("gpu_occupied_seconds_total") == pytest.approx(2 * (5.0 + 5.0))
    assert [cycle.gpu_seconds for cycle in probe.record.history.occupied] == [10.0, 10.0]


def test_rules_are_the_thresholds_in_force() -> None:
    """The shipped thresholds and the probe's own limit make the rules."""
    rules = rules_of(config.Probe(latency_limit=config.Duration(0.015)), load_thresholds(None))

    assert rules == replace(RULES, spike=SpikeRule(6.0, 1.5, absolute_seconds=0.015))
