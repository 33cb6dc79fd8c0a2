"""A simulated node whose probes have run once: what its daemon would expose, made in this process."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import pytest

from commwatch.config.settings import Probes
from commwatch.node.gpus_now import ProbeGpu
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.nvlink import driver_facts
from commwatch.node.topology.reach import GpuPaths, gpu_paths
from commwatch.node.topology.sysfs import read_sysfs
from commwatch.probes.node import Prospect
from commwatch.probes.plan import CyclePlan, Measured, NcclNotes, StepOutcome
from commwatch.probes.rank_plan import Step
from commwatch.probes.results.judgement import rules_of
from commwatch.probes.results.pair_record import PairRecord
from commwatch.probes.results.record import ProbeRecord, Reading
from commwatch.probes.results.records import surroundings
from commwatch.probes.workload import plan_cycle
from commwatch.simulation.node import SimulatedNode
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Block, Layout, Snapshot
from support.facts import NOW, shipped
from support.whole_node import whole_node

_BOOTED_AT = NOW - 3600
_WARM_CALLS = (30, 33, 36)
"""Calls of a rank whose clocks have risen; their median counts, as of the timings of a cycle."""


class ProbedNode:
    """One simulated node, and its times under any faults.

    Faults touch the times of the probes alone; what the driver and the kernel show is that of the healthy node.
    """

    def __init__(self, preset: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._preset = preset
        self._faults_file = folder / "faults.yaml"
        with whole_node(preset, folder, monkeypatch) as node:
            self._hardware = node.snapshot()
        tree = read_sysfs(folder / "sysfs", folder / "procfs")
        self._topology = build_topology(tree, driver_facts(Node(self._hardware)))
        self._gpus = tuple(
            [ProbeGpu(int(gpu.index), gpu.uuid, gpu.address, gpu.name) for gpu in Node(self._hardware).gpus]
        )
        self._paths = gpu_paths(self._topology, [gpu.pci_bus_id for gpu in self._gpus])

    def snapshot(self, faults: str = "") -> Snapshot:
        """What is exposed after one cycle of each default probe.

        Args:
            faults: YAML, in force from the start.
        """
        self._faults_file.write_text(faults, encoding="utf-8")
        os.utime(self._faults_file, (_BOOTED_AT, _BOOTED_AT))
        node = SimulatedNode(self._preset, self._faults_file, _BOOTED_AT, lambda: NOW)
        readings = [reading for name in Probes().definitions for reading in self._readings(name, node)]
        series = {(metric, labels): value for metric, labels, value in readings}
        return Snapshot([*self._hardware.blocks, Block(Layout(series), list(series.values()), 0.0)])

    def _readings(self, name: str, node: SimulatedNode) -> list[Reading]:
        probe = Probes().definitions[name]
        paths: GpuPaths | None = self._paths
        plan = plan_cycle(
            name,
            probe,
            Probes(),
            backend="simulated",
            devices=tuple(gpu.uuid for gpu in self._gpus),
            shared_links=None if paths is None else paths.shared_links,
        )
        rules, prospect = rules_of(probe, shipped()), Prospect(plan, self._gpus, self._topology, paths)
        if plan.measure == "pairs":
            pairs = PairRecord(plan, rules)
            if plan.steps:
                pairs.apply_pairs(cycle_of(plan, node, NOW), surroundings(prospect, probe), NOW)
            return pairs.readings(NOW)
        record = ProbeRecord(plan, rules)
        if plan.steps:
            record.apply(cycle_of(plan, node, NOW), prospect.expected(probe), prospect.names, NOW)
        return record.readings(NOW)


def cycle_of(plan: CyclePlan, node: SimulatedNode, now: float) -> Measured:
    """What a cycle on a simulated node would come to, without the processes of its ranks.

    Args:
        plan: with at least one step.
        node: none of whose faults keeps the cycle from its end.
        now: seconds since 1970.
    """
    return Measured(
        finished_at=now,
        occupied_seconds=5.0,
        setup_seconds=3.0,
        outcomes=tuple(
            StepOutcome(
                step=step,
                seconds=tuple(_seconds(plan, step, rank, node) if rank in step.clocks else None
                              for rank in range(plan.ranks)),
            )
            for step in plan.steps
        ),
        torch_version="",
        nccl_version="simulated",
        nccl=NcclNotes(),
    )  # fmt: skip


def _seconds(plan: CyclePlan, step: Step, rank: int, node: SimulatedNode) -> float:
    partner = next((source + destination - rank for source, destination in step.pairs if rank in (source, destination)),
                   None)  # fmt: skip
    # The clock of a small message is that of its source, and half of the round trip comes back.
    directions = (True, False) if step.purpose == "latency" and step.pairs else (False,)
    return sum(
        median(
            node.operation_seconds(step.operation, step.size_bytes, step.members, rank, call, partner=partner,
                                   sends=sends, both_ways=step.both_ways, devices=plan.devices)
            for call in _WARM_CALLS
        )
        for sends in directions
    ) / len(directions)  # fmt: skip
