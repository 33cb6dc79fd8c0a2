"""commwatch probe: exit codes, tables and JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commwatch.config.settings import Config, Duration, Paths, Probe, Probes, Rate, Simulation
from commwatch.errors import CommwatchError
from commwatch.probes.by_hand import cycles
from commwatch.probes.by_hand.cycles import progress_of
from commwatch.probes.cycle.lock import LOCK_FILE, ProbeLock
from commwatch.probes.gate.hold import HoldFile
from commwatch.state.maintenance import Maintenance, MaintenanceFile
from support.command_line import run_command
from support.quick_ranks import measure_quickly, read_driver_here
from support.waiting import until


def run(config: Config, *arguments: str) -> int:
    return run_command(config, "probe", *arguments)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A simulated node with two GPUs, its own state, and no faults; its driver is read in this process."""
    read_driver_here(monkeypatch)
    return Config(
        paths=Paths(state=str(tmp_path / "state")),
        simulation=Simulation(preset="a10x2", faults=str(tmp_path / "faults.yaml")),
    )


@pytest.fixture(autouse=True)
def faults(tmp_path: Path) -> Path:
    file = tmp_path / "faults.yaml"
    file.write_text("")
    return file


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks without processes: these tests are of what is made of their times."""
    measure_quickly(monkeypatch)


def with_probe(node: Config, definition: Probe, preset: str = "a10x2", name: str = "ring") -> Config:
    simulation = Simulation(preset=preset, faults=node.simulation.faults)
    return Config(paths=node.paths, simulation=simulation, probes=Probes(definitions={name: definition}))


SLOW_GPU = "- {fault: slow_gpu, gpu: 2, bandwidth: 0.5}\n"


def test_a_good_probe_prints_a_table(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe the table is plain, the phases are lines on standard error, and the exit code is 0."""
    assert run(with_probe(node, Probe(expected_bandwidth=Rate(10e9)))) == 0

    out, err = capsys.readouterr()
    assert out.startswith("Simulated node a10x2: none of this is real.")
    assert "\x1b" not in out
    header, units, latency, bandwidth = (line.split() for line in out.splitlines()[-4:])
    assert header == ["probe", "size", "time", "algbw", "busbw", "expected", "used", "verdict"]
    assert units == ["GB/s"] * 3
    assert latency[:5] == ["ring:", "all_reduce", "×2", "8", "B"]
    assert latency[6:] == ["µs", "-", "-", "-", "-", "not", "judged"]
    assert bandwidth[:5] == ["ring:", "all_reduce", "×2", "64", "MiB"]
    assert bandwidth[-5:-3] == ["10.0", "configured"]
    assert bandwidth[-1] == "good"
    assert "ring: done after" in err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_probe_takes_one_line(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its end; phases and steps are a live line on a terminal, and nothing in a pipe. A skipped one says so."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with progress_of("pairs", 35) as progress:
        progress("measure", 0, 1.0)
        progress("measure", 3, 3.1)
        progress("done", 0, 3.2)
    with progress_of("ring", 2):
        pass

    err = capsys.readouterr().err
    assert "pairs: done after 3.2 s\n" in err
    assert err.endswith("ring: not run\n")
    assert is_terminal or err.count("\n") == 2


def test_every_gpu_and_direction_of_host_copies_is_a_step_and_a_row(
    node: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step is told once, in order, while all ranks measure; a row has the GPU's index, not the rank."""
    told: list[tuple[str, int]] = []

    @contextmanager
    def tell(name: str, steps: int) -> Iterator[Callable[[str, int, float], None]]:
        yield lambda phase, step, seconds: told.append((phase, step))

    monkeypatch.setattr(cycles, "progress_of", tell)

    assert run(node, "host_copies") == 0

    assert [one for one in told if one[1]] == [("measure", step) for step in range(1, 5)]
    assert [phase for phase, step in told if not step] == ["start", "rendezvous", "setup", "measure", "done"]
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("host_copies")]
    assert [row.split("  ")[0] for row in rows] == [
        "host_copies: to GPU0", "host_copies: from GPU0", "host_copies: to GPU1", "host_copies: from GPU1",
    ]  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_json_holds_numbers_in_base_units(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints seconds, bytes and bytes per second, and the version of its own form."""
    assert run(with_probe(node, Probe(expected_bandwidth=Rate(10e9))), "ring", "--json") == 0

    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["simulated_node"]) == (1, "a10x2")
    (answer,) = document["probes"]
    assert (answer["probe"], answer["measure"], answer["backend"]) == ("ring", "all_reduce", "simulated")
    assert [gpu["gpu"] for gpu in answer["gpus"]] == ["0", "1"]
    assert answer["result"]["type"] == "measured"
    latency, bandwidth = answer["rows"]
    assert 1e-6 < latency["seconds"] < 1e-3
    assert (latency["bus_bandwidth_bytes_per_second"], latency["verdict"]) == (None, "not judged")
    assert (bandwidth["size_bytes"], bandwidth["members"]) == (64 * 2**20, [0, 1])
    # Over two ranks the factor from algorithm to bus bandwidth is 1.
    rate = bandwidth["size_bytes"] / bandwidth["seconds"]
    assert bandwidth["bus_bandwidth_bytes_per_second"] == pytest.approx(rate)
    assert bandwidth["expected"]["bytes_per_second"] == 10e9
    assert bandwidth["utilization_ratio"] == pytest.approx(rate / 10e9)


@pytest.mark.usefixtures("quick")
def test_a_slow_probe_is_exit_code_1(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Bandwidth below 60 % of a configured expectation is low; the operator's limit of latency needs no baseline."""
    definition = Probe(expected_bandwidth=Rate(100e9), latency_limit=Duration(1e-9))
    assert run(with_probe(node, definition)) == 1

    latency, bandwidth = capsys.readouterr().out.splitlines()[-2:]
    assert latency.endswith("slow")
    assert bandwidth.endswith("low")


@pytest.mark.usefixtures("quick")
def test_a_row_of_a_chosen_gpu_has_its_index(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """It is rank 0 there."""
    assert run(node, "host_copies", "--gpus", "1") == 0
    out = capsys.readouterr().out
    assert "from GPU1" in out
    assert "GPU0" not in out


@pytest.mark.usefixtures("quick")
def test_scaling_has_a_row_for_each_number_of_ranks_and_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it is configured or not, ``--scaling`` measures it and says whether adding GPUs helps."""
    config = Config(simulation=Simulation(preset="rtx3090x4"), probes=Probes(definitions={"other": Probe()}))

    assert run(config, "--scaling") == 0

    out = capsys.readouterr().out
    assert [line.split("  ")[0] for line in out.splitlines() if "all_reduce ×" in line] == [
        "scaling: all_reduce ×2", "scaling: all_reduce ×4",
    ]  # fmt: skip
    assert "scaling: 4 GPUs beat 2 " in out
    assert "other" not in out


@pytest.mark.usefixtures("quick")
def test_pairs_have_a_matrix_and_the_slow_part_is_named(
    node: Config, faults: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--pairs`` measures every ordered pair, configured or not; a suspect is exit code 1, and stands in the JSON,
    whose matrix has the form that ``heatmap`` reads."""
    config = with_probe(node, Probe(), "rtx3090x4", "other")
    faults.write_text(SLOW_GPU)

    assert run(config, "--pairs") == 1

    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("pairs:")]
    assert [row.split("  ")[0] for row in rows] == ["pairs: median of 12", "pairs: median of 12", "pairs: slowest"]
    assert rows[-1].endswith(" low")
    assert max(map(len, rows)) <= 80
    assert "other" not in out.split("Bandwidth, one way")[0]
    assert "A  GPU2 (" in out
    assert "Measure again before you act" in " ".join(out.split())

    assert run(config, "--pairs", "--json") == 1

    (answer,) = json.loads(capsys.readouterr().out)["probes"]
    assert (answer["pairs"]["format"], answer["pairs"]["simulated_node"]) == ("commwatch-pairs/1", "rtx3090x4")
    assert {(cell["source"], cell["destination"]) for cell in answer["pairs"]["cells"]} == {
        (source, target) for source in range(4) for target in range(4) if source != target
    }
    assert (answer["pairs"]["suspects"][0]["element"], answer["verdict"]) == ("GPU2", "low")
    assert answer["rows"] == []


@pytest.mark.usefixtures("quick")
def test_healthy_pairs_have_no_suspect(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, also where few pairs are compared."""
    assert run(node, "--pairs") == 0

    assert "A  " not in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_slow_pairs_are_told_in_words(node: Config, faults: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those below 60 % of a configured value, the slowest first, and the verdict is low."""
    faults.write_text("- {fault: slow_pair, gpu: 0, peer: 1, bandwidth: 0.4}\n")
    definition = Probe(measure="pairs", expected_bandwidth=Rate(12e9))

    assert run(with_probe(node, definition, "rtx3090x4", "pairs")) == 1

    words = " ".join(capsys.readouterr().out.split())
    told = words.partition("of what the path should carry: ")[2]
    assert {told[:12], told.partition("; ")[2][:12]} == {"GPU0 to GPU1", "GPU1 to GPU0"}
    assert told.count("% of 12 GB/s") == 2


def test_a_failure_is_exit_code_1_and_named(node: Config, faults: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reason, rank, GPU and phase stand below the table."""
    faults.write_text("- fault: failing_probe\n  reason: nccl_error\n")

    assert run(node, "all_reduce") == 1

    out = capsys.readouterr().out
    assert any(line.startswith("all_reduce ×2 ") and line.endswith("failed") for line in out.splitlines())
    assert re.search(r"all_reduce: rank 0 \(GPU0\) in phase \w+: nccl_error: ", out)


def test_a_busy_node_is_exit_code_3(node: Config, faults: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job on a GPU stops a probe by hand too."""
    faults.write_text("- fault: job\n")

    assert run(node, "all_reduce") == 3

    assert "all_reduce: gpu_busy: GPU 0000:" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_probes_without_a_place_on_the_node_do_not_count(node: Config) -> None:
    """One GPU has nobody to talk to: its copies decide, but a collective that is asked for does too."""
    one = Config(paths=node.paths, simulation=Simulation(preset="h200x1"), probes=Probes(definitions={
        "ring": Probe(), "copies": Probe(measure="host_copies")}))  # fmt: skip

    assert run(one) == 0
    assert run(one, "ring", "copies") == 3
    assert run(with_probe(one, Probe(), "h200x1")) == 3, "nothing was measured"


def test_what_several_probes_share_is_said_once(node: Config, faults: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the names of all of them, and the progress says how many are to come."""
    assert run(node, "all_reduce", "broadcast", "--gpus", "1") == 3
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("single_gpu") == 1
    assert "all_reduce, broadcast: single_gpu: " in out

    assert run(node, "all_reduce", "broadcast") == 0
    err = capsys.readouterr().err
    assert "all_reduce (1 of 2): done after" in err
    assert "broadcast (2 of 2): done after" in err


def test_a_pause_a_hold_and_another_cycle_are_exit_code_3(
    node: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the daemon is paused or the node is held for a job nothing is probed by hand either; two probes at once
    would measure each other."""
    state = tmp_path / "state" / "simulated-a10x2"
    state.mkdir(parents=True)
    lock, now = ProbeLock(state / LOCK_FILE), time.time()
    assert lock.acquire()
    assert run(node, "all_reduce") == 3
    lock.release()
    assert "all_reduce: probe_running: " in capsys.readouterr().out

    HoldFile(state).hold(3600.0, now)
    assert run(node, "all_reduce") == 3
    assert "all_reduce: yielded: " in capsys.readouterr().out

    MaintenanceFile(state).write(Maintenance("driver-upgrade", until=now + 600, since=now))
    assert run(node, "all_reduce") == 3
    assert "maintenance: the daemon is paused: driver-upgrade" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing",), "there are all_reduce, pairs"),
        (("all_reduce", "--gpus", "0,x"), "expected indexes with commas between"),
        (("all_reduce", "--gpus", "0,0"), "names a GPU twice"),
        (("all_reduce", "--gpus", "0,5"), "there is no GPU 5; there are: 0, 1"),
    ],
)
def test_what_is_not_there_is_a_usage_error(node: Config, arguments: tuple[str, ...], message: str) -> None:
    """Each with what would be right, and nothing measured."""
    with pytest.raises(CommwatchError, match=message) as raised:
        run(node, *arguments)

    assert raised.value.exit_code == 2


def test_a_gpu_of_the_configuration_that_is_lost_is_a_skip(node: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are not measured in its place."""
    assert run(with_probe(node, Probe(gpus=(0, 7)))) == 3

    assert "gpu_unknown: the probe names GPU 7, which the driver does not have" in capsys.readouterr().out


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_job_of_slurm_can_be_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inside a job of one's own the scheduler's word can be set aside."""
    for pid, name in ((1, "systemd"), (2, "slurmd")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text(name)
    (tmp_path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7").mkdir(parents=True)
    paths = Paths(procfs=str(tmp_path / "proc"), sysfs=str(tmp_path / "sys"), state=str(tmp_path))
    gloo = Config(paths=paths, probes=Probes(definitions={"host": Probe(backend="gloo")}, start_deadline=Duration(0)))
    assert run(gloo) == 3
    assert "scheduler_busy: " in capsys.readouterr().out
    assert run(gloo, "--ignore-scheduler") == 1
    assert " in phase start: start: " in capsys.readouterr().out


def test_an_interrupt_leaves_no_rank(faults: Path, tmp_path: Path) -> None:
    """Control-C ends the ranks in order before the command returns, in one line; a termination goes the same way."""
    faults.write_text("- {fault: probe_hang, phase: setup}\n")
    command = [sys.executable, "-m", "commwatch", "probe", "all_reduce", "--simulate", "a10x2", "--simulate.faults",
               str(faults), "--path.state", str(tmp_path)]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": ":".join(path for path in sys.path if path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stderr is not None
        until(lambda: list(tmp_path.glob("commwatch-probe-*")))
        running.send_signal(signal.SIGINT)
        *_, last = running.stderr.read().splitlines()

    assert running.returncode == 130
    assert last == "commwatch: interrupted; no rank is left"
    assert list(tmp_path.glob("commwatch-probe-*")) == []
