"""Ranks that are forked from a process which has imported torch once, and what happens where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

import pytest

from commwatch.probes.cycle.environment import nursery_command, nursery_environment
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.nursery import ForkedRank, Nursery, NurseryError
from commwatch.probes.plan import Failed, Measured
from probes.cycles import PROCFS, all_quiet
from probes.test_torch import gloo_plan
from support.waiting import PATIENCE_SECONDS


def test_where_torch_cannot_be_imported_no_rank_is_forked() -> None:
    """It is said once, and asking again costs nothing; the process is gone."""

    async def body() -> None:
        nursery = Nursery((sys.executable, "-c", "raise ImportError"), {})
        assert not await nursery.ready(PATIENCE_SECONDS)
        assert not await nursery.ready(0.0)
        assert nursery._process.returncode is not None
        nursery.close()

    asyncio.run(body())


def test_one_that_is_not_ready_in_time_is_ended() -> None:
    """Ranks import torch themselves then."""

    async def body() -> None:
        nursery = Nursery((sys.executable, "-c", "import time; time.sleep(3600)"), {})
        assert not await nursery.ready(0.01)
        assert nursery._process.returncode == -signal.SIGKILL

    asyncio.run(body())


def forked(become_rank: str, inherited: Collection[int] = ()) -> tuple[ForkedRank, bool]:
    """A rank of a nursery without torch, and whether it led a session as soon as it was known."""
    program = f"""
import os, sys, time, types
sys.modules["commwatch.probes.cycle.rank_torch"] = types.ModuleType("rank_torch")
from commwatch.probes.cycle import nursery
lead = os.setsid
def late():  # as on a busy core
    time.sleep(0.2)
    lead()
os.setsid = late
def become_rank():
    {become_rank}
nursery.serve(become_rank)
"""

    async def body() -> tuple[ForkedRank, bool]:
        nursery = Nursery((sys.executable, "-c", f"import sys; sys.path[:] = {sys.path}\n{program}"), {})
        try:
            assert await nursery.ready(PATIENCE_SECONDS)
            rank = nursery.fork({}, 2, inherited)
            return rank, os.getsid(rank.pid) == rank.pid
        finally:
            nursery.close()

    return asyncio.run(body())


def test_a_rank_leads_its_group_as_soon_as_it_is_known() -> None:
    """Else a signal to its group would reach nobody."""
    rank, leads = forked("os.read(0, 1)")
    rank.stdin.close()
    rank.stdout.close()
    rank.wait()
    assert leads


@pytest.mark.parametrize("first", [3, 12, 200, 201, 203, 204])
def test_a_rank_has_each_descriptor_under_the_number_that_it_has_here(first: int) -> None:
    """Whatever the number: a member that hosts a large run has hundreds of connections."""
    with contextlib.ExitStack() as held:
        numbers = []
        for content in ("lock", "socket"):
            memory = os.memfd_create(content)
            held.callback(os.close, memory)
            os.write(memory, content.encode())
            numbers.append(fcntl.fcntl(memory, fcntl.F_DUPFD_CLOEXEC, first))
            held.callback(os.close, numbers[-1])
        rank, _ = forked(f"os.write(1, b' '.join(os.pread(one, 9, 0) for one in {numbers})); os._exit(0)", numbers)
        with rank.stdin, rank.stdout:
            said = rank.stdout.read()
    assert (said, rank.wait()) == (b"lock socket", 0)


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_cycles_after_each_other_have_their_ranks_from_one_process(tmp_path: Path) -> None:
    """They measure, end and are reaped as those that are started one by one; without the process a cycle says so."""
    plan, python = gloo_plan("all_reduce"), sys.executable

    async def body() -> None:
        environment = nursery_environment(plan, os.environ)
        nursery = Nursery(nursery_command(python), environment)
        launcher = Launcher(procfs=PROCFS, temporary=tmp_path, python=python)
        try:
            assert await nursery.ready(PATIENCE_SECONDS)
            for _ in range(2):
                result = await launcher.run(plan, all_quiet, nursery=nursery)
                assert isinstance(result, Measured), result
                assert launcher.stuck == ()
            os.kill(nursery._process.pid, signal.SIGKILL)
            lost = await launcher.run(plan, all_quiet, nursery=nursery)
            assert isinstance(lost, Failed)
            assert lost.reason == "start"
            assert not await nursery.ready(0.0)
            with pytest.raises((NurseryError, OSError)):
                nursery.fork({}, 2, ())
        finally:
            nursery.close()

    asyncio.run(body())
    assert [one for one in children() if b"nursery" in one] == []
    assert list(tmp_path.iterdir()) == []


def children() -> list[bytes]:
    """Command lines of the children of this process."""
    pids = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    return [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
