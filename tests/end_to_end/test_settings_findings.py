"""From the environment of a job's processes through the audit to the finding, and to the causes of what fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.state.client import ask_daemon
from commwatch.state.directory import state_path
from commwatch.workers.sources import READERS
from support.daemon import running
from support.simulated_daemon import SimulatedDaemon, rehearsed

JOB = "- {fault: job, at: 5m, until: 30m}\n"
SMALL_BUFFER = "- {fault: nccl_setting, at: 10m, until: 20m, variable: NCCL_BUFFSIZE, value: '65536'}\n"
NARROW = "- {fault: pcie_width, at: 12m, gpu: 1, lanes: 4}\n"
SUSPICIOUS = ("nccl_setting_suspicious", "setting/NCCL_BUFFSIZE/buffer_small")
TIMEOUTS = "".join(
    f"[rank0]:[E101 10:1{minute}:00.123456789 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600055 "
    "milliseconds before timing out.\n"
    for minute in range(5, 8)
)


def about_settings(node: SimulatedDaemon) -> set[tuple[str, str]]:
    """Open findings on settings, be they causes or findings of their own."""
    keys = {one.key for one in node.verdict.findings}
    keys |= {(cause.code, cause.component.identity) for one in node.verdict.findings for cause in one.causes}
    return {key for key in keys if key[0].startswith("nccl_setting")}


def judged(node: SimulatedDaemon) -> float | None:
    return node.snapshot().value("commwatch_nccl_setting_read_processes")


def test_a_setting_opens_a_finding_that_closes_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it has lasted two minutes; a job without the setting has none."""
    with rehearsed("a10x2", tmp_path, monkeypatch, JOB + SMALL_BUFFER) as node:
        node.until(4)
        assert (judged(node), about_settings(node)) == (0, set())
        node.until(10)
        assert (judged(node), about_settings(node)) == (2, set())
        node.until(11.5)
        assert about_settings(node) == set()
        node.until(14)
        assert about_settings(node) == {SUSPICIOUS}
        node.until(29)
        assert (judged(node), about_settings(node)) == (2, set())
        node.until(32)
        assert judged(node) == 0


def test_while_the_processes_are_not_known_a_finding_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is gone: neither has the setting, nor is there a number of processes any more."""
    gone = "- {fault: driver_reload, at: 16m, until: 19m}\n"
    with rehearsed("a10x2", tmp_path, monkeypatch, JOB + SMALL_BUFFER + gone) as node:
        node.until(15)
        assert about_settings(node) == {SUSPICIOUS}
        node.until(18.5)
        assert judged(node) is None
        assert about_settings(node) == {SUSPICIOUS}


def test_a_narrow_link_and_a_setting_are_seen_beside_timeouts_without_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order, both findings; the daemon tells name and advice of the setting, and no value."""
    with rehearsed("a10x2", tmp_path, monkeypatch, JOB + SMALL_BUFFER + NARROW, TIMEOUTS) as node:
        node.until(18)
        (timeouts,) = (one for one in node.verdict.findings if one.code == "nccl_timeouts")
        with node.control():
            told = ask_daemon(state_path(node.config), "settings")

    assert timeouts.causes == ()
    assert [one.code for one in timeouts.also_seen] == ["pcie_width_dropped", "nccl_setting_suspicious"]
    (remark,) = told["audit"]["remarks"]
    assert (remark["variable"], remark["code"], remark["processes"]) == ("NCCL_BUFFSIZE", "buffer_small", 2)
    assert "65536" not in str(told)


def test_the_daemon_audits_a_job_that_runs_as_it_starts(tmp_path: Path) -> None:
    """Through a process that is gone afterwards; the readers of logs and of settings have nothing to do then."""
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {fault: job, at: 0s}\n- {fault: nccl_setting, at: 0s, variable: NCCL_ALGO, value: Tree}\n")
    config = tmp_path / "commwatch.yaml"
    config.write_text("probes: {enabled: false}\njobs: {identity: true}\n")
    arguments = ("--config.file", str(config), "--simulate", "a10x2", "--simulate.faults", str(faults))
    with running(tmp_path, *arguments) as daemon:
        forced = {"variable": "NCCL_ALGO", "remark": "algorithm_forced", "severity": "harmful"}
        assert daemon.until(lambda: daemon.value("nccl_setting_processes", **forced)) == 2
        assert daemon.value("nccl_setting_read_processes") == 2
        owned = daemon.until(lambda: daemon.series("gpu_job_info"))
        assert {(one["gpu"], one["scheduler"], one["job_id"]) for one in map(dict, owned)} == {
            (gpu, "slurm", "4711") for gpu in "01"
        }
        assert daemon.value("collector_success", collector="nccl_settings") == 1
        # The process of the audit ends after its answer.
        assert daemon.until(lambda: len(daemon.children()) == len(READERS) - len({"jobs", "settings"}))
