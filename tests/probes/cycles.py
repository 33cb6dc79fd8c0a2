"""Plans, launchers, watches and records for the tests of the probes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commwatch.children import own_module
from commwatch.node.starvation import Sample, Stall, Starvation
from commwatch.probes.cycle import launch
from commwatch.probes.cycle.launch import Cycle, Launcher
from commwatch.probes.cycle.lock import ProbeLock
from commwatch.probes.cycle.process import RankProcess
from commwatch.probes.gate.watch import Halt, Watch
from commwatch.probes.plan import CyclePlan, CycleResult, Deadlines, Failed
from commwatch.probes.rank_plan import PHASES, Phase, Step
from commwatch.workers.process_state import process_state
from support.waiting import PATIENCE_SECONDS, until

PROCFS = Path("/proc")

LATENCY_BYTES = 8
BANDWIDTH_BYTES = 2**20


def collective_steps(
    ranks: int = 2, latency_bytes: int = LATENCY_BYTES, bandwidth_bytes: int = BANDWIDTH_BYTES
) -> tuple[Step, ...]:
    """The two steps of an all-reduce over all ranks."""
    members = tuple(range(ranks))
    return (
        Step(operation="all_reduce", purpose="latency", size_bytes=latency_bytes, members=members),
        Step(operation="all_reduce", purpose="bandwidth", size_bytes=bandwidth_bytes, members=members),
    )


def deadlines(**changes: float) -> Deadlines:
    """Generous ones, but for those given."""
    return Deadlines(**(dict.fromkeys(("start", "rendezvous", "setup", "measure"), PATIENCE_SECONDS) | changes))


class Thrashing(Starvation):
    """Of a node whose tasks all wait for memory all the time."""

    thrashes = True

    def sample(self, pid: int) -> Sample:
        now = super().sample(pid)
        return now._replace(stall=Stall(now.time, now.time)) if self.thrashes else now


class _Hurry:
    """A clock of cycles that jumps ahead once one rank is in the phase in which it hangs and all others are further."""

    def __init__(self, rank: int, phase: Phase) -> None:
        self.cycle: Cycle | None = None
        self._rank, self._phase = rank, phase
        self._ahead = 0.0

    def monotonic(self) -> float:
        """Seconds; an hour more at each look from then on."""
        if self.cycle is not None and self.cycle._ranks and self._hangs(self.cycle._ranks):
            self._ahead += 3600.0
        return time.monotonic() + self._ahead

    def time(self) -> float:
        """The wall clock, as it is."""
        return time.time()

    def _hangs(self, ranks: Sequence[RankProcess]) -> bool:
        reached = [(PHASES.index(one.phase), one.gate) for one in ranks]
        own = reached.pop(self._rank)
        # Gate 1 is before the first step that is measured.
        least = (PHASES.index(self._phase), 1 if self._phase == "measure" else -1)
        return ranks[self._rank].phase == self._phase and own >= least and all(one > own for one in reached)


def hurry(monkeypatch: pytest.MonkeyPatch, rank: int, phase: Phase) -> None:
    """Let the deadline of a phase pass once only the rank that hangs in it is left: no test waits for one.

    Args:
        monkeypatch: puts the clock of cycles back.
        rank: the one that hangs.
        phase: in which it does.
    """
    clock, start = _Hurry(rank, phase), Cycle._start_ranks

    async def note_and_start(one: Cycle) -> None:
        clock.cycle = one
        await start(one)

    monkeypatch.setattr(Cycle, "_start_ranks", note_and_start)
    monkeypatch.setattr(launch, "time", clock)


def cycle_plan(**changes: Any) -> CyclePlan:
    """A plan of two simulated ranks that measure an all-reduce, with generous deadlines."""
    values: dict[str, Any] = {
        "probe": "all_reduce",
        "backend": "simulated",
        "measure": "all_reduce",
        "ranks": 2,
        "devices": ("GPU-a", "GPU-b"),
        "steps": collective_steps(changes.get("ranks", 2)),
        "timed_seconds": 0.1,
        "deadlines": deadlines(),
    }
    return CyclePlan(**(values | changes))


def scripted(temporary: Path, procfs: Path = PROCFS, lock: ProbeLock | None = None, **script: Any) -> Launcher:
    """A launcher whose ranks behave as the script says (see ``scripted_rank``)."""
    command = own_module("probes.scripted_rank", json.dumps(script))
    return Launcher(procfs=procfs, rank_command=command, temporary=temporary, lock=lock)


async def all_quiet(pids: frozenset[int]) -> Halt | None:
    """A watch over a node on which nothing ever happens."""
    del pids
    return None


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    return process_state(PROCFS, pid) not in (None, "Z")


def left_in(temporary: Path) -> list[int]:
    """Processes that run and were started by a launcher over this folder: ranks, their guards and their children."""
    mark = f"HOME={temporary}/".encode()
    found = []
    for entry in PROCFS.iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # ended meanwhile, or not ours
                continue
            if any(variable.startswith(mark) for variable in variables):
                found.append(int(entry.name))
    return found


def wait_until_gone(temporary: Path) -> None:
    """Until all processes over this folder, and all folders in it, have disappeared."""
    until(lambda: not left_in(temporary) and not any(temporary.glob("commwatch-probe-*")))


def run(launcher: Launcher, plan: CyclePlan, watch: Watch = all_quiet) -> tuple[CycleResult, list[str]]:
    """The result of a cycle, and the phases that it went through."""
    phases: list[str] = []
    return asyncio.run(
        launcher.run(plan, watch, lambda phase, step, _: phases.append(phase) if not step else None)
    ), phases


def failure(launcher: Launcher, plan: CyclePlan, watch: Watch = all_quiet) -> Failed:
    """The failure that a cycle ends with."""
    result, _ = run(launcher, plan, watch)
    assert isinstance(result, Failed)
    return result
