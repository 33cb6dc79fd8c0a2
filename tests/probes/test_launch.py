"""Rank processes of every kind, and what the launcher makes of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commwatch.probes import process
from commwatch.probes.launch import Launcher
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured, Skipped
from commwatch.probes.rank import EXIT_SECONDS
from probes.cycles import alive, cycle_plan, scripted


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of ending a rank take less time in tests."""
    monkeypatch.setattr(process, "ASK_SECONDS", 0.3)
    monkeypatch.setattr(process, "TERM_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """No private folder is left after any test."""
    yield
    assert [path.name for path in tmp_path.glob("commwatch-probe-*")] == []


def run(launcher: Launcher, plan: CyclePlan) -> tuple[CycleResult, list[str], tuple[int, ...]]:
    """The result of a cycle, the phases that it went through, and the ranks it had; none of them runs any more."""
    phases: list[str] = []
    pids: tuple[int, ...] = ()

    def note(phase: str, _: float) -> None:
        nonlocal pids
        phases.append(phase)
        pids = launcher.pids

    result = asyncio.run(launcher.run(plan, note))

    assert not any(alive(pid) for pid in pids)
    return result, phases, pids


def failure(launcher: Launcher, plan: CyclePlan) -> Failed:
    result, _, _ = run(launcher, plan)
    assert isinstance(result, Failed)
    return result


def test_good_cycle_gives_the_slowest_ranks_median(tmp_path: Path) -> None:
    """The times of a cycle are those of its slowest rank."""
    result, phases, pids = run(scripted(tmp_path, rank=1, slowness=3.0), cycle_plan())

    assert isinstance(result, Measured)
    assert result.latency_seconds == pytest.approx(0.003)
    assert result.bandwidth_seconds == pytest.approx(0.03)
    assert [min(rank.latency_seconds) for rank in result.ranks] == pytest.approx([0.001, 0.003])
    assert result.nccl_version == "2.27.5"
    assert 0 < result.setup_seconds <= result.occupied_seconds
    assert phases[0] == "start"
    assert phases[-1] == "done"
    assert len(pids) == 2


def test_what_libraries_print_is_not_taken_for_events(tmp_path: Path) -> None:
    """NCCL writes to descriptor 1; the events of the rank travel on a pipe of their own."""
    result, _, _ = run(scripted(tmp_path, what="noise", phase="setup"), cycle_plan())

    assert isinstance(result, Measured)


@pytest.mark.usefixtures("short_patience")
def test_ranks_deaf_to_everything_are_killed_in_every_phase(tmp_path: Path) -> None:
    """A rank that answers neither its closed input nor SIGTERM is killed, and the phase names the failure."""
    expected = {
        "start": "start",
        "rendezvous": "rendezvous_timeout",
        "setup": "setup_timeout",
        "measure": "measure_timeout",
    }

    async def one(phase: str) -> CycleResult:
        plan = cycle_plan(setup_deadline=30.0 if phase == "measure" else 3.0, measure_deadline=0.5)
        return await scripted(tmp_path, what="deaf", phase=phase, rank=1).run(plan)

    async def all_phases() -> list[CycleResult]:
        return await asyncio.gather(*(one(phase) for phase in expected))

    results = asyncio.run(all_phases())

    assert [result.reason for result in results if isinstance(result, Failed)] == list(expected.values())
    assert "rank 1 was in phase measure" in getattr(results[3], "detail", "")


CRASH = "rank 0 was ended by signal 11 in phase setup: the driver said no"


@pytest.mark.parametrize(
    ("script", "reason", "detail"),
    [
        ({"what": "crash", "phase": "setup"}, "crashed", CRASH),
        ({"what": "leave", "phase": "measure", "rank": 1}, "crashed", "rank 1 ended with status 0 in phase measure"),
        ({"what": "throw", "phase": "setup"}, "crashed", "rank 0: ValueError: unexpected"),
        ({"what": "nccl_error", "phase": "measure"}, "nccl_error", "rank 0: said so"),
        ({"what": "garbage", "phase": "setup"}, "crashed", "rank 0: the rank wrote something that is no event"),
    ],
)  # fmt: skip
def test_a_rank_that_fails_ends_the_cycle_at_once(
    tmp_path: Path, script: dict[str, Any], reason: str, detail: str
) -> None:
    """A crash, a quiet end, an exception, an NCCL error or a garbled line are named, and no deadline is waited for."""
    started = time.monotonic()

    result = failure(scripted(tmp_path, **script), cycle_plan())

    assert (result.reason, result.detail) == (reason, detail)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("wrong_bytes", [8, 2**20])
def test_a_sum_that_is_not_exact_is_a_failure(tmp_path: Path, wrong_bytes: int) -> None:
    """The sums of the small and of the large buffer are both checked."""
    result = failure(scripted(tmp_path, wrong_bytes=wrong_bytes), cycle_plan())

    assert result.reason == "wrong_result"
    assert f"all_reduce of {wrong_bytes} bytes over 2 ranks" in result.detail


def test_a_missing_torch_is_a_skip(tmp_path: Path) -> None:
    """A node that cannot probe at all has not failed."""
    result, _, _ = run(scripted(tmp_path, what="no_torch", phase="start"), cycle_plan())

    assert isinstance(result, Skipped)
    assert result.reason == "no_torch"


def test_a_rank_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    """A missing program is reported, not raised."""
    result = failure(Launcher(rank_command=(str(tmp_path / "missing"),), temporary=tmp_path), cycle_plan())

    assert result.reason == "start"
    assert "missing" in result.detail


def test_a_hang_after_the_result_does_not_lose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that cannot be closed is ended, and what was measured stands."""
    monkeypatch.setattr(process, "EXIT_SECONDS", 0.3)

    result, _, _ = run(scripted(tmp_path, what="hang", phase="close"), cycle_plan())

    assert isinstance(result, Measured)
    assert result.occupied_seconds < EXIT_SECONDS


def test_what_a_rank_left_in_its_group_is_killed(tmp_path: Path) -> None:
    """A child of a rank does not outlive it."""
    file = tmp_path / "offspring"

    run(scripted(tmp_path, what="offspring", phase="rendezvous", file=str(file)), cycle_plan())

    assert not alive(int(file.read_text()))


@pytest.mark.parametrize("phase", ["start", "measure"])
@pytest.mark.parametrize("what", ["hang", "hold"])
def test_a_cycle_gives_way_within_two_seconds(tmp_path: Path, what: str, phase: str) -> None:
    """A cancelled cycle is a skip, and its ranks are gone in time even when their interpreter is held."""
    launcher = scripted(tmp_path, what=what, phase=phase)

    async def cancelled() -> tuple[CycleResult, bool, float, tuple[int, ...]]:
        reached = asyncio.Event()
        plan = cycle_plan()
        cycle = asyncio.create_task(launcher.run(plan, lambda now, _: reached.set() if now == phase else None))
        await reached.wait()
        pids, started = launcher.pids, time.monotonic()
        gone = await launcher.cancel("yielded", "a job asked for the node")
        return await cycle, gone, time.monotonic() - started, pids

    result, gone, seconds, pids = asyncio.run(cancelled())

    assert isinstance(result, Skipped)
    assert (result.reason, result.detail) == ("yielded", "a job asked for the node")
    assert result.occupied_seconds > 0
    assert gone
    assert seconds < 2.0
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_a_cancelled_task_leaves_no_rank(tmp_path: Path) -> None:
    """The daemon's shutdown cancels the task of the cycle; its ranks end with it."""
    launcher = scripted(tmp_path, what="hang", phase="rendezvous")

    async def shut_down() -> tuple[int, ...]:
        reached = asyncio.Event()
        cycle = asyncio.create_task(launcher.run(cycle_plan(), lambda *_: reached.set()))
        await reached.wait()
        pids = launcher.pids
        cycle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cycle
        return pids

    pids = asyncio.run(shut_down())

    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    assert not launcher.running


@pytest.mark.usefixtures("short_patience")
def test_a_rank_in_uninterruptible_sleep_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank in state D is left alone, reported as stuck, and reaped when it comes back."""
    monkeypatch.setattr(process, "KILL_SECONDS", 0.2)
    procfs = tmp_path / "proc"
    launcher = scripted(tmp_path, procfs, what="hold", phase="measure", rank=1)
    pids: tuple[int, ...] = ()

    def sleep_in_the_kernel(phase: str, _: float) -> None:
        nonlocal pids
        pids = launcher.pids
        if phase == "measure":
            task = procfs / str(pids[1]) / "task" / "4711"
            task.mkdir(parents=True)
            (task / "stat").write_text("4711 (pt) nccl) D " + "0 " * 20)

    async def get_stuck() -> CycleResult:
        return await launcher.run(cycle_plan(measure_deadline=0.3), sleep_in_the_kernel)

    try:
        result = asyncio.run(get_stuck())

        assert isinstance(result, Failed)
        assert result.reason == "stuck"
        assert str(pids[1]) in result.detail
        assert launcher.stuck == (pids[1],)
        assert not alive(pids[0])
        assert alive(pids[1])
    finally:
        os.kill(pids[1], signal.SIGKILL)
    deadline = time.monotonic() + 5
    while launcher.stuck and time.monotonic() < deadline:
        time.sleep(0.01)

    assert not launcher.stuck


def test_one_cycle_at_a_time(tmp_path: Path) -> None:
    """A second cycle beside the first is refused."""
    launcher = scripted(tmp_path)

    async def two() -> None:
        first = asyncio.create_task(launcher.run(cycle_plan()))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="under way"):
            await launcher.run(cycle_plan())
        assert isinstance(await first, Measured)

    asyncio.run(two())


def test_ranks_die_with_their_parent(tmp_path: Path) -> None:
    """A daemon that is killed leaves no rank on the GPUs."""
    program = (
        "import asyncio, sys; from pathlib import Path; from probes.cycles import cycle_plan, scripted\n"
        f"launcher = scripted(Path({str(tmp_path)!r}), what='hang', phase='setup')\n"
        "show = lambda phase, _: print(*launcher.pids, flush=True) if phase == 'setup' else None\n"
        "asyncio.run(launcher.run(cycle_plan(), show))\n"
    )
    environment = os.environ | {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)

    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    for folder in tmp_path.glob("commwatch-probe-*"):  # its owner was killed
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def test_a_rank_sees_nothing_of_the_daemons_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of NCCL, torch and systemd in the daemon's environment do not reach a rank."""
    for name in ("NCCL_ALGO", "TORCH_LOGS", "NOTIFY_SOCKET", "CUDA_VISIBLE_DEVICES", "SECRET"):
        monkeypatch.setenv(name, "leaked")
    file = tmp_path / "environment"

    run(scripted(tmp_path, what="environment", phase="start", file=str(file)), cycle_plan())

    environment: dict[str, str] = json.loads(file.read_text())
    assert "leaked" not in environment.values()
    assert not [name for name in environment if name.startswith(("NCCL_", "TORCH_", "CUDA_"))]
    assert environment["HOME"].startswith(str(tmp_path))
