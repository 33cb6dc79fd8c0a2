"""SIGKILL of any process of a cycle, at any phase: the cycle says so, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from commwatch.probes.cycle import guard, launch
from commwatch.probes.cycle.folder import PrivateFolder
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.lock import held_elsewhere
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured
from probes.cycles import alive, all_quiet, cycle_plan, left_in, scripted, wait_until_gone
from support.waiting import until

PHASES = ("start", "rendezvous", "setup", "measure")


pytestmark = pytest.mark.usefixtures("nothing_left")


async def kill_in(phase: str, launcher: Launcher, plan: CyclePlan) -> CycleResult:
    """Run a cycle, and kill rank 1 when all ranks have reached a phase."""

    def note(now: str, step: int, _: float) -> None:
        if (now, step) == (phase, 0):
            os.kill(launcher.pids[1], signal.SIGKILL)

    return await launcher.run(plan, all_quiet, note)


def test_a_rank_that_is_killed_is_named_in_every_phase(tmp_path: Path) -> None:
    """The kernel kills a rank for memory, say: the failure names rank, GPU, phase and signal."""

    async def all_phases() -> list[CycleResult]:
        launchers = [(phase, scripted(tmp_path, what="hang", phase=phase, rank=None)) for phase in PHASES]
        return await asyncio.gather(*(kill_in(phase, launcher, cycle_plan()) for phase, launcher in launchers))

    results = [result for result in asyncio.run(all_phases()) if isinstance(result, Failed)]

    assert [(result.reason, result.rank, result.device) for result in results] == [("crashed", 1, "GPU-b")] * 4
    assert [result.phase for result in results] == list(PHASES)
    assert all("ended by signal 9" in result.detail for result in results)


def test_a_rank_that_is_killed_after_its_result_costs_nothing(tmp_path: Path) -> None:
    """What all ranks have measured by then stands."""
    launcher = scripted(tmp_path, what="hang", phase="close", rank=1)

    assert isinstance(asyncio.run(kill_in("done", launcher, cycle_plan())), Measured)


def test_guards_that_are_killed_do_no_harm_in_any_phase(tmp_path: Path) -> None:
    """The cycle goes on without them; before the rendezvous there may be none yet."""

    async def one(phase: str) -> tuple[CycleResult, int]:
        folder = tmp_path / phase
        folder.mkdir()
        launcher = scripted(folder)
        killed: set[int] = set()

        def note(now: str, *_: object) -> None:
            if now == phase and not killed:
                killed.update(set(left_in(folder)) - set(launcher.pids))
                for guard in killed:
                    os.kill(guard, signal.SIGKILL)

        return await launcher.run(cycle_plan(), all_quiet, note), len(killed)

    async def all_phases() -> list[tuple[CycleResult, int]]:
        return await asyncio.gather(*(one(phase) for phase in PHASES[1:]))

    for result, killed in asyncio.run(all_phases()):
        assert isinstance(result, Measured)
        assert killed == 2


PARENT = """
import asyncio, os, signal, sys, time
from pathlib import Path
from commwatch.probes.cycle.lock import ProbeLock
from probes.cycles import all_quiet, cycle_plan, scripted
from support.waiting import until
temporary, what, phase = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
launcher = scripted(temporary, lock=ProbeLock(temporary / "lock"), what=what,
                    phase="close" if phase == "done" else phase)
def note(now, step, _):
    if (now, step) == (phase, 0):
        print(*launcher.pids, flush=True)
        if "slowly" in sys.argv:
            os.closerange(3, 1000)
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(launcher.run(cycle_plan(), all_quiet, note))
"""


ALL_PHASES = (*PHASES, "done")
"""With the time in which the ranks close their group."""


@contextmanager
def parent_of_ranks(temporary: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a cycle and prints the pids of its ranks in a phase; killed at the end at the latest.

    Args:
        temporary: folder of its cycle.
        arguments: what rank 0 does, and in which phase; ``slowly``: then it dies by itself, and hangs up before.
    """
    temporary.mkdir()
    environment = os.environ | {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    command = [sys.executable, "-c", PARENT, str(temporary), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        try:
            yield parent
        finally:
            parent.kill()


def wait_for_phase(parent: subprocess.Popen[str], phase: str) -> list[int]:
    """The ranks' process ids once they are in the phase."""
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    if phase == "start":
        time.sleep(0.5)  # the ranks' interpreters start meanwhile; without it they are killed at their very begin
    return pids


def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """In every phase, with a rank whose interpreter is held and that ignores SIGTERM: neither process nor folder nor
    lock is left."""
    folders = {phase: tmp_path / phase for phase in ALL_PHASES}
    with ExitStack() as parents:
        running = {
            phase: parents.enter_context(parent_of_ranks(folder, "deaf", phase)) for phase, folder in folders.items()
        }
        pids = {phase: wait_for_phase(parent, phase) for phase, parent in running.items()}
        held = [phase for phase in ALL_PHASES if alive(pids[phase][0]) and held_elsewhere(folders[phase] / "lock")]

    assert held == list(ALL_PHASES)
    for folder in folders.values():
        wait_until_gone(folder)
    assert not any(held_elsewhere(folder / "lock") for folder in folders.values())


def test_ranks_leave_at_once_when_their_parent_is_killed(tmp_path: Path) -> None:
    """A rank that can hears the end of its input, and needs no signal."""
    folder = tmp_path / "cycle"
    with parent_of_ranks(folder, "hang", "setup") as parent:
        wait_for_phase(parent, "setup")
        parent.kill()

        wait_until_gone(folder)


@pytest.mark.parametrize(("what", "phase"), [("hang", "setup"), ("noise", "done")])
def test_nothing_outlives_a_parent_that_dies_slowly(tmp_path: Path, what: str, phase: str) -> None:
    """The kernel closes the pipes of a process before it is gone: ranks that leave meanwhile leave nothing."""
    folder = tmp_path / "cycle"
    with parent_of_ranks(folder, what, phase, "slowly") as parent:
        wait_for_phase(parent, phase)

        wait_until_gone(folder)


def test_the_folder_is_made_when_its_guards_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no moment at which a parent that is killed leaves a folder that nobody removes."""
    launcher = scripted(tmp_path)
    processes: list[int] = []

    def look() -> None:
        """The kernel shows the environment of a process only a moment after it was started."""
        until(lambda: len(left_in(tmp_path)) >= 2)
        processes.append(len(left_in(tmp_path)))

    class Folder(PrivateFolder):
        def make(self) -> None:
            look()
            super().make()

        def remove(self) -> None:
            look()
            super().remove()

    monkeypatch.setattr(launch, "PrivateFolder", Folder)

    assert isinstance(asyncio.run(launcher.run(cycle_plan(), all_quiet)), Measured)
    # Ranks that start, and later the guards of those that have ended.
    assert len(processes) == 2
    assert min(processes) >= 2


def test_nothing_outlives_a_parent_that_is_killed_at_its_begin(tmp_path: Path) -> None:
    """Killed while the ranks' interpreters start, before they can hear or guard anything."""
    folder = tmp_path / "cycle"
    with parent_of_ranks(folder, "hang", "start") as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        parent.kill()

        wait_until_gone(folder)


def test_a_guard_sends_no_signal_into_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a thread of the rank is in state D the guard waits, however long the daemon is gone."""
    states = [True, True, True, False]
    sent: list[tuple[int, int, int]] = []
    monkeypatch.setattr(guard, "_TICK_SECONDS", 0.001)
    monkeypatch.setattr(guard, "uninterruptible", lambda *_: states.pop(0))
    monkeypatch.setattr(os, "killpg", lambda group, number: sent.append((group, number, len(states))))
    rank = os.getppid()

    guard.Guard(rank, parent=1).send(signal.SIGTERM)

    assert sent == [(rank, signal.SIGTERM, 0)]
