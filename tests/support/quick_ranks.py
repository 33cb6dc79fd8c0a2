"""A probe of a simulated node in this process: its driver, its PCI tree and what its ranks measure, without others."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import pynvml
import pytest

from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.node.run import Collected, failed
from commwatch.node.topology.sysfs import SysfsFacts, read_sysfs
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.measure import measure
from commwatch.probes.plan import CyclePlan, Measured, StepOutcome
from commwatch.probes.rank_plan import RankResult
from commwatch.readings import Absence, SourceUnavailable
from commwatch.rehearsal import rehearsal
from commwatch.sources.base import Source
from commwatch.workers.by_hand import nvml_reader
from commwatch.workers.child import make_source
from commwatch.workers.reader import Reader
from commwatch_exporters.snapshot import Block, Layout
from commwatch_rehearsal.simulation.rank import SimulatedGroup
from support.core import KEYS


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
    """Have commands read the PCI tree in this process; tests of ``commwatch topology`` have the child that reads it."""

    async def sysfs(sysfs: str, procfs: str, deadline: float) -> SysfsFacts:
        return read_sysfs(Path(sysfs), Path(procfs))

    for module in ("commwatch.probes.node", "commwatch.workers.by_hand"):
        monkeypatch.setattr(f"{module}.ask_sysfs", sysfs)


class _DriverHere(Reader):
    """Reads the driver of a simulated node without a worker; a call that hangs would hang the test."""

    _source: Source | None = None

    async def now(self, collector: str) -> Collected:
        """See ``Reader``."""
        try:
            if self._source is None:
                self._source = self._open()
            batch = self._source.collect(KEYS[collector][1])
        except SourceUnavailable as error:
            await self.stop()
            return failed(collector, Absence("", error.reason, error.detail), error)
        blocks = {one.device: Block(Layout(one.series), one.values, one.time) for one in batch.readings}
        return Collected(blocks, batch.absences, 0.0, batch.events, batch.occupants)

    def _open(self) -> Source:
        plan = self.settings.plan
        assert plan.simulation is not None
        node = rehearsal().make_node(plan.simulation)
        rehearsal().install_driver(node)
        source = make_source("nvml", plan, node)
        source.open(lambda device: None, frozenset(), None)
        return source

    async def stop(self, deadline: float = 0.0) -> None:
        """See ``Reader``."""
        if self._source is not None:
            self._source.close()
            self._source = None


def read_driver_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands read a simulated driver in this process; tests of ``commwatch topology`` have the worker for it."""

    def reader(config: Config, simulation: SimulationPlan | None) -> Reader:
        usual = nvml_reader(config, simulation)
        return usual if simulation is None else _DriverHere(usual.settings)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    for module in ("commwatch.probes.by_hand.node", "commwatch.workers.by_hand"):
        monkeypatch.setattr(f"{module}.nvml_reader", reader)


def measure_quickly(monkeypatch: pytest.MonkeyPatch) -> list[CyclePlan]:
    """Have every cycle measured in this process; all of them give a result. Returns the plans, as they come."""
    read_driver_here(monkeypatch)
    plans: list[CyclePlan] = []

    async def run(launcher: Launcher, plan: CyclePlan, *watch_and_progress: Any) -> Measured:
        plans.append(plan)
        return Measured(
            finished_at=time.time(), occupied_seconds=1.0, setup_seconds=0.5, outcomes=outcomes_of(plan),
            nccl_version="simulated",
        )  # fmt: skip

    monkeypatch.setattr(Launcher, "run", run)
    return plans
