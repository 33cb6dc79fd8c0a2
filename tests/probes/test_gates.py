"""The node is looked at before every gate and all the time, and a cycle gives way to whoever comes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from commwatch.probes.cycle import process, rank
from commwatch.probes.cycle.lock import ProbeLock, held_elsewhere
from commwatch.probes.gate import watch
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.gate.watch import Halt, NodeWatch
from commwatch.probes.plan import CycleResult, Failed, Measured, Yielded
from probes.cycles import alive, all_quiet, cycle_plan, run, scripted, wait_until_gone
from support.waiting import PATIENCE_SECONDS, comes

GUEST = Halt("process_appeared", "process 4711 came to GPU-a")


pytestmark = pytest.mark.usefixtures("nothing_left")


class GuestAtGate:
    """A watch that sees somebody from the moment at which all ranks stand before a gate."""

    def __init__(self, diary: Path, steps_begun: int, halt: Halt = GUEST) -> None:
        self._diary = diary
        self._steps_begun = steps_begun
        self._halt = halt

    async def __call__(self, pids: frozenset[int]) -> Halt | None:
        return self._halt if pids and len(steps_in(self._diary)) >= self._steps_begun else None


def steps_in(diary: Path) -> set[int]:
    """Steps of which a call was made."""
    return {int(line.split()[1]) for line in diary.read_text().splitlines()} if diary.exists() else set()


@pytest.mark.parametrize("gate", [0, 1, 2])
def test_nothing_happens_behind_a_closed_gate(tmp_path: Path, gate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is busy before gate k makes the cycle yield, and no call of step k - 1 or later is made."""
    monkeypatch.setattr("commwatch.probes.gate.watch.CHECK_REUSE_SECONDS", 0.0)
    diary, set_up = tmp_path / "diary", tmp_path / "set_up"
    watch = GuestAtGate(diary, max(0, gate - 1))
    if gate == 1:  # the first look, before gate 0, must be a quiet one
        watch = GuestAtGate(set_up, 1)
    launcher = scripted(tmp_path, diary=str(diary), what="note_set_up", phase="setup", file=str(set_up))

    result, _ = run(launcher, cycle_plan(), watch)

    assert isinstance(result, Yielded)
    assert (result.reason, result.detail) == GUEST
    assert steps_in(diary) == set(range(gate - 1))
    assert set_up.exists() == (gate > 0)


def test_the_watch_is_told_which_processes_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None before the ranks start, and then all of them, so that only others count as guests."""
    monkeypatch.setattr("commwatch.probes.gate.watch.CHECK_REUSE_SECONDS", 0.0)
    launcher = scripted(tmp_path)
    seen: list[tuple[frozenset[int], frozenset[int]]] = []

    async def watch(pids: frozenset[int]) -> None:
        seen.append((pids, frozenset(launcher.pids)))

    result, _ = run(launcher, cycle_plan(), watch)

    assert isinstance(result, Measured)
    assert all(told == running for told, running in seen)
    assert [len(told) for told, _ in seen[:2]] == [0, 2]


def test_nothing_starts_on_a_node_that_was_asked_for_before_the_lock_was_held(tmp_path: Path) -> None:
    """``commwatch yield`` that finds the lock free, a moment before it is taken, is right that no probe will come."""
    lock_file, answers = tmp_path / "lock", []

    class Lock(ProbeLock):
        def acquire(self) -> bool:
            HoldFile(tmp_path).hold(600, time.time())
            answers.append(held_elsewhere(lock_file))
            return super().acquire()

    watch = NodeWatch(
        HoldFile(tmp_path), gpus=None, read_processes=lambda: asyncio.sleep(0), cgroups=None, procfs=tmp_path,
        now=time.time, monotonic=time.monotonic,
    )  # fmt: skip
    started = tmp_path / "started"
    launcher = scripted(tmp_path, lock=Lock(lock_file), what="environment", phase="start", file=str(started))

    result, phases = run(launcher, cycle_plan(), watch)

    assert answers == [False]
    assert isinstance(result, Yielded)
    assert (result.reason, result.occupied_seconds, phases) == ("requested", 0.0, [])
    assert not started.exists()
    assert not held_elsewhere(lock_file)


def test_a_look_is_good_for_a_moment(tmp_path: Path) -> None:
    """Gates that follow each other at once share a look."""
    looks: list[float] = []

    async def watch(pids: frozenset[int]) -> None:
        del pids
        looks.append(time.monotonic())

    started = time.monotonic()
    result, _ = run(scripted(tmp_path), cycle_plan(steps=cycle_plan().steps * 50), watch)

    assert isinstance(result, Measured)
    assert len(looks) <= 3 + (time.monotonic() - started) / 0.2


@pytest.mark.parametrize("what", ["hang", "hold", "deaf"])
def test_a_process_that_appears_ends_the_cycle(tmp_path: Path, what: str) -> None:
    """From the moment at which somebody comes, right after a look, to the end of the last rank."""
    launcher = scripted(tmp_path, what=what, phase="measure")
    appeared: list[float] = []

    async def watch(pids: frozenset[int]) -> Halt | None:
        del pids
        return GUEST if appeared else None

    async def cycle() -> CycleResult:
        reached = asyncio.Event()

        def note(phase: str, step: int, _: float) -> None:
            if (phase, step) == ("measure", 1):
                reached.set()

        running = asyncio.create_task(launcher.run(cycle_plan(), watch, note))
        await reached.wait()
        appeared.append(time.monotonic())
        pids = launcher.pids
        await comes(lambda: not any(alive(pid) for pid in pids))
        return await running

    result = asyncio.run(cycle())

    assert isinstance(result, Yielded)
    assert result.reason == "process_appeared"


def test_the_waits_of_a_cycle_that_gives_way_fit_into_a_second() -> None:
    """The next look, the time to hear that it is asked, and to end by SIGTERM; SIGKILL needs none."""
    assert watch.CHECK_INTERVAL_SECONDS + process.ASK_SECONDS + process.TERM_SECONDS <= 0.8
    assert rank.ABORT_SECONDS < process.ASK_SECONDS


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_watch_that_breaks_ends_the_cycle(tmp_path: Path, ranks: int) -> None:
    """Before the ranks start and while they run: its error is logged, and no rank goes on unwatched."""
    lock_file = tmp_path / "lock"

    async def broken(pids: frozenset[int]) -> None:
        if len(pids) == ranks:
            raise ValueError(f"cannot look at {len(pids)} ranks")

    with capture_logs() as logs:
        result, _ = run(scripted(tmp_path, lock=ProbeLock(lock_file), what="hang", phase="setup"), cycle_plan(), broken)

    words = f"ValueError: cannot look at {ranks} ranks"
    assert isinstance(result, Yielded)
    assert (result.reason, result.detail) == ("gpu_unknown", f"the node could not be looked at: {words}")
    assert [(entry["log_level"], str(entry["exc_info"])) for entry in logs] == [("error", words[12:])]
    assert not held_elsewhere(lock_file)


def test_a_watch_that_hangs_ends_the_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that wait at a gate for it are ended: a node that cannot be checked is not free."""
    monkeypatch.setattr("commwatch.probes.gate.watch.CHECK_DEADLINE_SECONDS", 0.2)
    monkeypatch.setattr("commwatch.probes.gate.watch.CHECK_REUSE_SECONDS", 0.0)

    result, _ = run(scripted(tmp_path), cycle_plan(), lambda pids: asyncio.sleep(60 if pids else 0))

    assert isinstance(result, Yielded)
    assert result.reason == "gpu_unknown"


@pytest.mark.parametrize("told", [("start", 0), ("measure", 1)])
def test_an_error_of_our_own_ends_the_cycle_before_it_is_raised(tmp_path: Path, told: tuple[str, int]) -> None:
    """What follows the progress may break: then the ranks are gone and the lock is free all the same."""
    lock_file = tmp_path / "lock"

    def progress(phase: str, step: int, seconds: float) -> None:
        if (phase, step) == told:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(scripted(tmp_path, lock=ProbeLock(lock_file)).run(cycle_plan(), all_quiet, progress))

    wait_until_gone(tmp_path)
    assert not held_elsewhere(lock_file)


@pytest.mark.parametrize(
    ("halt", "kind", "reason"),
    [
        # A rank that fails because a job took its memory, before any check saw the job, makes the cycle yield.
        (GUEST, Yielded, "process_appeared"),
        # That a GPU which falls off the bus cannot be checked any more is no excuse.
        (Halt("gpu_unknown", "GPU-a is lost"), Failed, "crashed"),
    ],
)
def test_a_crash_is_a_failure_unless_a_job_came(tmp_path: Path, halt: Halt, kind: type, reason: str) -> None:
    """Seen only once it has happened."""
    diary = tmp_path / "diary"
    watch = GuestAtGate(diary, 1, halt)

    result, _ = run(scripted(tmp_path, what="crash", phase="measure", diary=str(diary)), cycle_plan(), watch)

    assert isinstance(result, kind)
    assert isinstance(result, Yielded | Failed)
    assert result.reason == reason


def test_a_result_that_is_complete_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who comes while the ranks leave does not cost what they measured, and they hurry up."""
    launcher = scripted(tmp_path, what="hang", phase="close")

    async def cancelled() -> CycleResult:
        done = asyncio.Event()
        running = asyncio.create_task(
            launcher.run(cycle_plan(), all_quiet, lambda phase, *_: done.set() if phase == "done" else None)
        )
        await done.wait()
        await asyncio.sleep(0.05)
        await launcher.cancel("requested", "a job asked for the node")
        return await running

    monkeypatch.setattr(process, "EXIT_SECONDS", 10 * PATIENCE_SECONDS)
    result = asyncio.run(asyncio.wait_for(cancelled(), PATIENCE_SECONDS))

    assert isinstance(result, Measured)
