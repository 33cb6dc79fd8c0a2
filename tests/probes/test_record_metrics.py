"""Which metrics a probe's record shows of each measure, and what of them survives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from commwatch.probes.plan import Measure, Yielded, YieldReason
from commwatch.probes.rank_plan import FailureReason, SkipReason
from commwatch.probes.results.expected import Expected
from commwatch.probes.results.history import ProbeHistory
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Layout
from probes.recorded import FIRM, GPUS, Probe
from probes.results import MIB, plan_of
from support.passes import in_one_pass


def test_old_results_are_absent() -> None:
    """Past three intervals all that derives from a result is gone, and its time stays."""
    probe = Probe().baseline(97)
    probe.steps((1e-3, 1e-3), (1e-2, 2e-2), expected={1: FIRM})
    derived = [
        ("last_latency_seconds",),
        ("last_bus_bandwidth_bytes_per_second",),
        ("last_algorithm_bandwidth_bytes_per_second",),
        ("expected_bandwidth_bytes_per_second",),
        ("bandwidth_utilization_ratio",),
        ("baseline_latency_seconds",),
        ("latency_spike_streak",),
        ("low_bandwidth_streak",),
        ("setup_seconds",),
        ("latency_drift_ratio",),
        ("bandwidth_drift_ratio",),
        ("latency_step_ratio",),
        ("bandwidth_step_ratio",),
        ("rank_balance_ratio",),
        ("slowest_rank_info", "1", "0000:17:00.0"),
    ]

    young, old = probe.series(after=2700), probe.series(after=2701)

    assert all(young[key] is not None for key in derived)
    assert all(old.get(key) is None for key in derived)
    assert old["last_completion_timestamp_seconds",] == probe.now
    assert old["attempts_total",] == 98


@in_one_pass("interval, age", [(900, 2700), (600, 1800), (60, 1800), (7200, 21600)])
def test_results_age_by_their_interval(interval: float, age: float) -> None:
    """Three intervals, and half an hour at least; one of a clock that was ahead counts no longer either."""
    probe = Probe(interval=interval)
    probe.result()

    shown = [probe.value("last_latency_seconds", after=after) for after in (age, age + 0.5, -age, -age - 0.5)]

    assert shown == [1e-3, None, 1e-3, None]


def test_the_slowest_rank_is_named() -> None:
    """The balance is the fastest rank over the slowest one, whose number and GPU are named; equal ranks name nobody."""
    probe = Probe(plan_of(ranks=4))

    probe.steps((1e-3, 1e-3, 1e-3, 1e-3), (8e-3, 9e-3, 1e-2, 9e-3))

    assert probe.value("rank_balance_ratio") == pytest.approx(0.8)
    assert probe.value("slowest_rank_info", "2", "0000:27:00.0") == 1
    probe.steps(1e-3, 1e-2)
    assert probe.value("rank_balance_ratio") == 1
    assert not any(key[0] == "slowest_rank_info" for key in probe.series())


@in_one_pass(
    "measure, factor",
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1), ("all_to_all", 0.75)],
)
def test_each_collective_has_its_own_factor(measure: Measure, factor: float) -> None:
    """Bus bandwidth over algorithm bandwidth on four ranks, as nccl-tests has it; the measure is in the info metric."""
    probe = Probe(plan_of(measure, 4))

    probe.steps(1e-3, 1e-2)

    assert probe.value("last_algorithm_bandwidth_bytes_per_second") == pytest.approx(MIB / 1e-2)
    assert probe.value("last_bus_bandwidth_bytes_per_second") == pytest.approx(factor * MIB / 1e-2)
    assert probe.value("info", measure, "8", str(MIB), "4", "2.27.5", "2.9.1", "", "none") == 1


def test_scaling_shows_each_number_of_ranks() -> None:
    """Bus bandwidths over 2, 4 and 8 ranks, what they mean for training, and the one over all ranks as the probe's."""
    probe = Probe(plan_of("scaling", 8))

    narrow, wide = replace(FIRM, bytes_per_second=9 * MIB / 1e-3), replace(FIRM, bytes_per_second=1.75 * MIB / 2e-3)
    probe.steps(1e-3, 2e-3, 4e-3, expected={0: narrow, 1: narrow, 2: wide})

    rates = {key[1]: value for key, value in probe.series().items() if key[0].startswith("scaling_bus")}
    assert rates == {
        "2": pytest.approx(MIB / 1e-3),
        "4": pytest.approx(1.5 * MIB / 2e-3),
        "8": pytest.approx(1.75 * MIB / 4e-3),
    }
    assert probe.value("scaling_break_even_seconds", "8") == pytest.approx(4e-3 * 1e9 / MIB / 7)
    assert probe.value("last_bus_bandwidth_bytes_per_second") == rates["8"]
    assert probe.value("bandwidth_utilization_ratio") == pytest.approx(0.5)
    assert probe.value("low_bandwidth_streak") == 1


def test_one_group_that_becomes_slower_is_the_drift_of_the_probe() -> None:
    """Each number of ranks has its own reference; the worst one is shown."""
    probe = Probe(plan_of("scaling", 4))
    for _ in range(97):
        probe.steps(1e-3, 2e-3)

    for _ in range(200):
        probe.steps(1.17e-3, 2e-3)

    assert probe.value("bandwidth_drift_ratio") == pytest.approx(1.17)


def test_copies_are_shown_for_each_gpu_and_direction() -> None:
    """The one that falls shortest of what is expected stands for the probe, and the slowest GPU is named."""
    probe = Probe(plan_of("host_copies", 2))
    narrow = Expected(0.5 * MIB / 1e-3, "model", "x8")
    wide = Expected(MIB / 1e-3, "model", "x16")

    probe.steps(1.25e-3, 1e-3, 2e-3, 1.5e-3, expected={0: wide, 1: wide, 2: narrow, 3: narrow})

    series = probe.series()
    assert series[("copy_bandwidth_bytes_per_second", "1", GPUS[1].pci_bus_id, "device_to_host")] == pytest.approx(
        MIB / 1.5e-3
    )
    assert series[
        ("copy_expected_bandwidth_bytes_per_second", "0", GPUS[0].pci_bus_id, "host_to_device")
    ] == pytest.approx(MIB / 1e-3)
    assert len([key for key in series if key[0] == "copy_bandwidth_bytes_per_second"]) == 4
    assert series["bandwidth_utilization_ratio",] == pytest.approx(0.8)
    assert series["last_bus_bandwidth_bytes_per_second",] == pytest.approx(MIB / 1.25e-3)
    assert series["rank_balance_ratio",] == pytest.approx(2.25 / 3.5)
    assert series["slowest_rank_info", "1", "0000:17:00.0"] == 1


def test_copies_of_which_nothing_is_expected_have_no_expected_series_value() -> None:
    """Without an expectation the slowest copy stands for the probe, and there is no ratio."""
    probe = Probe(plan_of("host_copies", 1, steps=plan_of("host_copies", 2).steps[:2]))

    probe.steps(1e-3, 4e-3, expected={0: FIRM})

    series = probe.series()
    assert series["last_bus_bandwidth_bytes_per_second",] == pytest.approx(MIB / 4e-3)
    assert series["bandwidth_utilization_ratio",] is None
    assert series[("copy_expected_bandwidth_bytes_per_second", "0", GPUS[0].pci_bus_id, "device_to_host")] is None
    assert series["rank_balance_ratio",] is None


@in_one_pass("measure", ["scaling", "host_copies", "pairs"])
def test_measures_without_a_small_collective_have_no_latency(measure: Measure) -> None:
    """No histogram, no spikes: a time-out while measuring is a failure there and nothing else."""
    probe = Probe(plan_of(measure, 2))

    probe.failure("measure_timeout")

    series = probe.series()
    assert series["failures_total", "measure_timeout"] == 1
    assert probe.record.suspicious
    assert not any("latency" in key[0] for key in series)
    assert probe.record.history.latency_streak.count == 0


def test_of_pairs_only_the_cycle_is_recorded() -> None:
    """Set-up, attempts and conditions; what the pairs gave is the matter of the matrix."""
    probe = Probe(plan_of("pairs", 2))

    probe.steps(1e-3)

    series = probe.series()
    assert series["attempts_total",] == 1
    assert series["setup_seconds",] == 3.0
    assert series["info", "pairs", "0", str(MIB), "2", "2.27.5", "2.9.1", "", "none"] == 1
    assert not any("bandwidth" in key[0] for key in series)
    assert probe.record.history.courses == {}


def test_the_conditions_are_told() -> None:
    """Versions and a digest of the settings in force stand in the info metric."""
    probe = Probe()

    probe.steps(1e-3, 1e-2, expected={1: FIRM}, settings={"NCCL_ALGO": "Tree"})

    (info,) = [key for key in probe.series() if key[0] == "info"]
    assert info[1:7] == ("all_reduce", "8", str(MIB), "2", "2.27.5", "2.9.1")
    assert len(info[7]) == 8
    assert info[8] == "configured"


def test_a_restart_changes_nothing_but_the_counters() -> None:
    """Baseline, streak, drift and last values survive a restart; counters begin at 0 as counters do."""
    before = Probe().baseline(97)
    before.result(latency=2e-3)
    stored = msgspec.json.decode(msgspec.json.encode(before.record.history), type=ProbeHistory)

    after = Probe(history=stored)
    after.now = before.now

    counted = ("attempts", "spikes_total", "occupied", "_bucket", "_sum", "_count")
    shown = {key: value for key, value in before.series().items() if not any(word in key[0] for word in counted)}
    assert shown["latency_drift_ratio",] == 1
    assert {key: after.series()[key] for key in shown} == shown
    assert after.value("attempts_total") == 0
    after.result(latency=2e-3)
    assert after.value("latency_spike_streak") == 2


def test_copies_and_scaling_survive_a_restart() -> None:
    """What has labels of its own is there after a restart too."""
    for plan, times in ((plan_of("scaling", 4), 2), (plan_of("host_copies", 2), 4)):
        before = Probe(plan)
        before.steps(*[1e-3] * times)
        stored = msgspec.json.decode(msgspec.json.encode(before.record.history), type=ProbeHistory)

        after = Probe(plan, history=stored)
        after.now = before.now

        named = {key: value for key, value in before.series().items() if key[0].startswith(("scaling", "copy"))}
        assert len(named) == 2 * times
        assert {key: after.series()[key] for key in named} == named


def test_a_history_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Its last values, time and occupancy are kept; its baseline begins again, as the conditions say more now."""
    (tmp_path / "probe-ring.json").write_text("""{
        "backend": "simulated",
        "conditions": {"collective": "all_reduce", "latency_bytes": 8, "bandwidth_bytes": 1048576, "ranks": 2,
                       "nccl_version": "2.27.5"},
        "latencies": [0.001, 0.001], "latency_streak": {"count": 1, "last_at": 999100.0},
        "latency_judged_at": 999100.0, "bandwidth_streak": {"count": 0, "last_at": null},
        "last": {"finished_at": 1000000.0, "latency_seconds": 0.001, "bus_bandwidth": 1e8, "algorithm_bandwidth": 1e8,
                 "setup_seconds": 3.0, "expected": null},
        "last_completion_at": 1000000.0, "occupied": [{"ended_at": 1000000.0, "gpu_seconds": 10.0}]
    }""")

    probe = Probe(history=StateDirectory(tmp_path).load("probe-ring", ProbeHistory))

    assert probe.value("last_latency_seconds") == 1e-3
    assert probe.value("last_completion_timestamp_seconds") == 1e6
    assert probe.value("rank_balance_ratio") is None
    probe.result()
    assert len(probe.record.history.courses["latency"].good) == 1


def test_every_reason_that_may_come_is_there_from_the_start() -> None:
    """Each has a series at 0, so that the first event is an increase; all series are of the catalogue."""
    readings = Probe(plan_of(backend="nccl")).record.readings(0.0)

    counted = {
        (name.split("_")[2], labels[-1]) for name, labels, _ in readings if name.endswith("s_total") and labels[2:]
    }
    every = {("failures", reason) for reason in get_args(FailureReason)}
    every |= {("skips", reason) for reason in get_args(SkipReason)}
    every |= {("yields", reason) for reason in get_args(YieldReason)}
    assert counted == every - {("skips", "disabled")}
    assert all(value in (0, None) for name, _, value in readings if not name.endswith("_info"))
    Layout((name, labels) for name, labels, _ in readings)


def test_reasons_that_cannot_come_are_left_out_until_they_do() -> None:
    """gloo asks nothing of GPUs; a reason that comes all the same is counted."""
    probe = Probe(plan_of(backend="gloo"))
    assert ("skips_total", "gpu_busy") not in probe.series()
    assert ("failures_total", "nccl_error") not in probe.series()

    probe.failure("nccl_error")

    assert probe.value("failures_total", "nccl_error") == 1


def test_the_series_stay_the_same() -> None:
    """A result changes values, not series, but for those that name a rank or conditions."""
    probe = Probe()
    before = [key for key in probe.series() if not key[0].endswith("info")]

    probe.baseline(97)

    assert before == [key for key in probe.series() if not key[0].endswith("info")]


@in_one_pass("measure", get_args(Measure))
def test_all_series_are_of_the_catalogue_and_few(measure: Measure) -> None:
    """With a result over eight GPUs each series has the labels of its metric; no probe has more than 100."""
    plan = plan_of(measure, 8)
    probe = Probe(plan)
    probe.steps(*[[1e-3 * (1 + rank) for rank in range(len(one.clocks))] for one in plan.steps])

    readings = probe.record.readings(probe.now)

    Layout((name, labels) for name, labels, _ in readings)
    assert len(readings) < 100


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
    bounds = [float(key[1]) for key in probe.series() if key[0] == "latency_seconds_bucket"]
    assert bounds == sorted(bounds)


def test_occupancy_is_gpus_times_the_life_of_the_ranks() -> None:
    """Every cycle that started counts, whatever came of it."""
    probe = Probe()

    probe.result()
    probe.failure("crashed")
    yielded = Yielded(finished_at=probe.now, reason="requested", detail="", occupied_seconds=1.0)
    probe.record.take(yielded, probe.now)

    assert probe.value("gpu_occupied_seconds_total") == pytest.approx(2 * (5.0 + 5.0 + 1.0))
    assert [cycle.gpu_seconds for cycle in probe.record.history.occupied] == [10.0, 10.0, 2.0]
