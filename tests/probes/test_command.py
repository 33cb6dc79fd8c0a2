"""commwatch probe: exit codes, tables and JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commwatch.commands import probe
from commwatch.config import Config, Duration, Paths, Probe, Probes, Rate, Simulation
from commwatch.errors import CommwatchError
from commwatch.maintenance import Maintenance, MaintenanceFile


def run(config: Config, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    probe.add_parser(parser.add_subparsers(), [])
    args = parser.parse_args(["probe", *arguments])
    return int(args.run(args, config))


@pytest.fixture
def node(tmp_path: Path) -> Config:
    """A simulated node with two GPUs, its own state, and no faults."""
    return Config(
        paths=Paths(state=str(tmp_path / "state")),
        simulation=Simulation(preset="a10x2", faults=str(tmp_path / "faults.yaml")),
    )


@pytest.fixture(autouse=True)
def faults(tmp_path: Path) -> Path:
    file = tmp_path / "faults.yaml"
    file.write_text("")
    return file


def with_probe(node: Config, definition: Probe) -> Config:
    return Config(paths=node.paths, simulation=node.simulation, probes=Probes(definitions={"ring": definition}))


def test_a_good_probe_prints_a_table(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe the table is plain, the phases are lines on standard error, and the exit code is 0."""
    assert run(node) == 0

    out, err = capsys.readouterr()
    header, row = out.splitlines()
    assert header.split()[:4] == ["probe", "backend", "ranks", "latency"]
    assert row.split()[:3] == ["all_reduce", "simulated", "2"]
    assert row.endswith("good")
    assert "all_reduce: measure after" in err


def test_a_terminal_gets_a_live_line(
    node: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal the phases do not fill the screen line by line."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    assert run(node) == 0

    assert "measure after" not in capsys.readouterr().err


def test_json_holds_numbers_in_base_units(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints seconds, bytes and bytes per second."""
    assert run(with_probe(node, Probe(expected_bandwidth=Rate(10e9))), "ring", "--json") == 0

    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["probe"] == "ring"
    assert answer["result"]["type"] == "measured"
    assert 1e-6 < answer["result"]["latency_seconds"] < 1e-3
    assert answer["expected"]["bytes_per_second"] == 10e9
    assert answer["bus_bandwidth_bytes_per_second"] == pytest.approx(
        answer["bandwidth_bytes"] / answer["result"]["bandwidth_seconds"]
    )


def test_low_bandwidth_is_exit_code_1(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Below 60 % of a configured expectation the verdict is low."""
    assert run(with_probe(node, Probe(expected_bandwidth=Rate(100e9)))) == 1

    assert capsys.readouterr().out.rstrip().endswith("low")


def test_a_failure_is_exit_code_1_and_named(node: Config, faults: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What failed stands below the table."""
    faults.write_text("- fault: failing_probe\n  reason: nccl_error\n")

    assert run(node) == 1

    assert "all_reduce: nccl_error: rank 0" in capsys.readouterr().out


def test_a_busy_node_is_exit_code_3(node: Config, faults: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job on a GPU stops a probe by hand too."""
    faults.write_text("- fault: job\n")

    assert run(node) == 3

    assert "all_reduce: gpu_busy: GPU 0000:" in capsys.readouterr().out


def test_maintenance_is_exit_code_3(node: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While the daemon is paused nothing is probed by hand either."""
    state = tmp_path / "state" / "simulated-a10x2"
    state.mkdir(parents=True)
    now = time.time()
    MaintenanceFile(state).write(Maintenance("driver-upgrade", until=now + 600, since=now))

    assert run(node) == 3

    assert "maintenance: the daemon is paused: driver-upgrade" in capsys.readouterr().out


def test_an_unknown_name_is_a_usage_error(node: Config) -> None:
    """The message names what is configured, and the exit code is 2."""
    with pytest.raises(CommwatchError, match="there are all_reduce") as raised:
        run(node, "missing")

    assert raised.value.exit_code == 2


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_job_of_slurm_can_be_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inside a job of one's own the scheduler's word can be set aside."""
    for pid, name in ((1, "systemd"), (2, "slurmd")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text(name)
    (tmp_path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7").mkdir(parents=True)
    paths = Paths(procfs=str(tmp_path / "proc"), sysfs=str(tmp_path / "sys"), state=str(tmp_path))
    gloo = Config(paths=paths, probes=Probes(definitions={"host": Probe(backend="gloo")}, setup_deadline=Duration(0)))
    assert run(gloo) == 3
    assert "scheduler_busy: 1 Slurm jobs" in capsys.readouterr().out
    assert run(gloo, "--ignore-scheduler") == 1
    assert "host: start: rank" in capsys.readouterr().out


def test_an_interrupt_leaves_no_rank(node: Config, faults: Path, tmp_path: Path) -> None:
    """Control-C ends the ranks before the command returns."""
    faults.write_text("- fault: driver_hang\n  gpu: 0\n")
    program = (
        "import argparse, tempfile; from commwatch.commands import probe; from commwatch.config import *\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        "parser = argparse.ArgumentParser(); probe.add_parser(parser.add_subparsers(), [])\n"
        f"config = Config(simulation=Simulation(preset='a10x2', faults={str(faults)!r}),"
        f" paths=Paths(state={str(tmp_path)!r}))\n"
        "probe.run(parser.parse_args(['probe']), config)\n"
    )
    environment = os.environ | {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, env=environment
    ) as command:
        assert command.stderr is not None
        assert any("setup" in line for line in command.stderr)
        command.send_signal(signal.SIGINT)
        rest = command.stderr.read()

    assert "KeyboardInterrupt" in rest
    assert list(tmp_path.glob("commwatch-probe-*")) == []
