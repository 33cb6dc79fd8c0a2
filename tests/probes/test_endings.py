"""How ranks are ended: asked, which makes them abort; then SIGTERM, then SIGKILL; never while one is in the kernel."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commwatch.probes.cycle import process
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.lock import ProbeLock, held_elsewhere
from commwatch.probes.plan import CycleResult, Failed, Measured, Yielded
from commwatch.probes.rank_plan import Phase
from probes.cycles import (
    LATENCY_BYTES,
    alive,
    all_quiet,
    cycle_plan,
    deadlines,
    failure,
    hurry,
    run,
    scripted,
)
from support.waiting import until

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ("start", "start: "),
        ("rendezvous", "rendezvous_timeout: "),
        ("setup", "setup_timeout: "),
        ("measure", "measure_timeout: not through with all_reduce of 8 bytes (step 1 of 2) within 77 s"),
    ],
)
def test_a_rank_deaf_to_everything_is_killed_in_every_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase, said: str
) -> None:
    """Each phase has its own deadline; a rank that answers neither its closed input nor SIGTERM is killed."""
    hurry(monkeypatch, rank=1, phase=phase)

    result = failure(
        scripted(tmp_path, what="deaf", phase=phase, rank=1), cycle_plan(deadlines=deadlines(**{phase: 77.0}))
    )

    assert (result.phase, result.rank, result.device) == (phase, 1, "GPU-b")
    assert result.detail.startswith(f"rank 1 (GPU-b) in phase {phase}: {said}")


class Signals:
    """The signals that were sent to groups whose leader still ran, with their times; all are passed on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[int, int, float]] = []
        self._send = os.killpg
        monkeypatch.setattr(os, "killpg", self)

    def __call__(self, group: int, number: int) -> None:
        if number and alive(group):
            self.sent.append((group, number, time.monotonic()))
        self._send(group, number)

    def to(self, pid: int) -> dict[int, float]:
        """Time by signal, in the order in which they were sent."""
        return {number: at for group, number, at in self.sent if group == pid}


async def reach(phase: str, launcher: Launcher) -> asyncio.Task[CycleResult]:
    """A cycle that has come to a phase."""
    reached = asyncio.Event()
    cycle = asyncio.create_task(
        launcher.run(cycle_plan(), all_quiet, lambda now, *_: reached.set() if now == phase else None)
    )
    await reached.wait()
    return cycle


async def give_way_in(
    phase: str, launcher: Launcher, held: Callable[[], bool] = lambda: True
) -> tuple[float, tuple[int, ...], CycleResult]:
    """Cancel a cycle in a phase, once a rank is held; when that was, which ranks it had, and what became of it."""
    cycle = await reach(phase, launcher)
    while not held():
        await asyncio.sleep(0.01)
    started, pids = time.monotonic(), launcher.pids
    assert await launcher.cancel("requested", "a job asked for the node")
    return started, pids, await cycle


@pytest.mark.parametrize(("what", "numbers"), [("hold", [signal.SIGTERM]), ("deaf", [signal.SIGTERM, signal.SIGKILL])])
def test_signals_come_in_order_and_not_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, numbers: list[int]
) -> None:
    """A rank that does not hear that it is asked gets SIGTERM, and SIGKILL only where that does not help either."""
    signals = Signals(monkeypatch)
    held = tmp_path / "held"
    launcher = scripted(tmp_path, what=what, phase="setup", held=str(held))

    started, pids, _ = asyncio.run(give_way_in("setup", launcher, held.exists))

    times = signals.to(pids[0])
    assert list(times) == numbers
    assert times[signal.SIGTERM] - started >= process.ASK_SECONDS
    assert times.get(signal.SIGKILL, started + 60) - times[signal.SIGTERM] >= process.TERM_SECONDS


def test_a_deadline_makes_each_rank_abort_before_any_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every phase after the start, also the rank that only waits for the other one; nobody needs a signal."""
    monkeypatch.setattr(process, "ASK_SECONDS", 20.0)  # however busy this machine is
    signals = Signals(monkeypatch)
    phases = ("rendezvous", "setup", "measure")

    async def one(phase: str) -> CycleResult:
        (tmp_path / phase).mkdir()
        launcher = scripted(tmp_path, what="hang", phase=phase, aborted=str(tmp_path / phase))
        return await launcher.run(cycle_plan(deadlines=deadlines(**{phase: 0.3})), all_quiet)

    async def all_phases() -> list[CycleResult]:
        return await asyncio.gather(*(one(phase) for phase in phases))

    results = [result for result in asyncio.run(all_phases()) if isinstance(result, Failed)]

    assert [result.reason for result in results] == [f"{phase}_timeout" for phase in phases]
    assert [sorted(file.name for file in (tmp_path / phase).iterdir()) for phase in phases] == [["0", "1"]] * 3
    assert signals.sent == []


def test_an_abort_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank leaves without it, before it would get a signal."""
    monkeypatch.setattr(process, "ASK_SECONDS", 20.0)
    signals = Signals(monkeypatch)

    result = failure(scripted(tmp_path, what="hang", phase="setup abort"), cycle_plan(deadlines=deadlines(setup=0.3)))

    assert result.reason == "setup_timeout"
    assert signals.sent == []


def test_a_signal_waits_for_the_return_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that comes back from state D in time is ended in order then, and is not stuck."""
    signals = Signals(monkeypatch)
    back_at = float("inf")
    monkeypatch.setattr(process, "uninterruptible", lambda *_: time.monotonic() < back_at)
    launcher = scripted(tmp_path, what="hold", phase="setup")

    def note(phase: str, *_: object) -> None:
        nonlocal back_at
        if phase == "setup":
            back_at = time.monotonic() + 1.5

    async def cycle() -> CycleResult:
        return await launcher.run(cycle_plan(deadlines=deadlines(setup=0.3)), all_quiet, note)

    result = asyncio.run(cycle())

    assert isinstance(result, Failed)
    assert result.reason == "setup_timeout"
    assert signals.sent
    assert min(at for _, _, at in signals.sent) >= back_at
    assert launcher.stuck == {}


def test_a_failing_rank_aborts_its_group(tmp_path: Path) -> None:
    """No kernel of ours is in flight when a rank that has failed ends."""
    file = tmp_path / "aborted"

    failure(
        scripted(tmp_path, wrong_bytes=LATENCY_BYTES, what="environment", phase="abort", file=str(file)), cycle_plan()
    )

    assert file.exists()


def test_a_hang_after_the_result_does_not_lose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that cannot be closed is ended, and what was measured stands."""
    monkeypatch.setattr(process, "EXIT_SECONDS", 0.3)

    result, _ = run(scripted(tmp_path, what="hang", phase="close"), cycle_plan())

    assert isinstance(result, Measured)
    assert result.occupied_seconds > 0


def test_what_a_rank_left_in_its_group_is_killed(tmp_path: Path) -> None:
    """A child of a rank does not outlive it."""
    file = tmp_path / "offspring"

    run(scripted(tmp_path, what="offspring", phase="rendezvous", file=str(file)), cycle_plan())

    assert not alive(int(file.read_text()))


@pytest.mark.parametrize("phase", ["start", "measure"])
@pytest.mark.parametrize("what", ["hang", "hold"])
def test_a_cycle_gives_way(tmp_path: Path, what: str, phase: str) -> None:
    """A cancelled cycle has yielded, and its ranks are gone even when their interpreter is held."""
    _, pids, result = asyncio.run(give_way_in(phase, scripted(tmp_path, what=what, phase=phase)))

    assert isinstance(result, Yielded)
    assert (result.reason, result.detail) == ("requested", "a job asked for the node")
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_a_cycle_that_is_cancelled_while_its_ranks_are_made_ends_them(tmp_path: Path) -> None:
    """In the moment before anybody listens to them; nothing of the event loop breaks over their closed pipes."""
    launcher = scripted(tmp_path, what="hang", phase="start")
    troubles: list[dict[str, Any]] = []

    async def cancelled() -> CycleResult:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        cycle = asyncio.create_task(launcher.run(cycle_plan(), all_quiet))
        while not launcher.pids:
            await asyncio.sleep(0)
        assert await launcher.cancel("requested", "a job asked for the node")
        return await cycle

    result = asyncio.run(cancelled())

    assert isinstance(result, Yielded)
    assert troubles == []


def test_a_cancelled_task_leaves_no_rank(tmp_path: Path) -> None:
    """The daemon's shutdown cancels the task of the cycle; its ranks end with it."""
    launcher = scripted(tmp_path, what="hang", phase="rendezvous")

    async def shut_down() -> tuple[int, ...]:
        cycle = await reach("rendezvous", launcher)
        pids = launcher.pids
        cycle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cycle
        return pids

    pids = asyncio.run(shut_down())

    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    assert not launcher.running


def test_a_rank_in_uninterruptible_sleep_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank in state D is left alone and reported with its GPU; it is ended when it comes back, and holds the lock."""
    monkeypatch.setattr(process, "KILL_SECONDS", 0.2)
    procfs, lock_file = tmp_path / "proc", tmp_path / "lock"
    launcher = scripted(tmp_path, procfs, ProbeLock(lock_file), what="hold", phase="measure", rank=1)
    pids: tuple[int, ...] = ()
    state = Path()

    def sleep_in_the_kernel(phase: str, *_: object) -> None:
        nonlocal pids, state
        pids = launcher.pids
        if phase == "measure":
            state = procfs / str(pids[1]) / "task" / "4711" / "stat"
            state.parent.mkdir(parents=True, exist_ok=True)
            state.write_text("4711 (pt) nccl) D " + "0 " * 20)

    async def get_stuck() -> CycleResult:
        plan = cycle_plan(deadlines=deadlines(measure=0.3))
        return await launcher.run(plan, all_quiet, sleep_in_the_kernel)

    try:
        result = asyncio.run(get_stuck())

        assert isinstance(result, Failed)
        assert (result.reason, result.rank, result.device, result.phase) == ("stuck", 1, "GPU-b", "measure")
        assert str(pids[1]) in result.detail
        assert launcher.stuck == {pids[1]: "GPU-b"}
        assert held_elsewhere(lock_file)
        assert not alive(pids[0])
        assert alive(pids[1])

        state.write_text("4711 (pt) nccl) S " + "0 " * 20)
        until(lambda: not launcher.stuck)
        assert not alive(pids[1])
        assert not held_elsewhere(lock_file)
    finally:
        if alive(pids[1]):
            os.kill(pids[1], signal.SIGKILL)
