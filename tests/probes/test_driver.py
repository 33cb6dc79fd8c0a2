"""The driver of probes, which the daemon and commands share: the plan, the gate, and the watch over the ranks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.config.settings import Config, Paths, Probe, Probes
from commwatch.config.simulated import SimulationPlan
from commwatch.node.store import Store
from commwatch.node.topology.model import Topology
from commwatch.probes.gate.decision import GateFacts, SchedulerAnswer, SchedulerFacts
from commwatch.probes.gate.watch import Halt, Watch
from commwatch.probes.node import ProbeNode
from commwatch.probes.plan import CyclePlan, Skipped
from support.core import SLOTS, NodeReads, block

SLURM = SchedulerFacts(slurm=SchedulerAnswer("free"))


class Reads(NodeReads):
    """A node with a driver; two processes of its reader may hang."""

    hanging = 0

    def stuck_readers(self) -> int:
        return self.hanging


async def nothing() -> None:
    """There is nothing to read."""


@pytest.fixture
def reads() -> Reads:
    return Reads(nothing, nothing)


@pytest.fixture
def node(tmp_path: Path, reads: Reads) -> ProbeNode:
    """A simulated node with two GPUs."""
    store = Store()
    for index, slot in enumerate(SLOTS):
        info = ("commwatch_gpu_info", (str(index), slot, f"GPU-{index}", "1", "H100", "hopper"))
        store.put("nvml_identity", slot, block({info: 1}), float("inf"))
    paths = Paths(procfs=str(tmp_path / "proc"), sysfs=str(tmp_path / "sys"))
    simulation = SimulationPlan("h100x8", "", 0.0, "", "")
    return ProbeNode(Config(paths=paths, probes=Probes()), store, tmp_path, simulation, reads)


def test_ranks_are_on_the_gpus_that_a_probe_names_in_its_order(node: ProbeNode) -> None:
    """Of all GPUs where it names none; one that is not here is left out, and is for the gate to miss."""
    found = [node.prospect("ring", Probe(gpus=gpus)) for gpus in ((), (1, 0), (7, 1))]

    assert [one.plan.devices for one in found] == [("GPU-0", "GPU-1"), ("GPU-1", "GPU-0"), ("GPU-1",)]
    assert [[gpu.index for gpu in one.gpus] for one in found] == [[0, 1], [1, 0], [1]]
    assert node.facts((7, 1)).missing_gpus == (7,)


def test_nothing_is_expected_of_gloo_which_measures_the_host(tmp_path: Path, reads: Reads) -> None:
    """Whatever lies between the GPUs of the node."""
    node = ProbeNode(Config(), Store(), tmp_path, None, reads)

    found = node.prospect("host", Probe(backend="gloo"), Topology())

    assert (found.gpus, found.paths, found.expected) == ((), None, {})


def test_a_reader_that_hangs_in_the_driver_starts_no_rank(node: ProbeNode, reads: Reads) -> None:
    """As a rank that does: its GPU would take the next one too."""
    reads.hanging = 2

    result = asyncio.run(node.run(node.prospect("ring", Probe()).plan, node.facts()))

    assert isinstance(result, Skipped)
    assert (result.reason, result.detail.partition(": ")[2]) == ("previous_stuck", "2 processes of the driver's reader")


@pytest.mark.parametrize(("ignored", "halt"), [(False, "Slurm job 17 came to this node"), (True, "")])
def test_a_cycle_gives_way_to_a_job_of_the_scheduler_that_was_asked(
    node: ProbeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: bool, halt: str
) -> None:
    """Between the question and the ranks a job may come; inside a job of one's own it is left out."""
    looks: list[Halt | None] = []

    async def run(plan: CyclePlan, watch: Watch, *_: Any) -> None:
        looks.append(await watch(frozenset()))

    monkeypatch.setattr(node.launcher, "run", run)
    gloo = msgspec.structs.replace(node.prospect("host", Probe()).plan, backend="gloo")
    (tmp_path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_17").mkdir(parents=True)

    asyncio.run(node.run(gloo, replace(GateFacts(), scheduler=SchedulerFacts() if ignored else SLURM)))

    assert looks == [Halt("scheduler_busy", halt) if halt else None]
