"""SIGKILL of a real rank of a gloo group, beside a cycle that goes on."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured
from probes.cycles import all_quiet, collective_steps, cycle_plan
from probes.test_kills import kill_in


def gloo_plan() -> CyclePlan:
    """An all-reduce of two real processes."""
    return cycle_plan(backend="gloo", devices=(), steps=collective_steps(bandwidth_bytes=2**16), timed_seconds=0.2)


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_cycles_at_once_do_not_collide_and_a_real_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    """Two cycles beside each other find their own ranks and ports; a gloo rank killed in the measurement is named."""
    first, second = (Launcher(temporary=tmp_path) for _ in range(2))

    async def both() -> list[CycleResult]:
        return list(await asyncio.gather(first.run(gloo_plan(), all_quiet), kill_in("measure", second, gloo_plan())))

    measured, killed = asyncio.run(both())

    assert isinstance(measured, Measured), measured
    assert isinstance(killed, Failed)
    assert (killed.reason, killed.rank, killed.phase) == ("crashed", 1, "measure")
