"""Probes by hand on a rehearsed node: the command's own code, over ranks that are asked for their times only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.node.gpus_now import GpusNow
from commwatch.node.run import Collector
from commwatch.node.store import Store
from commwatch.node.topology.model import Topology
from commwatch.probes.by_hand import cycles
from commwatch.probes.by_hand.node import NodeByHand
from commwatch.probes.gate.decision import GateFacts, SchedulerFacts
from commwatch.probes.node import ProbeNode
from commwatch.probes.plan import CyclePlan, CycleResult

CYCLE_SECONDS = 5.0
"""That pass while a cycle runs."""


class Rehearsed(Protocol):
    """What is asked of the node."""

    time: float
    booted_at: float
    preset: str
    store: Store

    @property
    def roots(self) -> tuple[str, str]: ...

    @property
    def collectors(self) -> Sequence[Collector]: ...

    def outcome(self, plan: CyclePlan) -> CycleResult: ...


def probe_by_hand(node: Rehearsed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the commands that probe find this node, as its collectors read it last, and its ranks."""

    class Node(NodeByHand):
        def __init__(self, config: Config) -> None:
            plan = SimulationPlan(node.preset, "", node.booted_at, *node.roots)
            super().__init__(config, plan)
            self.probes = ProbeNode(config, node.store, self._state, plan, self)
            monkeypatch.setattr(self.probes.launcher, "run", run)

        async def facts(
            self, plan: CyclePlan, wanted: tuple[int, ...] = (), *, ignore_scheduler: bool = False
        ) -> GateFacts:  # fmt: skip
            return GateFacts(
                no_torch="", initial_pid_namespace=True, scheduler=SchedulerFacts(),
                gpus=GpusNow(node.store).facts(float("-inf")),
            )  # fmt: skip

    async def run(plan: CyclePlan, *_: Any) -> CycleResult:  # watch and progress: nothing happens meanwhile
        node.time += CYCLE_SECONDS
        for one in node.collectors:  # they go on reading meanwhile
            one.last_reading = node.time if one.last_reading is not None else None
        return node.outcome(plan)

    @asynccontextmanager
    async def rehearsed(config: Config) -> AsyncIterator[NodeByHand]:
        here = Node(config)
        here.topology = await here.probes.read_topology() or Topology()
        yield here

    monkeypatch.setattr(cycles, "node_by_hand", rehearsed)
