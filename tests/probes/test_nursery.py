"""Ranks that are forked from a process which has imported torch once, and what happens where there is none."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from commwatch.probes.cycle.environment import nursery_environment
from commwatch.probes.cycle.interpreter import nursery_command
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.nursery import Nursery, NurseryError
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


@pytest.mark.parametrize("python", ["", sys.executable], ids=["own", "probes.python"])
@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_cycles_after_each_other_have_their_ranks_from_one_process(python: str, tmp_path: Path) -> None:
    """They measure, end and are reaped as those that are started one by one; without the process a cycle says so."""
    plan = gloo_plan("all_reduce")

    async def body() -> None:
        environment = nursery_environment(plan, os.environ, elsewhere=bool(python))
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
