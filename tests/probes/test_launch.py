"""Rank processes of every kind, and what the launcher makes of them."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from commwatch.probes.cycle.launch import Cycle, Launcher
from commwatch.probes.cycle.lock import ProbeLock
from commwatch.probes.cycle.process import RankProcess
from commwatch.probes.plan import CycleResult, Measured, Skipped
from commwatch.probes.rank_plan import Step
from probes.cycles import (
    BANDWIDTH_BYTES,
    LATENCY_BYTES,
    all_quiet,
    collective_steps,
    cycle_plan,
    deadlines,
    failure,
    run,
    scripted,
)

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_good_cycle_gives_each_ranks_median(tmp_path: Path) -> None:
    """Each step has a time for every rank, and its slowest rank is named."""
    result, phases = run(scripted(tmp_path, rank=1, slowness=3.0), cycle_plan())

    assert isinstance(result, Measured)
    latency, bandwidth = result.outcomes
    assert latency.seconds == pytest.approx((0.001, 0.003))
    assert bandwidth.seconds == pytest.approx((0.01, 0.03))
    assert bandwidth.slowest_seconds == pytest.approx(0.03)
    assert result.nccl_version == "2.27.5"
    assert (phases[0], phases[-1]) == ("start", "done")


def test_every_phase_is_told_in_order_however_fast_the_ranks_are(tmp_path: Path) -> None:
    """What all ranks passed through while the daemon did something else is reported too, before the steps."""
    told: list[tuple[str, int]] = []

    async def cycle() -> CycleResult:
        running = asyncio.create_task(
            scripted(tmp_path).run(cycle_plan(), all_quiet, lambda phase, step, _: told.append((phase, step)))
        )
        while not running.done():
            await asyncio.sleep(0)
            time.sleep(0.02)  # noqa: ASYNC251 - the loop is held up, so that several lines wait for it
        return await running

    assert isinstance(asyncio.run(cycle()), Measured)
    phases = [("start", 0), ("rendezvous", 0), ("setup", 0), ("measure", 0)]
    assert told == [*phases, ("measure", 1), ("measure", 2), ("done", 0)]


@pytest.mark.parametrize(
    "nothing", [{"ranks": 0, "steps": ()}, {"steps": ()}, {"backend": "nccl", "devices": ()}], ids=repr
)
def test_a_plan_with_nothing_to_run_is_refused(tmp_path: Path, nothing: dict[str, Any]) -> None:
    """No rank, no step, or no GPU for NCCL: nothing is started, and the error says which probe it is."""
    with pytest.raises(ValueError, match="probe all_reduce has nothing to run"):
        run(scripted(tmp_path), cycle_plan(**nothing))


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


def test_time_at_gates_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that hangs does not keep a deadline from passing."""
    monkeypatch.setattr("commwatch.probes.gate.watch.CHECK_REUSE_SECONDS", 0.0)

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
    never = dict.fromkeys(("start", "rendezvous", "setup", "measure"), 1e6)

    result = failure(scripted(tmp_path, **script), cycle_plan(deadlines=deadlines(**never)))

    assert (result.reason, result.detail) == (reason, detail)


@pytest.mark.parametrize("wrong_bytes", [LATENCY_BYTES, BANDWIDTH_BYTES])
def test_a_result_that_is_not_exact_is_a_failure(tmp_path: Path, wrong_bytes: int) -> None:
    """What arrives is checked in every step."""
    result = failure(scripted(tmp_path, wrong_bytes=wrong_bytes), cycle_plan())

    assert result.reason == "wrong_result"
    assert f"all_reduce of {wrong_bytes} bytes" in result.detail


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


def test_a_folder_that_cannot_be_opened_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon without any descriptor left says so, and leaves no folder."""
    whole = os.open

    def full(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if str(path).startswith(str(tmp_path / "commwatch-probe-")):
            raise OSError(errno.EMFILE, "too many open files")
        return whole(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", full)

    assert "too many open files" in failure(scripted(tmp_path), cycle_plan()).detail


def test_a_cycle_is_freed_with_its_end(tmp_path: Path) -> None:
    """It refers to nothing that refers to it: the daemon lets the garbage collector come rarely."""
    launcher, plan = scripted(tmp_path), cycle_plan()
    gc.collect()
    gc.disable()
    try:
        result, _ = run(launcher, plan)
        left = [one for one in gc.get_objects() if isinstance(one, Cycle | RankProcess)]
    finally:
        gc.enable()
    assert isinstance(result, Measured)
    assert left == []


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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_no_other_user_looks_into_the_folder_of_a_rank(tmp_path: Path) -> None:
    """Whatever the umask, and whatever modes the files in it have; the rank itself is this user."""
    file = tmp_path / "seen"
    # pytest's own folders are closed to all others.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        before = os.umask(0)
        try:
            run(scripted(Path(name), what="tempt", phase="start", file=str(file)), cycle_plan())
        finally:
            os.umask(before)

    assert json.loads(file.read_text()) == [0o700, os.geteuid(), 7]


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
