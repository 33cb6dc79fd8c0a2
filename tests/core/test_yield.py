"""`commwatch yield`: a prologue's way to a node without probes, with a daemon and without."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commwatch.__main__ import main
from commwatch.config.settings import Config, Paths, Simulation
from commwatch.errors import StateError
from commwatch.probes.by_hand.node import node_by_hand
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.lock import LOCK_FILE, ProbeLock, held_elsewhere
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.plan import CycleResult, Yielded
from commwatch.probes.workload import plan_cycle
from commwatch.state.directory import state_path
from support.waiting import PATIENCE_SECONDS

Output = pytest.CaptureFixture[str]


def call(state: Path, *arguments: str) -> int:
    return main(["yield", "--path.state", str(state), *arguments])


def answer(capsys: Output) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def held(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps the probe lock, as a rank does that is stuck."""
    descriptor = os.open(tmp_path / LOCK_FILE, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with subprocess.Popen(["/bin/sleep", "600"], pass_fds=[descriptor]) as process:
        os.close(descriptor)
        yield process
        process.kill()


def test_who_keeps_the_state_directory_locked_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's user may lock it for good, and a prologue runs as root."""
    monkeypatch.setattr("commwatch.probes.gate.hold._LOCK_SECONDS", 0.05)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="another process keeps it locked"):
            HoldFile(tmp_path).hold(60, 1e9)
    finally:
        os.close(descriptor)


def test_a_node_without_probes_is_released_at_once(tmp_path: Path, capsys: Output) -> None:
    """It is held from then on, and the answer says for how long."""
    before = time.time()

    assert call(tmp_path, "--hold", "10m") == 0

    assert capsys.readouterr().out == "no probe holds a GPU; none starts for 10 min\n"
    hold = HoldFile(tmp_path).read()
    assert hold is not None
    assert before + 600 <= hold.until <= time.time() + 600


def test_json(tmp_path: Path, capsys: Output) -> None:
    """For a prologue that wants to log it."""
    assert call(tmp_path, "--hold", "1m", "--json") == 0

    said = answer(capsys)
    assert said.keys() == {"released", "waited_seconds", "until", "since", "held_by"}
    assert (said["released"], said["held_by"]) == (True, [])
    assert said["until"] - said["since"] == pytest.approx(60)


def test_what_still_holds_the_gpus_is_named(tmp_path: Path, capsys: Output, held: subprocess.Popen[bytes]) -> None:
    """After the time to wait, with the processes that a person can look at."""
    started = time.monotonic()
    assert call(tmp_path, "--wait", "200ms", "--hold", "10m") == 1
    assert time.monotonic() - started >= 0.2

    said = capsys.readouterr().out
    assert f"process {held.pid}: /bin/sleep 600" in said
    assert "look as root" not in said
    assert "none starts for 10 min" in said

    assert call(tmp_path, "--wait", "0s", "--json") == 1
    assert answer(capsys)["held_by"] == [{"pid": held.pid, "command": "/bin/sleep 600"}]


def test_processes_that_do_not_show_are_said_to_be_there(
    tmp_path: Path, capsys: Output, held: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may not look at the open files of another one."""
    monkeypatch.setattr("commwatch.commands.yield_._holders", lambda *_: iter(()))

    assert call(tmp_path, "--wait", "0s") == 1

    assert held.poll() is None
    assert capsys.readouterr().out.endswith("  its processes do not show; look as root\n")


def test_a_process_that_only_has_the_file_open_is_not_named(
    tmp_path: Path, capsys: Output, held: subprocess.Popen[bytes]
) -> None:
    """Such as another command that looks at the lock."""
    with (
        (tmp_path / LOCK_FILE).open("rb") as stream,
        subprocess.Popen(["/bin/sleep", "600"], pass_fds=[stream.fileno()]) as onlooker,
    ):
        assert call(tmp_path, "--wait", "0s", "--json") == 1
        onlooker.kill()

    assert [holder["pid"] for holder in answer(capsys)["held_by"]] == [held.pid]


@pytest.mark.parametrize(
    "arguments", [("--hold", "10"), ("--hold", "25h"), ("--wait", "soon"), ("--wait", "11m"), ("--hold", "-1s")]
)
def test_wrong_use(tmp_path: Path, capsys: Output, arguments: tuple[str, str]) -> None:
    """Exit code 2, and nothing is held."""
    try:
        code = call(tmp_path, *arguments)
    except SystemExit as exit_:  # argparse
        code = exit_.code if isinstance(exit_.code, int) else 1

    assert code == 2
    assert capsys.readouterr().err
    assert HoldFile(tmp_path).read() is None


def test_a_state_directory_that_is_not_there(tmp_path: Path, capsys: Output) -> None:
    """Wrong use: nobody would see the hold."""
    assert call(tmp_path / "none") == 2
    assert "--path.state" in capsys.readouterr().err


def test_a_state_directory_that_cannot_be_used_is_one_line(tmp_path: Path, capsys: Output) -> None:
    """Exit code 2 and not 1, which would say that a probe holds a GPU."""
    (tmp_path / "file").write_text("")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / LOCK_FILE).symlink_to(tmp_path / "file")  # what is not ours is not opened

    for state, arguments in (("file", ()), ("file", ("--end",)), ("state", ())):
        assert call(tmp_path / state, *arguments) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert str(tmp_path / state) in said.err


def test_a_hold_that_has_run_out_releases_the_node(tmp_path: Path, capsys: Output) -> None:
    """By itself: a later call of no time adds none, and says nothing of one."""
    HoldFile(tmp_path).hold(0.001, time.time() - 1)

    assert call(tmp_path, "--hold", "0s") == 0
    assert capsys.readouterr().out == "no probe holds a GPU\n"
    assert call(tmp_path, "--end") == 0
    assert capsys.readouterr().out == "nothing was held\n"


def test_the_end_of_a_hold(tmp_path: Path, capsys: Output) -> None:
    """Probes may start again; without a hold it is said that there was none."""
    call(tmp_path, "--hold", "10m")
    capsys.readouterr()

    assert call(tmp_path, "--end") == 0
    assert HoldFile(tmp_path).read() is None
    assert call(tmp_path, "--end", "--json") == 0
    assert capsys.readouterr().out == 'the hold has ended\n{\n  "was_held": false\n}\n'


# --- with a cycle under way ---


async def _cycle(config: Config, arguments: tuple[str, ...]) -> tuple[CycleResult, int, bool]:
    """Start a cycle by hand whose ranks hang, then the command beside it.

    Returns the outcome of the cycle, the exit code of the command, and whether the lock was free when it returned.
    """
    state = state_path(config)
    async with node_by_hand(config) as node:
        probe = config.probes.definitions["all_reduce"]
        plan = plan_cycle(
            "all_reduce", probe, config.probes, backend="simulated", devices=tuple(gpu.uuid for gpu in node.gpus),
            simulation=node.simulation,
        )  # fmt: skip
        measuring = asyncio.Event()

        def progress(phase: str, step: int, seconds: float) -> None:
            if phase == "measure":
                measuring.set()

        launcher = Launcher(procfs=Path("/proc"), lock=ProbeLock(state / LOCK_FILE))
        cycle = asyncio.create_task(launcher.run(plan, node.watch(plan), progress))
        await asyncio.wait_for(measuring.wait(), PATIENCE_SECONDS)
        assert held_elsewhere(state / LOCK_FILE)
        command = ["yield", "--path.state", config.paths.state, "--simulate", config.simulation.preset, *arguments]
        code = await asyncio.to_thread(main, command)
        free = not held_elsewhere(state / LOCK_FILE)
        return await cycle, code, free


@pytest.mark.parametrize(("how", "hold"), [("waiting", "10m"), ("blocked", "0s")])
def test_a_cycle_under_way_gives_way(tmp_path: Path, how: str, hold: str) -> None:
    """No rank is left when it returns, also one that hears nothing and must be killed; without any daemon."""
    faults = tmp_path / "faults.yaml"
    faults.write_text(f"- {{fault: probe_hang, phase: measure, how: {how}, at: 0s}}\n")
    config = Config(paths=Paths(state=str(tmp_path)), simulation=Simulation(preset="a10x2", faults=str(faults)))
    state_path(config).mkdir()

    arguments = ("--wait", f"{PATIENCE_SECONDS:g}s", "--hold", hold)
    result, code, free = asyncio.run(asyncio.wait_for(_cycle(config, arguments), 2 * PATIENCE_SECONDS))

    assert isinstance(result, Yielded)
    assert result.reason == "requested"
    assert (code, free) == (0, True)
