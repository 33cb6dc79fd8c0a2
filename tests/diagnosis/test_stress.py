"""The stress branch: whether bandwidth holds under load, and what the counters did meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.config.settings import Config, Paths, Probe, Probes, Size
from commwatch.diagnosis import stress_run
from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import Rise, Stress
from commwatch.diagnosis.stress import rises_between
from commwatch.diagnosis.stress_run import Sample, limits_in, sample_of, stress_seconds, sustained, under_load
from commwatch.errors import CommwatchError, UsageError
from commwatch.probes.by_hand.answer import Answer, StepRow
from commwatch.probes.plan import CycleResult, Failed, Measured, Skipped, Yielded
from commwatch.probes.workload import plan_cycle
from commwatch.state.client import DaemonAbsent
from commwatch_exporters.node.model import Gpu, NvLink
from diagnosis.exposed import answer_of, branch_of, known_of
from support.facts import NOW, Numbers, shipped
from support.passes import in_one_pass

MIB = 2**20
MEASURED = Measured(finished_at=NOW, occupied_seconds=32.0, setup_seconds=3.0, outcomes=())
HELD, CLOCKS, LINKS = "bandwidth under load", "clocks and PCIe generation under load", "errors of the links under load"


def answer(rates: Sequence[float], result: CycleResult = MEASURED) -> Answer:
    """A run whose slices had these bus bandwidths, bytes per second."""
    rows = tuple(
        StepRow(
            operation="all_reduce", purpose="sustained", size_bytes=256 * MIB, members=tuple(range(8)),
            seconds=1.75 * 256 * MIB / rate, median_seconds=1.0, slowest_rank=None,
            balance_ratio=1.0, algorithm_bandwidth_bytes_per_second=rate / 1.75,
            bus_bandwidth_bytes_per_second=rate, expected=None, utilization_ratio=None, verdict="not judged",
        )
        for rate in rates
    )  # fmt: skip
    return answer_of(result, probe="stress", backend="nccl", rows=rows)


def run(rates: Sequence[float] = (400e9,) * 15, result: CycleResult = MEASURED, **changes: Any) -> Stress:
    """Thirty seconds."""
    known: dict[str, Any] = {"rises": (), "samples": 9, "held": {}, "slow_links": ()}
    return Stress(30.0, answer(rates, result), **(known | changes))


def checks(made: Stress) -> dict[str, Check]:
    """By what they are of, without sizes."""
    found = branch_of(replace(known_of({}), stress=made), "stress")
    return {check.what.partition(", ")[0].removeprefix("all_reduce bus "): check for check in found}


def test_bandwidth_that_holds_passes() -> None:
    """With first and last third, and the lowest slice."""
    check = checks(run([400e9] * 7 + [370e9] + [398e9] * 7))[HELD]

    assert check.verdict == "passed"
    assert check.what == "all_reduce bus bandwidth under load, 256 MiB, 30 s"
    assert check.measured == "first third 400 GB/s, last third 398 GB/s (100 %), lowest 370 GB/s"


HOT: dict[str, Any] = {"held": {"GPU3": ("too hot, by the driver",)}}
RETRAINED, SENT_AGAIN = Rise(NvLink.recovery_errors, "GPU3 link 2", "", 1.0), Rise(Gpu.pcie_replays, "GPU1", "", 1.0)
POWER = Rise(Gpu.performance_limited_seconds, "GPU1", "power", 12.0)
ERROR = Failed(finished_at=NOW, occupied_seconds=9.0, reason="nccl_error", detail="system error")
DEFECT = Failed(finished_at=NOW, occupied_seconds=0.0, reason="internal", detail="a defect")
BUSY = Skipped(finished_at=NOW, reason="gpu_busy", detail="GPU1 has a process")
GAVE_WAY = Yielded(finished_at=NOW, occupied_seconds=4.0, reason="process_appeared", detail="process 7 came")
SINGLE = Skipped(finished_at=NOW, reason="single_gpu", detail="one rank")


@in_one_pass(
    "made, what, verdict, says",
    [
        # It fails from a tenth less on, by the shipped threshold, and says when it fell.
        (run([400e9] * 10 + [361e9] * 5), HELD, "passed", "last third 361 GB/s"),
        (run([400e9] * 10 + [359e9] * 5), HELD, "failed", "stress_bandwidth_fall_max_ratio"),
        (run([400e9] * 6 + [240e9] * 9), HELD, "failed", "It fell for good after 12 s."),
        # Medians of thirds: an interruption of one slice shows as the lowest value, and fails nothing.
        (run([400e9] * 14 + [100e9]), HELD, "passed", "lowest 100 GB/s"),
        # Heat and a link below its generation are faults under load; a power limit is how many GPUs work.
        (run(), CLOCKS, "passed", "nothing held them back"),
        (run(samples=0), CLOCKS, "not measured", ""),
        (run(**HOT), CLOCKS, "failed", "GPU3: too hot, by the driver"),
        (run(slow_links=("PCIe link of GPU2",)), CLOCKS, "failed", "PCIe link of GPU2: below its generation"),
        (run(rises=(POWER,)), CLOCKS, "notice", "GPU1 held for 12 s by power limit"),
        # A link that was trained again under load is a fault, one that sent again is worth knowing.
        (run(rises=(RETRAINED,)), LINKS, "failed", "GPU3 link 2: 1 NVLink recoveries"),
        (run(rises=(SENT_AGAIN,)), LINKS, "notice", "GPU1: 1 PCIe replays"),
        # The daemon was gone afterwards: no check passes, and the answer has what the samples show.
        (run(rises=None, **HOT), LINKS, "not measured", ""),
        (run(rises=None, **HOT), CLOCKS, "failed", "too hot"),
    ],
)
def test_what_happened_under_load(made: Stress, what: str, verdict: str, says: str) -> None:
    """To the bandwidth, the GPUs and the links, with what was seen."""
    check = checks(made)[what]

    assert check.verdict == verdict
    assert says in f"{check.measured} {check.detail} {check.source}"


@in_one_pass(
    "result, verdict, says",
    [
        (ERROR, "failed", "system"),
        (DEFECT, "not measured", "defect"),
        (BUSY, "not measured", "Skipped: gpu_busy"),
        (GAVE_WAY, "not measured", "Gave way: process_appeared"),
        (SINGLE, "does not apply", "one rank"),
    ],
)
def test_a_run_without_a_result(result: CycleResult, verdict: str, says: str) -> None:
    """An error under load is a fault; a node that is not free, or that a job wanted, says so; nothing else is told."""
    found = checks(run((), result))

    assert [*found] == [HELD]
    assert found[HELD].verdict == verdict
    assert says in found[HELD].detail


def test_a_quick_diagnosis_says_nothing_and_a_full_one_how_to_stress() -> None:
    """Nobody asked for load."""
    known = known_of({})

    assert branch_of(known, "stress") == []
    [check] = branch_of(replace(known, scanned=(answer(()),)), "stress")
    assert (check.verdict, "--stress 30s" in check.detail) == ("not measured", True)


def test_only_what_rose_between_the_snapshots_counts() -> None:
    """Not what stood there before, what fell by a restart, or what was not there before."""
    gpu = ("0", "0000:10:00.0")
    before: Numbers = {
        "commwatch_pcie_replays_total": {gpu: 5.0, ("1", "0000:11:00.0"): 9.0},
        "commwatch_nvlink_recovery_errors_total": {(*gpu, "2"): 1.0},
        "commwatch_gpu_performance_limited_seconds_total": {(*gpu, "thermal"): 3.0, (*gpu, "power"): 1.0},
    }
    after: Numbers = {
        "commwatch_pcie_replays_total": {gpu: 8.0, ("1", "0000:11:00.0"): 2.0, ("2", "0000:12:00.0"): 4.0},
        "commwatch_nvlink_recovery_errors_total": {(*gpu, "2"): 1.0},
        "commwatch_gpu_performance_limited_seconds_total": {(*gpu, "thermal"): 7.5, (*gpu, "power"): 1.01},
    }

    assert rises_between(known_of(before).facts.node, known_of(after).facts.node) == (
        (Gpu.pcie_replays, "GPU0", "", 3.0),
        (Gpu.performance_limited_seconds, "GPU0", "thermal", 4.5),
    )


def test_only_samples_of_a_loaded_gpu_count() -> None:
    """Not those of the first seconds, when the daemon still shows the idle GPU, nor those after the end."""
    samples = [Sample(NOW + at, frozenset(), frozenset()) for at in (0, 10.9, 11, 30, 30.1)]

    assert [one.time - NOW for one in under_load(samples, NOW + 30, 30.0)] == [11, 30]
    assert under_load(samples, NOW + 10, 10.0) == []


def test_what_the_samples_show_is_judged_by_the_rules_of_the_findings() -> None:
    """A clock that is held down in any sample; a power cap is how a healthy GPU works."""
    gpu = ("3", "0000:13:00.0")
    reasons = {(*gpu, "hw_thermal_slowdown"): 1.0, (*gpu, "sw_thermal_slowdown"): 0.0, (*gpu, "sw_power_cap"): 1.0}
    capped = {"commwatch_gpu_clocks_event_reason": {(*gpu, "sw_power_cap"): 1.0}}
    slow = {"commwatch_pcie_link_degraded": {(*gpu, "generation"): 1.0}}
    held = {"commwatch_gpu_clocks_event_reason": reasons}

    samples = [sample_of(known_of(numbers).snapshot, shipped()) for numbers in (capped, held, slow)]

    assert limits_in(samples[:1]) == ({}, ())
    assert limits_in(samples) == ({"GPU3": ("too hot, by the hardware",)}, ("PCIe link of GPU3",))


def test_the_daemon_is_asked_until_the_load_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample without an answer is one less; of the others what the rules see is kept."""
    flag = {("3", "0000:13:00.0", "hw_thermal_slowdown"): 1.0}
    numbers: Numbers = {"commwatch_gpu_clocks_event_reason": flag, "commwatch_simulated": {(): 1.0}}
    answers = [msgspec.to_builtins(known_of(numbers).snapshot)] * 2
    is_over = threading.Event()

    def ask(*_: object) -> object:
        if not answers:
            is_over.set()
            raise CommwatchError("no answer")
        return answers.pop()

    monkeypatch.setattr(stress_run, "ask_daemon", ask)
    monkeypatch.setattr(stress_run, "SAMPLE_SECONDS", 0.001)

    samples = stress_run.samples_until(is_over, Config(paths=Paths(state=str(tmp_path))), shipped())

    assert samples == [Sample(NOW, frozenset({("GPU3", "too hot, by the hardware")}), frozenset())] * 2


def test_without_the_daemon_the_bandwidth_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended during the scan of minutes before: what the daemon would have seen is not measured, and no more."""

    def ask(*_: object) -> object:
        raise DaemonAbsent("gone")

    monkeypatch.setattr(stress_run, "ask_daemon", ask)
    monkeypatch.setattr(stress_run, "run_cycles", lambda *_, **__: [answer([400e9] * 15)])
    found = checks(stress_run.run_stress(Config(), shipped(), 30.0, gpus=(), ignore_scheduler=False))

    assert {what: check.verdict for what, check in found.items()} == {
        HELD: "passed", CLOCKS: "not measured", LINKS: "not measured",
    }  # fmt: skip


@in_one_pass("seconds, slices", [(1.0, 9), (30.0, 15), (600.0, 300)])
def test_a_run_is_slices_of_two_seconds_with_a_look_before_each(seconds: float, slices: int) -> None:
    """And at least nine, so that each third has three; the time is all of theirs together."""
    plan = plan_cycle("stress", Probe(bandwidth_bytes=Size(256 * MIB)), Probes(), backend="nccl",
                      devices=tuple("abcd"))  # fmt: skip

    made = sustained(plan, seconds)

    assert [step.purpose for step in made.steps] == ["sustained"] * slices
    assert {(step.operation, step.size_bytes) for step in made.steps} == {("all_reduce", 256 * MIB)}
    assert made.timed_seconds == seconds
    assert made.deadlines.measure == seconds + plan.deadlines.measure
    assert sustained(msgspec.structs.replace(plan, backend="gloo"), seconds).steps == ()


def test_times_under_load() -> None:
    """One second to ten minutes, and none is none; others are wrong use."""
    assert [stress_seconds(text) for text in ("1s", "10m", None)] == [1.0, 600.0, None]
    for text in ("", "0s", "999ms", "601s", "11m", "-5s", "soon"):
        with pytest.raises(UsageError) as caught:
            stress_seconds(text)
        assert caught.value.exit_code == 2
