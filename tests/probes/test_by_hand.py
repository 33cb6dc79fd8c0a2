"""A node as a command without a daemon sees it: GPUs, topology, what the gate asks, and the watch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commwatch.config.settings import Config, NvmlSection, Paths, Probes, Simulation, Sources
from commwatch.errors import CommwatchError
from commwatch.probes.by_hand.node import NodeByHand, node_by_hand
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.gate.decision import SchedulerFacts, decide
from commwatch.probes.gate.watch import Halt
from commwatch.probes.plan import CyclePlan, Yielded
from commwatch.probes.workload import plan_cycle
from commwatch.state.directory import state_path
from probes.cycles import cycle_plan
from support.waiting import PATIENCE_SECONDS, comes


def settings(folder: Path, preset: str = "rtx3090x4", faults: str = "") -> Config:
    """A configuration of a simulated node, or with an empty preset of a machine without anything."""
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "sys").mkdir(exist_ok=True)
    if faults:
        (folder / "faults.yaml").write_text(faults)
    config = Config(
        paths=Paths(state=str(folder / "state"), procfs=str(folder / "proc"), sysfs=str(folder / "sys")),
        simulation=Simulation(preset=preset, faults=str(folder / "faults.yaml") if faults else ""),
    )
    state_path(config).mkdir(parents=True)
    return config


def children() -> set[int]:
    """Processes that this one has started and that run."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(process.name))
    return found


def visit(config: Config, body: Callable[[NodeByHand], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine with the node open."""

    async def run() -> None:
        async with node_by_hand(config) as node:
            await body(node)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


PLAN: CyclePlan = cycle_plan()
GLOO: CyclePlan = cycle_plan(backend="gloo", devices=())


def test_a_simulated_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs by index, topology, free GPUs, and a watch that finds nothing; neither process nor file is left behind."""
    config = settings(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    started: set[int] = set()

    async def body(node: NodeByHand) -> None:
        started.update(children())
        assert node.driver
        assert node.simulation is not None
        assert node.simulation.preset == "rtx3090x4"
        assert [gpu.index for gpu in node.gpus] == [0, 1, 2, 3]
        assert len({gpu.uuid for gpu in node.gpus}) == 4
        assert {gpu.name for gpu in node.gpus} == {"NVIDIA GeForce RTX 3090"}
        topology = node.topology
        assert [gpu.address for gpu in topology.gpus] == [gpu.pci_bus_id for gpu in node.gpus]
        assert topology.nvswitches == ()
        facts = await node.facts(PLAN)
        assert decide(PLAN, facts) is None
        assert await node.watch(PLAN)(frozenset()) is None
        assert node.problems == ()

    visit(config, body)

    assert started
    assert not started & children()
    assert os.listdir(temporary) == []


def test_a_machine_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no GPUs and is no failure: gloo can be probed there."""
    monkeypatch.setattr("commwatch.probes.by_hand.node.nvidia_driver_present", lambda procfs: False)

    async def body(node: NodeByHand) -> None:
        assert (node.driver, node.simulation, node.gpus) == (False, None, [])
        facts = await node.facts(GLOO)
        assert facts.gpus == ()
        assert await node.watch(GLOO)(frozenset()) is None

    visit(settings(tmp_path, preset=""), body)


def test_schedulers_are_asked_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a job of one's own the operator leaves them out, at the gate and in the watch."""
    monkeypatch.setenv("PATH", str(tmp_path))
    config = settings(tmp_path, preset="")
    (tmp_path / "proc/100").mkdir()
    (tmp_path / "proc/100/comm").write_text("slurmd\n")
    (tmp_path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_17").mkdir(parents=True)

    async def body(node: NodeByHand) -> None:
        asked = await node.facts(GLOO)
        skip = decide(GLOO, replace(asked, no_torch=""))
        assert skip == ("scheduler_busy", "Slurm job 17 runs on this node")
        assert await node.watch(GLOO)(frozenset()) == Halt("scheduler_busy", "Slurm job 17 came to this node")
        ignoring = await node.facts(GLOO, ignore_scheduler=True)
        assert ignoring.scheduler == SchedulerFacts()
        assert await node.watch(GLOO)(frozenset()) is None

    visit(config, body)


def test_a_source_that_is_disabled(tmp_path: Path) -> None:
    """There are no GPUs to probe then, and it is said why."""
    config = settings(tmp_path)
    config = Config(
        paths=config.paths, simulation=config.simulation, sources=Sources(nvml=NvmlSection(enabled=False)),
        probes=Probes(),
    )  # fmt: skip

    async def body(node: NodeByHand) -> None:
        assert node.gpus == []
        assert node.problems == ("sources.nvml is disabled in the configuration",)

    visit(config, body)


def test_a_driver_that_is_gone_is_said(tmp_path: Path) -> None:
    """A driver without an answer leaves a problem, and a gate that cannot be asked."""

    async def body(node: NodeByHand) -> None:
        assert node.gpus == []
        assert "no_driver" in node.problems[0]
        with pytest.raises(CommwatchError, match="the GPUs cannot be read: no_driver"):
            await node.facts(PLAN)

    visit(settings(tmp_path, faults="- {fault: driver_reload, at: 0s, for: 1h}"), body)


def test_a_job_that_arrives_ends_the_cycle_within_a_second(tmp_path: Path) -> None:
    """The whole way: simulated driver, worker, watch, launcher, real rank processes that hang."""
    hang = "- {fault: probe_hang, phase: measure, at: 0s}\n"
    config = settings(tmp_path, "a10x2", hang)

    async def body(node: NodeByHand) -> None:
        probe = config.probes.definitions["all_reduce"]
        devices = tuple(gpu.uuid for gpu in node.gpus)
        plan = plan_cycle(
            "all_reduce", probe, config.probes, backend="simulated", devices=devices, simulation=node.simulation
        )
        measuring = asyncio.Event()

        def progress(phase: str, step: int, seconds: float) -> None:
            if phase == "measure":
                measuring.set()

        watch, looks = node.watch(plan), 0

        async def counted(pids: frozenset[int]) -> Halt | None:
            nonlocal looks
            looks += 1
            return await watch(pids)

        launcher = Launcher(procfs=Path("/proc"))
        cycle = asyncio.create_task(launcher.run(plan, counted, progress))
        await measuring.wait()
        before = looks
        await comes(lambda: cycle.done() or looks > before + 2)  # looks that find nothing
        assert not cycle.done()

        (tmp_path / "new.yaml").write_text(f"{hang}- {{fault: job, gpu: 1, at: 0s}}\n")
        (tmp_path / "new.yaml").replace(tmp_path / "faults.yaml")
        result = await cycle

        assert isinstance(result, Yielded)
        assert result.reason == "process_appeared"
        assert result.detail == f"process 4100001 came to GPU {node.gpus[1].pci_bus_id}"

    visit(config, body)
