"""Probes on a real GPU: right results, real copies, and nothing left behind; skipped where no NVIDIA driver is loaded.

Several ranks on one GPU prove that the results are right and that errors are told; their times are time slices.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import get_args

import pytest
from benchmarks.hardware.programs import TORCH_PYTHON

from commwatch.config import settings
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.gate.watch import Halt
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measure, Measured
from commwatch.probes.rank_plan import Collective
from commwatch.probes.results.bus_bandwidth import bus_bandwidth
from commwatch.probes.workload import plan_cycle

pytestmark = pytest.mark.skipif(not Path("/proc/driver/nvidia/version").exists(), reason="no NVIDIA driver is loaded")

MIB = 2**20
SLOWEST_PCIE_BYTES_PER_SECOND = 5e9
"""Less than a link of generation 3 with 8 lanes carries to pinned memory."""
FREED_WITHIN_SECONDS = 5.0


def ask(what: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def memory_used() -> list[int]:
    """MiB on each GPU."""
    return [int(used) for used in ask("memory.used")]


def one_gpu_plan(measure: Measure, ranks: int) -> CyclePlan:
    probe = settings.Probe(measure=measure, ranks=ranks, bandwidth_bytes=settings.Size(4 * MIB))
    return plan_cycle(measure, probe, settings.Probes(), backend="nccl", devices=(ask("uuid")[0],))


async def nobody(_ranks: frozenset[int]) -> Halt | None:
    """Nobody else wants the GPU."""
    return None


def launcher() -> Launcher:
    """Of ranks on the interpreter that has torch."""
    return Launcher(python=os.environ.get(TORCH_PYTHON, ""))


def run(plan: CyclePlan) -> CycleResult:
    return asyncio.run(launcher().run(plan, nobody))


@pytest.mark.parametrize("measure", [*get_args(Collective), "pairs"])
def test_two_ranks_on_one_gpu_get_right_results(measure: Measure) -> None:
    """Every operation of NCCL arrives bit by bit as it must, and the versions are known."""
    result = run(one_gpu_plan(measure, ranks=2))

    assert isinstance(result, Measured), result
    assert result.nccl_version
    assert result.torch_version


def test_host_copies_reach_what_pcie_carries() -> None:
    """Pinned memory both ways: more than the slowest link that a GPU may sit on."""
    result = run(one_gpu_plan("host_copies", ranks=1))

    assert isinstance(result, Measured), result
    for outcome in result.outcomes:
        rate = bus_bandwidth(outcome.step.operation, 1, outcome.step.size_bytes, outcome.slowest_seconds)
        print(f"{outcome.step.operation}: {rate / 1e9:.1f} GB/s")
        assert rate > SLOWEST_PCIE_BYTES_PER_SECOND


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cycle_leaves_no_memory_on_the_gpu(ranks: int) -> None:
    """What was in use before is in use afterwards, not a MiB more."""
    before = memory_used()

    assert isinstance(run(one_gpu_plan("host_copies" if ranks == 1 else "all_reduce", ranks)), Measured)

    wait_until_freed(before)


def test_a_killed_rank_is_a_crash_and_leaves_no_memory() -> None:
    """SIGKILL while NCCL is at work: the other rank ends too, and the GPU is free again."""
    before = memory_used()
    ours = launcher()

    async def body() -> CycleResult:
        async def kill(ranks: frozenset[int]) -> Halt | None:
            if "measure" in reached and ranks:
                os.kill(max(ranks), signal.SIGKILL)
                reached.clear()
            return None

        reached: set[str] = set()
        return await ours.run(
            one_gpu_plan("all_reduce", ranks=2), kill, lambda phase, _step, _seconds: reached.add(phase)
        )

    result = asyncio.run(body())

    assert isinstance(result, Failed), result
    assert result.reason in ("crashed", "nccl_error")
    assert ours.stuck == {}
    wait_until_freed(before)


def wait_until_freed(before: list[int]) -> None:
    """The driver frees a process's memory a moment after it is gone."""
    deadline = time.monotonic() + FREED_WITHIN_SECONDS
    while any(now > was for now, was in zip(memory_used(), before, strict=True)):
        assert time.monotonic() < deadline, (before, memory_used())
        time.sleep(0.2)
