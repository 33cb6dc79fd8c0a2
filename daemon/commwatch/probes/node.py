"""What of this node a probe cycle rests on: its GPUs, how they are joined, and whether somebody else needs them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from commwatch.config.settings import Config, Probe
from commwatch.config.simulated import SimulationPlan
from commwatch.node.gpus_now import GpuFacts, GpusNow, ProbeGpu
from commwatch.node.store import Store
from commwatch.node.topology.model import Topology
from commwatch.node.topology.reach import GpuPaths
from commwatch.probes.cycle.interpreter import why_no_torch
from commwatch.probes.cycle.launch import StuckRank
from commwatch.probes.gate.decision import GateFacts, SchedulerFacts
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.gate.node_watch import NodeWatch, job_cgroup_root
from commwatch.probes.gate.schedulers import initial_pid_namespace, scheduler_facts
from commwatch.probes.plan import CyclePlan
from commwatch.probes.rank_plan import SimulatedNodePlan
from commwatch.probes.results.expected import Expected, expected_of_step
from commwatch.probes.results.history import GpuName
from commwatch.probes.topology import ProbeTopology
from commwatch.probes.workload import choose_backend, plan_cycle


class ReadNode(Protocol):
    """Who reads the node for probes, beside the cadence of the collectors."""

    def is_driver_expected(self) -> bool:
        """Whether this node has an NVIDIA driver, or should have one."""

    async def read_gpus(self) -> None:
        """Read use, memory, modes and processes of the GPUs into the store now."""

    async def read_processes(self) -> None:
        """Read the processes on the GPUs into the store now."""

    def stuck_readers(self) -> int:
        """How many processes of the readers hang in the driver."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """A cycle as it would run on the GPUs that are here."""

    plan: CyclePlan
    gpus: tuple[ProbeGpu, ...]
    """Those of the plan, by rank; empty without GPUs."""
    topology: Topology | None = None
    """None where it is not known."""
    paths: GpuPaths | None = None
    """What lies between the GPUs; None where not known."""

    @property
    def names(self) -> tuple[GpuName, ...]:
        """What the GPUs are called in labels, by rank."""
        return tuple(GpuName(str(gpu.index), gpu.pci_bus_id) for gpu in self.gpus)

    def expected(self, probe: Probe) -> dict[int, Expected]:
        """What the steps of the plan should give, by their place, as far as something can be said."""
        found = {
            place: expected_of_step(
                step, self.paths, configured=probe.expected_bandwidth, backend=self.plan.backend
            )
            for place, step in enumerate(self.plan.steps)
        }  # fmt: skip
        return {place: one for place, one in found.items() if one is not None}


def simulated_node(plan: SimulationPlan | None) -> SimulatedNodePlan | None:
    """The simulated node as ranks get it; None for a real one."""
    if plan is None:
        return None
    return SimulatedNodePlan(preset=plan.preset, faults_file=plan.faults_file or None, started_at=plan.started_at)


class ProbeNode:
    """This node, for all probes of a configuration."""

    def __init__(
        self, settings: Config, store: Store, state: Path, simulation: SimulationPlan | None, read: ReadNode
    ) -> None:
        """Nothing is read.

        Args:
            settings: the whole configuration.
            store: with what the collectors know.
            state: the state directory.
            simulation: the simulated node; None on a real one.
            read: asks the collectors.
        """
        self._settings = settings
        self._simulation = simulation
        self._read = read
        self._view = GpusNow(store)
        self._procfs = Path(settings.paths.procfs)
        self._sysfs = Path(settings.paths.sysfs)
        roots = simulation or settings.paths
        self._topology = ProbeTopology(store, roots.sysfs, roots.procfs)
        self._hold = HoldFile(state)

    def prospect(self, name: str) -> Prospect:
        """A probe's cycle, without a look at how the GPUs are joined."""
        return self._prospect(name, None)

    async def joined_prospect(self, name: str) -> Prospect:
        """A probe's cycle, with what lies between its GPUs; the PCI tree may be read for it, in a child."""
        plain = self.prospect(name)
        if not plain.gpus:
            return plain
        return self._prospect(name, await self._topology.read([gpu.pci_bus_id for gpu in self._view.gpus()]))

    def _prospect(self, name: str, topology: Topology | None) -> Prospect:
        limits = self._settings.probes
        probe = limits.definitions[name]
        simulated = self._simulation is not None
        backend = choose_backend(probe, simulated=simulated, driver=self._read.is_driver_expected())
        chosen = [] if backend == "gloo" else self._chosen(probe)
        paths = None
        if topology is not None:
            paths = self._topology.paths(topology, [gpu.pci_bus_id for gpu in chosen])
        plan = plan_cycle(
            name,
            probe,
            limits,
            backend=backend,
            devices=tuple(gpu.uuid or str(gpu.index) for gpu in chosen),
            simulation=simulated_node(self._simulation),
            shared_links=None if paths is None else paths.shared_links,
        )
        return Prospect(plan, tuple(chosen[: plan.ranks]), topology, paths)

    def _chosen(self, probe: Probe) -> list[ProbeGpu]:
        """The GPUs that a probe names, in its order; a GPU that is not here is left out."""
        here = {gpu.index: gpu for gpu in self._view.gpus()}
        return [here[index] for index in probe.gpus or here if index in here]

    def _missing(self, probe: Probe) -> tuple[int, ...]:
        here = {gpu.index for gpu in self._view.gpus()}
        return tuple(index for index in probe.gpus if index not in here)

    def gpu_count(self) -> int:
        """GPUs of the node."""
        return len(self._view.gpus())

    # --- whether it is free ---

    async def look_at_gpus(self) -> tuple[GpuFacts, ...]:
        """The busy test: every GPU of the node, twice and a second apart."""
        return await self._view.look_twice(self._read.read_gpus, time.monotonic)

    async def ask_schedulers(self) -> SchedulerFacts:
        """Whether a scheduler has given the node to a job; nobody is asked about a simulated one."""
        if self._simulation is not None:
            return SchedulerFacts()
        return await scheduler_facts(self._settings.probes, self._procfs, self._sysfs)

    def facts(
        self, name: str, *, maintenance: str, starved: str, other_backend: str, stuck_ranks: Sequence[StuckRank]
    ) -> GateFacts:
        """What the gate decides on, without what takes time to find out: GPUs, schedulers and budget.

        Args:
            name: of the probe.
            maintenance: reason of the one in force; empty without.
            starved: see ``GateFacts``.
            other_backend: see ``GateFacts``.
            stuck_ranks: of earlier cycles.
        """
        hold, readers = self._hold.read(), self._read.stuck_readers()
        stuck = [f"rank process {one.pid}{one.device and f' on {one.device}'}" for one in stuck_ranks]
        if readers:
            stuck.append(f"{readers} process{'es' if readers > 1 else ''} of the driver's reader")
        return GateFacts(
            maintenance=maintenance,
            starved=starved,
            hold_seconds=hold.left(time.time()) if hold else 0.0,
            other_backend=other_backend,
            no_torch=why_no_torch(self._settings.probes.python),
            missing_gpus=self._missing(self._settings.probes.definitions[name]),
            stuck=tuple(stuck),
            initial_pid_namespace=initial_pid_namespace(self._procfs),
        )

    def watch(self, plan: CyclePlan, scheduler: SchedulerFacts) -> NodeWatch:
        """What looks at the node while a cycle is under way; begins to watch now."""
        return NodeWatch(
            self._hold,
            gpus=None if plan.backend == "gloo" else self._view,
            read_processes=self._read.read_processes,
            cgroups=job_cgroup_root(self._settings, plan.backend, scheduler),
            procfs=self._procfs,
            now=time.time,
            monotonic=time.monotonic,
        )
