"""Rank processes of every kind, and what the launcher makes of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commwatch.probes import process
from commwatch.probes.launch import Launcher
from commwatch.probes.lock import ProbeLock, held_elsewhere
from commwatch.probes.plan import CycleResult, Failed, Measured, Skipped, Step, Yielded
from commwatch.probes.rank import EXIT_SECONDS
from probes.cycles import (
    BANDWIDTH_BYTES,
    LATENCY_BYTES,
    alive,
    all_quiet,
    collective_steps,
    cycle_plan,
    deadlines,
    failure,
    left_in,
    run,
    scripted,
)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """No process and no private folder is left after any test."""
    yield
    assert left_in(tmp_path) == []
    assert [path.name for path in tmp_path.glob("commwatch-probe-*")] == []


def test_good_cycle_gives_each_ranks_median(tmp_path: Path) -> None:
    """Each step has a time for every rank, and its slowest rank is named."""
    result, phases = run(scripted(tmp_path, rank=1, slowness=3.0), cycle_plan())

    assert isinstance(result, Measured)
    latency, bandwidth = result.outcomes
    assert latency.seconds == pytest.approx((0.001, 0.003))
    assert bandwidth.seconds == pytest.approx((0.01, 0.03))
    assert bandwidth.slowest_rank == 1
    assert bandwidth.slowest_seconds == pytest.approx(0.03)
    assert result.nccl_version == "2.27.5"
    assert (phases[0], phases[-1]) == ("start", "done")


def test_occupancy_begins_where_a_gpu_could_be_touched(tmp_path: Path) -> None:
    """The start of the ranks, seconds of imports, occupies no GPU; a cycle that ends in it has occupied none."""
    result, _ = run(scripted(tmp_path), cycle_plan())
    early = failure(scripted(tmp_path, what="crash", phase="start"), cycle_plan(ranks=1))

    assert isinstance(result, Measured)
    assert result.occupied_seconds > 0
    assert result.setup_seconds > 0
    assert early.occupied_seconds == 0


def test_what_libraries_print_is_not_taken_for_events(tmp_path: Path) -> None:
    """NCCL writes to descriptor 1; the events of the rank travel on a pipe of their own."""
    result, _ = run(scripted(tmp_path, what="noise", phase="setup"), cycle_plan())

    assert isinstance(result, Measured)


def test_a_plan_may_be_larger_than_a_pipe_holds(tmp_path: Path) -> None:
    """Hundreds of steps reach a rank, also one that begins to read late, and each has its gate."""
    step = Step(operation="send_recv", purpose="bandwidth", size_bytes=4, members=(0, 1), pairs=((0, 1),))
    steps = (*collective_steps(), *[step] * 800)

    result, _ = run(scripted(tmp_path), cycle_plan(steps=steps))

    assert isinstance(result, Measured)
    assert len(result.outcomes) == 802
    assert result.outcomes[-1].seconds == (None, 0.01)


def test_ranks_deaf_to_everything_are_killed_in_every_phase(tmp_path: Path) -> None:
    """Each phase has its own deadline; a rank that answers neither its closed input nor SIGTERM is killed."""
    expected = {
        "start": "start",
        "rendezvous": "rendezvous_timeout",
        "setup": "setup_timeout",
        "measure": "measure_timeout",
    }

    async def one(phase: str) -> CycleResult:
        plan = cycle_plan(deadlines=deadlines(**{phase: 1.5 if phase == "start" else 0.5}))
        return await scripted(tmp_path, what="deaf", phase=phase, rank=1).run(plan, all_quiet)

    async def all_phases() -> list[CycleResult]:
        return await asyncio.gather(*(one(phase) for phase in expected))

    results = [result for result in asyncio.run(all_phases()) if isinstance(result, Failed)]

    assert [result.reason for result in results] == list(expected.values())
    assert [(result.phase, result.rank, result.device) for result in results] == [
        (phase, 1, "GPU-b") for phase in expected
    ]
    assert results[3].detail == (
        "rank 1 (GPU-b) in phase measure: measure_timeout: "
        "not through with all_reduce of 8 bytes (step 1 of 2) within 0.5 s"
    )


def test_time_at_gates_counts(tmp_path: Path) -> None:
    """A look that hangs does not keep a deadline from passing."""

    async def hang(pids: frozenset[int]) -> None:
        await asyncio.sleep(60 if pids else 0)

    result = failure(scripted(tmp_path), cycle_plan(deadlines=deadlines(rendezvous=0.3)), hang)

    assert result.reason == "rendezvous_timeout"


CRASH = "rank 0 (GPU-a) in phase setup: crashed: ended by signal 11: the driver said no"


@pytest.mark.parametrize(
    ("script", "reason", "detail"),
    [
        ({"what": "crash", "phase": "setup"}, "crashed", CRASH),
        ({"what": "leave", "phase": "measure", "rank": 1}, "crashed",
         "rank 1 (GPU-b) in phase measure: crashed: ended with status 0"),
        ({"what": "throw", "phase": "setup"}, "crashed",
         "rank 0 (GPU-a) in phase setup: crashed: ValueError: unexpected"),
        ({"what": "nccl_error", "phase": "measure"}, "nccl_error",
         "rank 0 (GPU-a) in phase measure: nccl_error: said so"),
        ({"what": "garbage", "phase": "setup"}, "crashed",
         "rank 0 (GPU-a) in phase setup: crashed: the rank wrote something that is no event"),
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


@pytest.mark.parametrize("wrong_bytes", [LATENCY_BYTES, BANDWIDTH_BYTES])
def test_a_result_that_is_not_exact_is_a_failure(tmp_path: Path, wrong_bytes: int) -> None:
    """What arrives is checked in every step."""
    result = failure(scripted(tmp_path, wrong_bytes=wrong_bytes), cycle_plan())

    assert result.reason == "wrong_result"
    assert f"all_reduce of {wrong_bytes} bytes" in result.detail


def test_a_failing_rank_aborts_its_group(tmp_path: Path) -> None:
    """No kernel of ours is in flight when a rank that has failed ends."""
    file = tmp_path / "aborted"

    failure(
        scripted(tmp_path, wrong_bytes=LATENCY_BYTES, what="environment", phase="abort", file=str(file)), cycle_plan()
    )

    assert file.exists()


def test_a_missing_torch_is_a_skip(tmp_path: Path) -> None:
    """A node that cannot probe at all has not failed."""
    result, _ = run(scripted(tmp_path, what="no_torch", phase="start"), cycle_plan())

    assert isinstance(result, Skipped)
    assert (result.reason, result.detail) == ("no_torch", "said so")


def test_a_rank_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    """A missing program is reported, not raised."""
    result = failure(Launcher(rank_command=(str(tmp_path / "missing"),), temporary=tmp_path), cycle_plan())

    assert (result.reason, result.rank) == ("start", 0)
    assert "missing" in result.detail


def test_a_hang_after_the_result_does_not_lose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that cannot be closed is ended, and what was measured stands."""
    monkeypatch.setattr(process, "EXIT_SECONDS", 0.3)

    result, _ = run(scripted(tmp_path, what="hang", phase="close"), cycle_plan())

    assert isinstance(result, Measured)
    assert result.occupied_seconds < EXIT_SECONDS


def test_what_a_rank_left_in_its_group_is_killed(tmp_path: Path) -> None:
    """A child of a rank does not outlive it."""
    file = tmp_path / "offspring"

    run(scripted(tmp_path, what="offspring", phase="rendezvous", file=str(file)), cycle_plan())

    assert not alive(int(file.read_text()))


@pytest.mark.parametrize("phase", ["start", "measure"])
@pytest.mark.parametrize("what", ["hang", "hold"])
def test_a_cycle_gives_way_within_a_second(tmp_path: Path, what: str, phase: str) -> None:
    """A cancelled cycle has yielded, and its ranks are gone in time even when their interpreter is held."""
    launcher = scripted(tmp_path, what=what, phase=phase)

    async def cancelled() -> tuple[CycleResult, bool, float, tuple[int, ...]]:
        reached = asyncio.Event()
        cycle = asyncio.create_task(
            launcher.run(cycle_plan(), all_quiet, lambda now, *_: reached.set() if now == phase else None)
        )
        await reached.wait()
        pids, started = launcher.pids, time.monotonic()
        gone = await launcher.cancel("requested", "a job asked for the node")
        return await cycle, gone, time.monotonic() - started, pids

    result, gone, seconds, pids = asyncio.run(cancelled())

    assert isinstance(result, Yielded)
    assert (result.reason, result.detail) == ("requested", "a job asked for the node")
    assert gone
    assert seconds < 1.0
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_a_cancelled_task_leaves_no_rank(tmp_path: Path) -> None:
    """The daemon's shutdown cancels the task of the cycle; its ranks end with it."""
    launcher = scripted(tmp_path, what="hang", phase="rendezvous")

    async def shut_down() -> tuple[int, ...]:
        reached = asyncio.Event()
        cycle = asyncio.create_task(launcher.run(cycle_plan(), all_quiet, lambda *_: reached.set()))
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
        assert launcher.stuck == (pids[1],)
        assert held_elsewhere(lock_file)
        assert not alive(pids[0])
        assert alive(pids[1])

        state.write_text("4711 (pt) nccl) S " + "0 " * 20)
        deadline = time.monotonic() + 5
        while launcher.stuck and time.monotonic() < deadline:
            time.sleep(0.01)

        assert not launcher.stuck
        assert not alive(pids[1])
        assert not held_elsewhere(lock_file)
    finally:
        if alive(pids[1]):
            os.kill(pids[1], signal.SIGKILL)


def test_one_cycle_at_a_time(tmp_path: Path) -> None:
    """A second cycle of the same launcher is refused; of another process, it is skipped."""
    lock_file = tmp_path / "lock"
    launcher, other = (scripted(tmp_path, lock=ProbeLock(lock_file)) for _ in range(2))

    async def two() -> tuple[CycleResult, CycleResult]:
        first = asyncio.create_task(launcher.run(cycle_plan(), all_quiet))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="under way"):
            await launcher.run(cycle_plan(), all_quiet)
        second = await other.run(cycle_plan(), all_quiet)
        return await first, second

    first, second = asyncio.run(two())

    assert isinstance(first, Measured)
    assert isinstance(second, Skipped)
    assert second.reason == "probe_running"
    assert isinstance(run(other, cycle_plan())[0], Measured)


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


def test_folders_whose_owner_was_killed_are_removed(tmp_path: Path) -> None:
    """A cycle clears away what an earlier one could not, and nothing that is young, held or not a probe's."""
    abandoned, young, other = (tmp_path / name for name in ("commwatch-probe-old", "commwatch-probe-new", "other-old"))
    for folder in (abandoned, young, other):
        folder.mkdir()
        (folder / "file").write_text("")
    long_ago = time.time() - 3600
    for folder in (abandoned, other):
        os.utime(folder, (long_ago, long_ago))

    run(scripted(tmp_path), cycle_plan())

    assert [folder.exists() for folder in (abandoned, young, other)] == [False, True, True]
    os.utime(young, (long_ago, long_ago))
    run(scripted(tmp_path), cycle_plan())
