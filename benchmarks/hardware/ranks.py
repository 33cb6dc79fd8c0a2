"""Sections on NCCL: probes whose ranks share one GPU, and a rank that waits for a stopped peer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pynvml
from benchmarks.hardware.place import CannotRun, Fact, Place, answer, report, text_of

from commwatch.config import settings
from commwatch.jobs.ranks import RankSample, read_rank
from commwatch.probes.cycle.environment import SHARING, why_no_torch
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.gate.watch import Halt
from commwatch.probes.plan import CyclePlan, CycleResult, Measure, Measured
from commwatch.probes.rank_plan import Phase, SimulatedNodePlan
from commwatch.probes.workload import plan_cycle, step_of

MIB = 2**20
CYCLES: tuple[tuple[str, Measure, int], ...] = (
    ("ranks_1", "all_reduce", 1), ("ranks_2", "all_reduce", 2), ("ranks_4", "all_reduce", 4),
    ("copies", "host_copies", 1), ("multi_rank_2", "all_reduce", 2), ("multi_rank_4", "all_reduce", 4),
)  # fmt: skip
"""Name, operation and ranks. Those of ``multi_rank`` are last: ranks that do not fit on the GPU together may hang."""
_FIRST_SHARING = (2, 30, 3)
"""Version of NCCL."""
_LIMITS = settings.Probes(
    start_deadline=settings.Duration(40), rendezvous_deadline=settings.Duration(10),
    setup_deadline=settings.Duration(20), measure_deadline=settings.Duration(25),
)  # fmt: skip
_WAIT_SECONDS = 8.0
_SETTLES_SECONDS = 2.0
"""After the peer was stopped: the GPU has done by then all that was queued."""
_FREED_SECONDS = 3.0
_SAMPLE_SECONDS = 0.25


def _plan(place: Place, measure: Measure, ranks: int, uuids: list[str]) -> CyclePlan:
    """On the first GPU alone; simulated ranks cannot share one."""
    simulated = SimulatedNodePlan(preset=place.preset, faults_file=None, started_at=place.started_at)
    probe = settings.Probe(measure=measure, ranks=ranks, bandwidth_bytes=settings.Size(16 * MIB))
    plan = plan_cycle(
        measure, probe, _LIMITS, backend="simulated" if place.preset else "nccl",
        devices=tuple(uuids[: ranks if place.preset else 1]), simulation=simulated if place.preset else None,
    )  # fmt: skip
    if plan.steps:
        return plan
    # A collective of one rank measures no link, but shows that NCCL starts.
    alone = (step_of("all_reduce", "latency", 8, (0,)), step_of("all_reduce", "bandwidth", 16 * MIB, (0,)))
    return msgspec.structs.replace(plan, steps=alone)


def _uuids(handles: list[Any]) -> list[str]:
    return [text_of(pynvml.nvmlDeviceGetUUID(one)) for one in handles]


async def _nobody(_ranks: frozenset[int]) -> Halt | None:
    return None


def torch(place: Place) -> None:
    """Whether torch can use the GPU, and how long its first import takes: the ranks after it find it in memory."""
    if place.preset:
        report(torch_version="", torch_import_seconds=None)  # simulated ranks need none
        return
    if why := why_no_torch(place.torch_python):
        raise CannotRun(f"{why.partition(';')[0]}; --torch-python names an interpreter that has it")
    began = time.monotonic()
    asked = subprocess.run([place.torch_python or sys.executable, "-c", _ASKS_TORCH], capture_output=True, text=True)
    if asked.returncode:
        raise CannotRun(f"torch cannot be imported: {asked.stderr.strip().splitlines()[-1:]}")
    version, cuda, problem = json.loads(asked.stdout.splitlines()[-1])
    report(torch_version=version, torch_cuda=cuda, torch_import_seconds=time.monotonic() - began)
    if problem:
        raise CannotRun(f"torch {version}: {problem}")


_ASKS_TORCH = """
import json, torch, torch.distributed
problem = "" if torch.version.cuda and torch.distributed.is_nccl_available() else "built without CUDA and NCCL"
if not problem:
    try:
        torch.cuda.init()
    except Exception as error:
        problem = str(error)
print(json.dumps([torch.__version__, torch.version.cuda, problem]))
"""


def probes(place: Place) -> None:
    """One cycle with each number of ranks, and one of copies; what they take of the GPU, and leave on it."""
    handles = place.open_driver()
    handle, launcher = handles[0], Launcher(python=place.torch_python)
    left, nccl_version = 0.0, ""
    for name, measure, ranks in CYCLES:
        plan = _plan(place, measure, ranks, _uuids(handles))
        if name.startswith("multi_rank"):
            if why := why_no_sharing(nccl_version):
                report(**{f"{name}_result": f"not tried: {why}"})
                continue
            plan = msgspec.structs.replace(plan, settings=(SHARING,))
        before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        with _highest_memory(handle) as highest:
            result = asyncio.run(launcher.run(plan, _nobody))
        time.sleep(_FREED_SECONDS * place.pace)
        after = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        left = max(left, (after - before) / MIB)
        report(**{f"{name}_memory_mebibytes": (highest() - before) / MIB, "left_mebibytes": left})
        _report_result(name, result, plan)
        nccl_version = result.nccl_version if isinstance(result, Measured) else nccl_version
        _stop_if_stuck(launcher)


def why_no_sharing(nccl_version: str) -> str:
    """Why no ranks of one host can share a GPU; empty if NCCL lets them."""
    numbers = nccl_version.split(".")
    if not nccl_version or not all(map(str.isdecimal, numbers)):
        return f"the version of NCCL is not known ({nccl_version or 'no cycle before has run'})"
    if tuple(map(int, numbers)) < _FIRST_SHARING:
        return f"NCCL {nccl_version} has no {SHARING[0]}, which came with {'.'.join(map(str, _FIRST_SHARING))}"
    return ""


def _stop_if_stuck(launcher: Launcher) -> None:
    """Nothing more is started on a GPU in whose driver a rank sits.

    Raises:
        CannotRun: a rank does.
    """
    if stuck := launcher.stuck:
        report(stuck_ranks=len(stuck))
        raise CannotRun(f"{len(stuck)} ranks sit in the kernel and are left alone")


def _words(result: CycleResult, plan: CyclePlan) -> str:
    """A cycle's result without the identity of the GPU."""
    if isinstance(result, Measured):
        return "right"
    detail = result.detail
    for number, device in enumerate(plan.devices):
        detail = detail.replace(device, f"GPU {number}")
    return f"{type(result).__name__.lower()}: {result.reason}: {detail}"


def _report_result(name: str, result: CycleResult, plan: CyclePlan) -> None:
    report(**{f"{name}_result": _words(result, plan)})
    if not isinstance(result, Measured):
        return
    report(torch_version=result.torch_version, nccl_version=result.nccl_version)
    found: dict[str, Fact] = {
        f"{name}_setup_seconds": result.setup_seconds,
        f"{name}_occupied_seconds": result.occupied_seconds, f"{name}_transports": result.nccl.transports,
    }  # fmt: skip
    report(**found)
    for outcome in result.outcomes:
        step = outcome.step
        if step.purpose == "latency":
            report(**{f"{name}_latency_microseconds": outcome.slowest_seconds * 1e6})
        else:
            report(**{f"{name}_{step.operation}_bytes_per_second": step.size_bytes / outcome.slowest_seconds})


@contextmanager
def _highest_memory(handle: Any) -> Iterator[Any]:
    """Gives what returns the most bytes of the GPU that were in use meanwhile."""
    most, over = [0], threading.Event()

    def watch() -> None:
        while True:
            most[0] = max(most[0], pynvml.nvmlDeviceGetMemoryInfo(handle).used)
            if over.wait(0.05):
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        over.set()
        thread.join()


def waiting(place: Place) -> None:
    """Stop one of two ranks, and sample the GPU and the process of the other one, which waits for it."""
    handles = place.open_driver()
    handle, launcher = handles[0], Launcher(python=place.torch_python)
    plan = _plan(place, "all_reduce", 2, _uuids(handles))
    report(power_idle_watts=_watts(handle), power_limit_watts=_limit(handle))
    result, samples = asyncio.run(_wait_for_stopped(place, handle, launcher, plan))
    if not samples:
        raise CannotRun(f"the ranks did not come as far as their first call: {_words(result, plan)}")
    _report_wait(samples)
    report(waiting_ends=_words(result, plan))
    _stop_if_stuck(launcher)


async def _wait_for_stopped(
    place: Place, handle: Any, launcher: Launcher, plan: CyclePlan
) -> tuple[CycleResult, list[_WaitSample]]:
    stopped: list[int] = []
    samples: list[_WaitSample] = []
    begun = asyncio.Event()

    def stop_one(phase: Phase, step: int, _seconds: float) -> None:
        # Called before both are let into the step: from here on one of them never gets there.
        if phase == "measure" and step == 1 and not stopped:
            os.kill(launcher.pids[1], signal.SIGSTOP)
            stopped.extend(launcher.pids)
            begun.set()

    cycle = asyncio.ensure_future(launcher.run(plan, _nobody, stop_one))
    waiter = asyncio.ensure_future(begun.wait())
    try:
        await asyncio.wait([cycle, waiter], return_when=asyncio.FIRST_COMPLETED)
        if stopped:
            await asyncio.sleep(_SETTLES_SECONDS * place.pace)
            until = time.monotonic() + _WAIT_SECONDS * place.pace
            while time.monotonic() < until or len(samples) < 2:
                samples.append(await asyncio.to_thread(_sample, handle, stopped))
                await asyncio.sleep(_SAMPLE_SECONDS)
    finally:
        waiter.cancel()
        for pid in stopped[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return await cycle, samples


class _WaitSample:
    """The GPU and the two ranks at a moment."""

    def __init__(self, watts: float | None, use: int | None, ranks: list[RankSample | None]) -> None:
        self.time, self.watts, self.use = time.monotonic(), watts, use
        self.waits, self.stopped = ranks


def _sample(handle: Any, pids: list[int]) -> _WaitSample:
    use, _ = answer(pynvml.nvmlDeviceGetUtilizationRates, handle)
    ranks = [read_rank(Path("/proc"), pid) for pid in pids[:2]]
    return _WaitSample(_watts(handle), None if use is None else int(use.gpu), ranks)


def _report_wait(samples: list[_WaitSample]) -> None:
    first, last = samples[0], samples[-1]
    watts = [one.watts for one in samples if one.watts is not None]
    uses = [one.use for one in samples if one.use is not None]
    report(
        waiting_power_watts=statistics.median(watts) if watts else None,
        waiting_use_percent=statistics.median(uses) if uses else None,
        stopped_state="".join(sorted({one.stopped.state for one in samples if one.stopped})),
    )
    seen = [one.waits for one in samples if one.waits]
    report(
        waiting_states="".join(sorted({one.state for one in seen})),
        waiting_where=sorted({one.where for one in seen if one.where}),
        waiting_system_calls=sorted({one.call for one in seen if one.call}),
    )
    if first.waits and last.waits:
        seconds = last.time - first.time
        report(
            waiting_cores=(last.waits.cpu - first.waits.cpu) / seconds,
            waiting_switches_per_second=(last.waits.switches - first.waits.switches) / seconds,
        )


def _watts(handle: Any) -> float | None:
    milliwatts, error = answer(pynvml.nvmlDeviceGetPowerUsage, handle)
    return None if error else milliwatts / 1000


def _limit(handle: Any) -> float | None:
    milliwatts, error = answer(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return None if error else milliwatts / 1000
