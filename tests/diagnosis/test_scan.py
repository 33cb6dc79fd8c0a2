"""Which probes a full scan measures again, and that it goes on from what the daemon has kept of them."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import Config, Duration, Paths, Probe, Probes, Simulation
from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis import full_scan as full_scan_module
from commwatch.diagnosis.full_scan import Scan, Scope, full_scan
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.walk import diagnose
from commwatch.errors import CommwatchError
from commwatch.probes.by_hand.answer import CycleVerdict
from commwatch.probes.plan import CycleResult, Failed, Measured, Skipped, StepOutcome
from commwatch.probes.prospect import Prospect
from commwatch.probes.rank_plan import FailureReason, SkipReason, Step
from commwatch.probes.results.history import Conditions, ProbeHistory
from commwatch.probes.workload import plan_cycle
from commwatch.state.client import DaemonAbsent
from commwatch.state.directory import state_path
from commwatch.state.maintenance import Maintenance, MaintenanceFile
from diagnosis.exposed import answer_of, known_of
from support.command_line import run_command
from support.facts import NOW, shipped

LIMIT = 1e-3
PROBE = Probe(latency_limit=Duration(LIMIT))
PLAN = plan_cycle("all_reduce", PROBE, Probes(), backend="simulated", devices=("a", "b"))


def measured(latency: float = 1e-5) -> Measured:
    """A cycle of a small message alone."""
    step = Step(operation="all_reduce", purpose="latency", size_bytes=8, members=(0, 1))
    outcome = StepOutcome(step=step, seconds=(latency, latency))
    return Measured(finished_at=NOW, occupied_seconds=1.0, setup_seconds=1.0, outcomes=(outcome,))


def failed(reason: FailureReason) -> Failed:
    return Failed(finished_at=NOW, occupied_seconds=1.0, reason=reason, detail="")


def skipped(reason: SkipReason) -> Skipped:
    return Skipped(finished_at=NOW, reason=reason, detail="")


def take(scan: Scan, result: CycleResult, verdict: CycleVerdict = "good") -> bool:
    """Hand a scan a cycle; whether it wants another one."""
    scan.took("all_reduce", PROBE, Prospect(PLAN, ()), answer_of(result, verdict, ranks=2))
    return list(scan.again()) == ["all_reduce"]


def scan_in(folder: Path) -> Scan:
    """Of a node whose daemon has its state in a folder."""
    return Scan(Config(paths=Paths(state=str(folder))), shipped())


@pytest.mark.parametrize(
    ("result", "verdict", "again"),
    [
        (measured(), "good", False),
        (measured(), "low", True),
        (measured(2 * LIMIT), "good", True),
        (failed("nccl_error"), "failed", True),
        (failed("measure_timeout"), "failed", False),
        (failed("stuck"), "failed", False),
        (skipped("probe_running"), "skipped", True),
        (skipped("gpu_busy"), "skipped", False),
    ],
)
def test_what_looks_bad_is_measured_three_times_at_most(
    result: CycleResult, verdict: CycleVerdict, again: bool, tmp_path: Path
) -> None:
    """And what takes a deadline to fail, or leaves a process behind, but once; the daemon's own cycle is waited for."""
    scan = scan_in(tmp_path)

    assert [take(scan, result, verdict) for _ in range(3)] == [again, again, False]


def test_a_probe_that_is_well_again_is_left_alone(tmp_path: Path) -> None:
    """One bad reading in between is no streak."""
    scan = scan_in(tmp_path)

    assert [take(scan, measured(2 * LIMIT)), take(scan, measured())] == [True, False]
    [fresh] = scan.fresh()
    assert (fresh.bad, fresh.bad_in_a_row) == ((True, False), ())
    assert ("commwatch_probe_latency_spike_streak", ("all_reduce", "simulated"), 0) in fresh.readings


def history(ranks: int) -> bytes:
    """Two slow results of the daemon over this number of ranks."""
    now = time.time()
    conditions = Conditions("all_reduce", PLAN.latency_bytes, PLAN.bandwidth_bytes, ranks, "")
    kept = ProbeHistory("simulated", conditions=conditions, latency_judged_at=now)
    return msgspec.json.encode({**msgspec.to_builtins(kept), "latency_streak": {"count": 2, "last_at": now}})


@pytest.mark.parametrize(
    ("content", "streak", "comparable"),
    [
        (history(2), 3, True),
        (history(4), 1, False),
        (b"{", 1, True),
        (b'{"backend": "gloo"}', 1, True),
    ],
    ids=["the same", "of four GPUs", "damaged", "of another backend"],
)
def test_the_streak_of_the_daemon_goes_on(content: bytes, streak: int, comparable: bool, tmp_path: Path) -> None:
    """Two slow results of the daemon and one of the scan are three in a row; its file stays as it is, to be set aside
    by the daemon."""
    file = tmp_path / "probe-all_reduce.json"
    file.write_bytes(content)
    scan = scan_in(tmp_path)

    take(scan, measured(2 * LIMIT))

    [fresh] = scan.fresh()
    assert fresh.comparable == comparable
    assert ("commwatch_probe_latency_spike_streak", ("all_reduce", "simulated"), streak) in fresh.readings
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [content]


def no_other(config: Config, thresholds: Thresholds) -> Known:
    """Nobody reads a node that has a daemon."""
    raise AssertionError("the daemon answers")


def test_without_a_daemon_the_node_is_read_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes keep to holds and the lock of the node's own state directory; the daemon is not asked again."""
    config, known, seen = Config(paths=Paths(state=str(tmp_path))), known_of({}), []

    def ask(*_: object) -> Known:
        raise DaemonAbsent("none")

    monkeypatch.setattr(full_scan_module, "ask", ask)
    monkeypatch.setattr(full_scan_module, "run_cycles", lambda config, probes, **_: seen.append(config))

    assert full_scan(config, shipped(), lambda *_: known, Scope()).snapshot == known.snapshot
    assert seen == [config]


def test_a_node_in_maintenance_is_not_read(tmp_path: Path) -> None:
    """No device file of its driver is opened, whether a daemon runs or not."""
    config = Config(paths=Paths(state=str(tmp_path)), simulation=Simulation(preset="a10x2"))
    state = state_path(config)
    state.mkdir()
    MaintenanceFile(state).write(Maintenance("upgrade", time.time() + 60, time.time()))

    with pytest.raises(CommwatchError, match=r"the node is paused \(upgrade\)"):
        run_command(config, "diagnose", "--full-scan")


def test_a_daemon_that_is_gone_after_the_scan_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured is put over what the daemon knew before; without a daemon at the start nothing is run."""
    before = known_of({})
    answers = [before]

    def ask(*_: object) -> Known:
        if answers:
            return answers.pop()
        raise CommwatchError("gone")

    ran = []
    monkeypatch.setattr(full_scan_module, "ask", ask)
    monkeypatch.setattr(full_scan_module, "run_cycles", lambda config, probes, **_: ran.append(list(probes)))
    config = Config(paths=Paths(state=str(tmp_path)), probes=Probes(definitions={"all_reduce": Probe()}))

    with capture_logs() as logged:
        known = full_scan(config, shipped(), no_other, Scope())

    assert (known.snapshot, ran) == (before.snapshot, [["all_reduce", "pairs"]])
    assert [entry["error"] for entry in logged] == ["gone"]
    [told] = [check for check in diagnose(known, "full").checks if check.what == "daemon after the scan"]
    assert (told.verdict, told.detail.startswith("gone: counters")) == ("notice", True)
    with pytest.raises(CommwatchError):
        full_scan(config, shipped(), no_other, Scope())
    assert len(ran) == 1
