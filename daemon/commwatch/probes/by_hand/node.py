"""The node as a command sees it that probes without a daemon: GPUs, topology, and what the gate and the watch ask."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.errors import CommwatchError
from commwatch.node.gpus_now import GPU_COLLECTORS, PROCESS_COLLECTOR, GpusNow, ProbeGpu
from commwatch.node.store import Store
from commwatch.node.topology.model import Topology
from commwatch.node.topology.nvlink import COLLECTORS
from commwatch.probes.cycle.interpreter import why_no_torch
from commwatch.probes.gate.decision import GateFacts, SchedulerFacts
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.gate.node_watch import NodeWatch, job_cgroup_root
from commwatch.probes.gate.schedulers import initial_pid_namespace, scheduler_facts
from commwatch.probes.node import simulated_node
from commwatch.probes.plan import CyclePlan
from commwatch.probes.rank_plan import SimulatedNodePlan
from commwatch.probes.topology import ProbeTopology
from commwatch.readings import SourceUnavailable
from commwatch.sources.presence import nvidia_driver_present
from commwatch.state.directory import state_path
from commwatch.state.maintenance import MaintenanceFile
from commwatch.workers.by_hand import collect_patiently, nvml_reader, simulated_files
from commwatch.workers.reader import Reader


class NodeByHand:
    """A node, real or simulated, whose driver is open from ``async with`` on to its end."""

    def __init__(self, config: Config) -> None:
        """Nothing is read."""
        self._config = config
        self._procfs = Path(config.paths.procfs)
        self._files = ExitStack()
        self._reader: Reader | None = None
        self._store = Store()
        self._topology = Topology()
        self._scheduler = SchedulerFacts()
        self._hold = HoldFile(state_path(config))
        self.simulation: SimulatedNodePlan | None = None
        """The simulated node; None on a real one."""
        self.driver = False
        """Whether an NVIDIA driver is here, real or simulated."""
        self.view = GpusNow(self._store)
        """What was read of the GPUs."""
        self.problems: tuple[str, ...] = ()
        """What could not be read of driver and topology, for the operator."""

    async def __aenter__(self) -> NodeByHand:
        """Open the driver, and read GPUs and topology.

        A driver that does not answer leaves no GPUs and a problem.

        Raises:
            CommwatchError: there is no such simulated node.
        """
        try:
            plan = self._files.enter_context(simulated_files(self._config))
            self.simulation = simulated_node(plan)
            self.driver = plan is not None or nvidia_driver_present(self._procfs)
            if self.driver and self._config.sources.nvml.enabled:
                self._reader = nvml_reader(self._config, plan)
                await self._read_driver()
            elif self.driver:
                self.problems = ("sources.nvml is disabled in the configuration",)
            self._topology = await self._read_topology(plan)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of the driver, and remove the files of a simulated node."""
        await self._close()

    async def _close(self) -> None:
        if self._reader is not None:
            await self._reader.stop()
        self._files.close()

    async def _read_driver(self) -> None:
        try:
            for collector in COLLECTORS:
                await self._collect(collector)
        except SourceUnavailable as error:
            self.problems = (f"{error.reason}: {error.detail}",)

    async def _collect(self, collector: str) -> None:
        """Read a collector into the store; what could not be read is not there, and a problem.

        Raises:
            SourceUnavailable: the driver cannot be read at all.
        """
        if self._reader is None:
            return
        self._store.drop_group(collector)
        collected, absences = await collect_patiently(self._reader, collector)
        for device, block in collected.blocks.items():
            self._store.put(collector, device, block, float("inf"))
        if collected.occupants is not None:
            self._store.occupants = collected.occupants
        told = [f"{one.device or 'driver'}: {one.reason}: {one.detail}" for one in absences]
        self.problems = tuple(dict.fromkeys((*self.problems, *told)))

    async def _read_topology(self, plan: SimulationPlan | None) -> Topology:
        paths = plan or self._config.paths
        topology = await ProbeTopology(self._store, paths.sysfs, paths.procfs).read(
            [gpu.pci_bus_id for gpu in self.gpus]
        )
        if topology is not None:
            return topology
        problem = f"{paths.sysfs}: the PCI tree could not be read"
        self.problems = (*self.problems, problem)
        return Topology()

    # --- what the node is ---

    @property
    def gpus(self) -> list[ProbeGpu]:
        """By index."""
        return self.view.gpus()

    def topology(self) -> Topology:
        """As it was read at the start; without paths where the PCI tree could not be read."""
        return self._topology

    # --- whether it is free ---

    async def read_gpus(self) -> None:
        """Read use, memory, modes and processes of the GPUs now.

        Raises:
            CommwatchError: the driver cannot be read at all.
        """
        try:
            for collector in GPU_COLLECTORS:
                await self._collect(collector)
        except SourceUnavailable as error:
            raise CommwatchError(f"the GPUs cannot be read: {error.reason}: {error.detail}") from error

    async def facts(self, plan: CyclePlan, *, ignore_scheduler: bool = False) -> GateFacts:
        """What the gate is to decide on, gathered now; with GPUs this takes a good second.

        Args:
            plan: what would be run.
            ignore_scheduler: the operator says that the node is theirs; no scheduler is asked.

        Raises:
            CommwatchError: the driver cannot be read at all.
        """
        gpus = () if plan.on_host else await self.view.look_twice(self.read_gpus)
        self._scheduler = SchedulerFacts(ignored=True)
        if not ignore_scheduler and plan.backend != "simulated":
            self._scheduler = await scheduler_facts(self._config.probes, self._procfs, Path(self._config.paths.sysfs))
        now = time.time()
        maintenance = MaintenanceFile(state_path(self._config)).read(now)
        hold = self._hold.read()
        return GateFacts(
            enabled=self._config.probes.enabled,
            maintenance=maintenance.reason if maintenance else "",
            hold_seconds=hold.left(now) if hold else 0.0,
            no_torch=why_no_torch(self._config.probes.python),
            scheduler=self._scheduler,
            initial_pid_namespace=initial_pid_namespace(self._procfs),
            gpus=gpus,
        )

    def watch(self, plan: CyclePlan) -> NodeWatch:
        """The look at the node for one cycle; what ``facts`` found of the schedulers says whether Slurm counts."""
        return NodeWatch(
            self._hold,
            gpus=None if plan.on_host else self.view,
            read_processes=self._read_processes,
            cgroups=job_cgroup_root(self._config, plan.backend, self._scheduler),
            procfs=self._procfs,
        )

    async def _read_processes(self) -> None:
        try:
            await self._collect(PROCESS_COLLECTOR)
        except SourceUnavailable:
            # What was read before is dropped, and so the GPUs are not known any more.
            self._store.drop_group(PROCESS_COLLECTOR)
