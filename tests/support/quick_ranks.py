"""A probe of a simulated node in this process: what its ranks measure, and its PCI tree, without processes."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from commwatch.node.topology.sysfs import SysfsFacts, read_sysfs
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.measure import measure
from commwatch.probes.plan import CyclePlan, Measured, StepOutcome
from commwatch.probes.rank_plan import RankResult
from commwatch_rehearsal.simulation.rank import SimulatedGroup


class PatientGroup(SimulatedGroup):
    """The ranks of a simulated cycle, without the time that their calls take."""

    def _spend(self, seconds: float) -> None:
        """No waiting."""
        self._spent_seconds += seconds


def result_of(plan: CyclePlan, rank: int) -> RankResult:
    """What one rank measures."""
    own = plan.rank_plan(rank, "")
    return measure(own, PatientGroup(own), lambda phase: None, lambda gate: None)


def outcomes_of(plan: CyclePlan) -> tuple[StepOutcome, ...]:
    """What each step gives, by the ranks whose clock counts."""
    results = [result_of(plan, rank) for rank in range(plan.ranks)]
    return tuple(
        StepOutcome(
            step=step,
            seconds=tuple(
                median(result.timings[place]) if rank in step.clocks else None for rank, result in enumerate(results)
            ),
        )
        for place, step in enumerate(plan.steps)
    )


def read_sysfs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have probes read the PCI tree in this process; tests of ``commwatch topology`` have the child that reads it."""

    async def sysfs(sysfs: str, procfs: str, deadline: float) -> SysfsFacts:
        return read_sysfs(Path(sysfs), Path(procfs))

    monkeypatch.setattr("commwatch.probes.node.ask_sysfs", sysfs)


def measure_quickly(monkeypatch: pytest.MonkeyPatch) -> list[CyclePlan]:
    """Have every cycle measured in this process; all of them give a result. Returns the plans, as they come."""
    plans: list[CyclePlan] = []

    async def run(launcher: Launcher, plan: CyclePlan, *watch_and_progress: Any) -> Measured:
        plans.append(plan)
        return Measured(
            finished_at=time.time(), occupied_seconds=1.0, setup_seconds=0.5, outcomes=outcomes_of(plan),
            nccl_version="simulated",
        )  # fmt: skip

    monkeypatch.setattr(Launcher, "run", run)
    return plans
