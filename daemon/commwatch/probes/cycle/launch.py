"""Probe cycles one after another, and the ranks that could not be ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from commwatch.node.starvation import Starvation
from commwatch.probes.cycle.cycle import Cycle, Progress, Surroundings
from commwatch.probes.cycle.environment import rank_command as own_rank_command
from commwatch.probes.cycle.lock import ProbeLock
from commwatch.probes.cycle.outcome import device_of
from commwatch.probes.cycle.process import RankProcess
from commwatch.probes.gate.watch import Watch
from commwatch.probes.plan import CyclePlan, CycleResult, YieldReason

_GIVE_WAY_SECONDS = 2.0


class StuckRank(NamedTuple):
    """A rank of an earlier cycle that sits in the kernel."""

    pid: int
    device: str
    """Its GPU as the plan names it; empty without."""


class EmptyPlanError(ValueError):
    """A plan that leaves nothing to run."""


class Launcher:
    """Runs probe cycles, one at a time, and keeps an eye on ranks that could not be ended."""

    def __init__(
        self,
        *,
        procfs: Path = Path("/proc"),
        python: str = "",
        rank_command: Sequence[str] = (),
        temporary: Path | None = None,
        lock: ProbeLock | None = None,
        starvation: Starvation | None = None,
    ) -> None:
        """Nothing is started.

        Args:
            procfs: where processes show their state.
            python: another interpreter for ranks that need torch (``probes.python``).
            rank_command: command line of a rank process on our own; empty: the usual one.
            temporary: folder for the private folders of the cycles; the system's by default.
            lock: held while any rank lives, so that no other process of commwatch runs a cycle.
            starvation: ranks that were late for want of CPU or memory have not failed; by default that is not asked.
        """
        command = tuple(rank_command or own_rank_command())
        self._surroundings = Surroundings(procfs, python, command, temporary, lock, starvation)
        self._cycle: Cycle | None = None
        self._stuck: list[tuple[RankProcess, str]] = []
        """Each with its GPU."""

    @property
    def stuck(self) -> tuple[int, ...]:
        """Process ids of ``stuck_ranks``."""
        return tuple(rank.pid for rank in self.stuck_ranks)

    @property
    def stuck_ranks(self) -> tuple[StuckRank, ...]:
        """Ranks of earlier cycles that sit in the kernel; those that came back are ended and reaped."""
        self._stuck = [(rank, device) for rank, device in self._stuck if not rank.end_if_back()]
        return tuple(StuckRank(rank.pid, device) for rank, device in self._stuck)

    def take_over(self, earlier: Launcher) -> None:
        """Count the stuck ranks of another launcher, which launches nothing any more, among ours."""
        self._stuck = earlier._stuck

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks of the cycle under way; empty between cycles."""
        return self._cycle.pids if self._cycle is not None else ()

    @property
    def running(self) -> bool:
        """Whether a cycle is under way."""
        return self._cycle is not None

    async def run(self, plan: CyclePlan, watch: Watch, progress: Progress | None = None) -> CycleResult:
        """Run one cycle to its end; no process, file or port is left, but for ranks that are stuck in the kernel.

        Args:
            plan: what the ranks do.
            watch: looks at the node before the ranks start, before each gate, and again and again; told of our ranks'
                process ids. Where it raises, the node is not known to be free, and the cycle gives way.
            progress: called with each phase that all ranks have reached, in order, and with each step.

        Raises:
            EmptyPlanError: the plan has no ranks, no steps, or no GPUs for NCCL.
            RuntimeError: another cycle is under way.
            Exception: what ``progress`` raises; the ranks have ended then.
        """
        if not plan.ranks or not plan.steps or (plan.backend == "nccl" and not plan.devices):
            counts = f"{plan.ranks} ranks, {len(plan.steps)} steps, {len(plan.devices)} GPUs"
            raise EmptyPlanError(f"probe {plan.probe} has nothing to run over {plan.backend}: {counts}")
        if self._cycle is not None:
            raise RuntimeError("a probe cycle is under way")
        cycle = self._cycle = Cycle(plan, watch, progress, self._surroundings)
        try:
            return await cycle.run()
        finally:
            self._stuck += [(rank, device_of(plan, rank.rank)) for rank in cycle.stuck]
            self._cycle = None
            cycle.over.set()

    async def cancel(self, reason: YieldReason, detail: str) -> bool:
        """Make the cycle under way give way; False if a rank is still there after two seconds."""
        if (cycle := self._cycle) is not None:
            cycle.give_way(reason, detail)
            try:
                await asyncio.wait_for(cycle.over.wait(), _GIVE_WAY_SECONDS)
            except asyncio.TimeoutError:
                return False
        return not self.stuck
