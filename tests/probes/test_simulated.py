"""Probe cycles of a simulated node, in real processes."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from commwatch.config import settings
from commwatch.diagnosis.stress_run import sustained
from commwatch.node.starvation import Starvation
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.outcome import Problem, on_starved_node
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured, Skipped
from commwatch.probes.rank_plan import PHASES, FailureReason, Phase, SimulatedNodePlan
from commwatch.probes.workload import plan_cycle
from commwatch_rehearsal.simulation.presets import PRESETS
from probes.cycles import Thrashing, all_quiet, deadlines, hurry, wait_until_gone
from support.passes import in_one_pass
from support.waiting import PATIENCE_SECONDS

ROOTS = os.pathsep.join(str(Path(__file__).parents[2] / root) for root in ("daemon", "exporters"))


def plan(
    folder: Path,
    faults: str = "",
    preset: str = "a10x2",
    gpus: tuple[int, ...] | None = None,
    measure: str = "all_reduce",
) -> CyclePlan:
    """A cycle over some GPUs of a node that started a minute ago, in the order given."""
    file = folder / "faults.yaml"
    file.write_text(faults)
    uuids = [gpu.uuid for gpu in PRESETS[preset].gpus]
    return plan_cycle(
        measure,
        settings.Probe(measure=measure),  # type: ignore[arg-type]
        settings.Probes(),
        backend="simulated",
        devices=tuple(uuids if gpus is None else (uuids[gpu] for gpu in gpus)),
        simulation=SimulatedNodePlan(preset=preset, faults_file=str(file), started_at=time.time() - 60),
    )


def run(folder: Path, cycle: CyclePlan) -> CycleResult:
    return asyncio.run(Launcher(temporary=folder).run(cycle, all_quiet))


def measured(folder: Path, cycle: CyclePlan) -> Measured:
    result = run(folder, cycle)
    assert isinstance(result, Measured), result
    return result


def failed(folder: Path, cycle: CyclePlan) -> Failed:
    result = run(folder, cycle)
    assert isinstance(result, Failed), result
    return result


def seconds_by_pair(result: Measured, both_ways: bool = False) -> dict[tuple[int, int], float]:
    """Of a large message, by source and destination."""
    times = {}
    for outcome in result.outcomes:
        if outcome.step.purpose == "bandwidth" and outcome.step.both_ways == both_ways:
            for source, destination in outcome.step.pairs:
                seconds = outcome.seconds[destination]
                assert seconds is not None
                times[source, destination] = seconds
    return times


def test_a_slow_path_is_measured_as_slow(tmp_path: Path) -> None:
    """Three times the latency and a quarter of the bandwidth come out as such."""
    healthy = measured(tmp_path, plan(tmp_path))
    slow = measured(tmp_path, plan(tmp_path, "- fault: slow_probe\n  latency: 3\n  bandwidth: 0.25\n"))

    times = []
    for purpose in ("latency", "bandwidth"):
        before, now = (result.first(purpose) for result in (healthy, slow))
        assert before is not None
        assert now is not None
        times.append(now.median_seconds / before.median_seconds)
    assert times == [pytest.approx(3, rel=0.15), pytest.approx(4, rel=0.15)]
    assert healthy.nccl_version == "simulated"


def test_pairs_are_measured_where_their_ranks_are(tmp_path: Path) -> None:
    """Ranks 0, 1, 2 are on GPUs 3, 0, 1: what is slow between GPUs 0 and 1 is found between ranks 1 and 2 alone."""
    cycle = plan(
        tmp_path, "- {fault: slow_pair, gpu: 0, peer: 1, bandwidth: 0.4}", "rtx3090x4", gpus=(3, 0, 1), measure="pairs"
    )

    result = measured(tmp_path, cycle)

    for both_ways in (False, True):
        times = seconds_by_pair(result, both_ways)
        assert set(times) == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}
        assert {pair for pair, seconds in times.items() if seconds > 1.6 * min(times.values())} == {(1, 2), (2, 1)}


def test_a_sustained_run_keeps_to_its_time_and_shows_what_comes_late(tmp_path: Path) -> None:
    """Slice after slice without a pause; a fault that needs half a second of work doubles the time of the last ones."""
    fault = "- {fault: sustained_slowdown, bandwidth: 0.5, after: 500ms}"
    cycle = sustained(plan(tmp_path, fault, "rtx3090x4"), 1.2)

    result = measured(tmp_path, cycle)

    times = [outcome.slowest_seconds for outcome in result.outcomes]
    assert len(times) == 9
    assert times[-1] / times[0] == pytest.approx(2, rel=0.15)


def test_calls_take_the_time_that_they_give(tmp_path: Path) -> None:
    """At a thousandth of the rate one call lasts seconds, and a deadline of one passes."""
    cycle = plan(tmp_path, "- {fault: slow_probe, bandwidth: 0.001}")

    assert (
        failed(tmp_path, msgspec.structs.replace(cycle, deadlines=deadlines(measure=1.0))).reason == "measure_timeout"
    )


def test_copies_of_one_gpu_need_nobody_else(tmp_path: Path) -> None:
    """Both directions of a narrowed link take twice as long."""
    healthy = measured(tmp_path, plan(tmp_path, preset="h200x1", measure="host_copies"))
    narrowed = measured(
        tmp_path, plan(tmp_path, "- {fault: pcie_width, gpu: 0, lanes: 8}", preset="h200x1", measure="host_copies")
    )

    assert [outcome.step.operation for outcome in healthy.outcomes] == ["host_to_device", "device_to_host"]
    for before, now in zip(healthy.outcomes, narrowed.outcomes, strict=True):
        assert now.median_seconds / before.median_seconds == pytest.approx(2, rel=0.15)


def test_a_driver_that_hangs_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank on a GPU whose driver does not answer is given up at the deadline."""
    hurry(monkeypatch, rank=1, phase="setup")

    result = failed(tmp_path, plan(tmp_path, "- fault: driver_hang\n  gpu: 1\n"))

    assert (result.reason, result.phase, result.rank) == ("setup_timeout", "setup", 1)


@pytest.mark.parametrize(("phase", "how"), [*((phase, "waiting") for phase in PHASES[:-1]), ("measure", "blocked")])
def test_a_rank_that_hangs_is_a_timeout_of_its_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase, how: str
) -> None:
    """Whether it still hears its parent or not; nothing of the cycle is left."""
    hurry(monkeypatch, rank=1, phase=phase)
    cycle = plan(tmp_path, f"- {{fault: probe_hang, phase: {phase}, rank: 1, how: {how}}}")

    result = failed(tmp_path, cycle)

    assert (result.phase, result.rank) == (phase, 1)
    assert result.reason == ("start" if phase == "start" else f"{phase}_timeout")
    wait_until_gone(tmp_path)


@pytest.mark.parametrize("phase", ["start", "measure"])
def test_a_rank_that_is_late_on_a_starved_node_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """The cycle counts as one that did not start, and says why; nothing of it is left."""
    hurry(monkeypatch, rank=1, phase=phase)
    launcher = Launcher(temporary=tmp_path, starvation=Thrashing(tmp_path / "nonexistent"))
    cycle = plan(tmp_path, f"- {{fault: probe_hang, phase: {phase}, rank: 1}}")

    result = asyncio.run(launcher.run(cycle, all_quiet))

    assert isinstance(result, Skipped)
    assert result.reason == "starved"
    assert "which is not judged: the node is starved of memory" in result.detail
    wait_until_gone(tmp_path)


def test_starvation_before_the_phase_excuses_no_hang_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that start are what a small machine is busy with; one that hangs later has failed."""
    hurry(monkeypatch, rank=1, phase="measure")
    starvation = Starvation(tmp_path / "nonexistent")

    def note_at_setup(phase: Phase, *_: object) -> None:
        if phase == "setup":
            starvation.beat(2.0)

    launcher = Launcher(temporary=tmp_path, starvation=starvation)
    cycle = plan(tmp_path, "- {fault: probe_hang, phase: measure, rank: 1}")
    result = asyncio.run(launcher.run(cycle, all_quiet, note_at_setup))

    assert isinstance(result, Failed), result
    wait_until_gone(tmp_path)


@in_one_pass("reason, phase", [(one, phase) for one in (*get_args(FailureReason), "no_torch") for phase in PHASES])
def test_only_what_starvation_can_bring_about_is_excused_by_it(reason: Any, phase: Phase) -> None:
    """A rank that crashes or gives a wrong result has failed, however busy the node is, and in whichever phase."""
    problem = Problem(reason, "words", 1, phase)
    is_late = reason in ("start", "rendezvous_timeout", "setup_timeout", "measure_timeout", "stuck")

    assert on_starved_node(problem, "the node is starved of CPU").reason == ("starved" if is_late else reason)
    assert on_starved_node(problem, "") == problem


def test_a_hang_that_ends_is_a_result(tmp_path: Path) -> None:
    """A rank that waited goes on when the fault is over."""
    cycle = plan(tmp_path, "- {fault: probe_hang, phase: setup, rank: 1, at: 0s, until: 61500ms}")

    assert measured(tmp_path, cycle).setup_seconds > 0.5


PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""
BLOCKED = """
import os, sys
from commwatch_rehearsal.simulation.rank import block
parent = os.getppid()  # before it says so: the parent is killed then
sys.stdout.write("blocks\\n")
sys.stdout.flush()
block(parent)
"""


def test_a_blocked_rank_ends_with_its_parent() -> None:
    """As a hanging driver of a simulated node does: a rehearsal leaves nothing behind."""
    command = [sys.executable, "-c", PARENT, BLOCKED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ROOTS}) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"blocks\n"
        assert select.select([parent.stdout], [], [], 0.3)[0] == []
        parent.kill()

        # Both hold the pipe: it ends when both have.
        assert select.select([parent.stdout], [], [], PATIENCE_SECONDS)[0] == [parent.stdout]
        assert parent.stdout.read() == b""
