"""The node as a command sees it that probes without a daemon: its driver is open as long as the command needs it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.errors import CommwatchError
from commwatch.node.gpus_now import GPU_COLLECTORS, PROCESS_COLLECTOR, ProbeGpu
from commwatch.node.store import Store
from commwatch.node.topology.model import Topology
from commwatch.node.topology.nvlink import COLLECTORS
from commwatch.probes.gate.decision import GateFacts, SchedulerFacts
from commwatch.probes.gate.watch import NodeWatch
from commwatch.probes.node import ProbeNode, simulated_node
from commwatch.probes.plan import CyclePlan
from commwatch.readings import SourceUnavailable
from commwatch.sources.presence import nvidia_driver_present
from commwatch.state.directory import state_path
from commwatch.state.maintenance import MaintenanceFile
from commwatch.workers.by_hand import collect_patiently, nvml_reader, simulated_files


@asynccontextmanager
async def node_by_hand(config: Config) -> AsyncIterator[NodeByHand]:
    """A node, real or simulated, whose driver is open meanwhile.

    A driver that does not answer leaves no GPUs and a problem.

    Raises:
        CommwatchError: there is no such simulated node.
    """
    with simulated_files(config) as simulation:
        node = NodeByHand(config, simulation)
        try:
            await node.open()
            yield node
        finally:
            await node.close()


class NodeByHand:
    def __init__(self, config: Config, simulation: SimulationPlan | None) -> None:
        """Nothing is read."""
        self._config = config
        self._paths = simulation or config.paths
        self._state = state_path(config)
        self._store = Store()
        self._scheduler: SchedulerFacts | None = None
        self.probes = ProbeNode(config, self._store, self._state, simulation, self)
        """Plans and runs the cycles."""
        self.simulation = simulated_node(simulation)
        """The simulated node; None on a real one."""
        self.driver = simulation is not None or nvidia_driver_present(Path(config.paths.procfs))
        """Whether an NVIDIA driver is here, real or simulated."""
        self.topology = Topology()
        """As it was read at the start; without paths where the PCI tree could not be read."""
        self.problems: tuple[str, ...] = ()
        """Errors in reading driver and topology, for the operator."""
        is_read = self.driver and config.sources.nvml.enabled
        self._reader = nvml_reader(config, simulation) if is_read else None

    async def open(self) -> None:
        """Read GPUs and topology."""
        if self.driver and self._reader is None:
            self.problems = ("sources.nvml is disabled in the configuration",)
        try:
            for collector in COLLECTORS:
                await self._collect(collector)
        except SourceUnavailable as error:
            self.problems = (f"{error.reason}: {error.detail}",)
        topology = await self.probes.read_topology()
        if topology is not None:
            self.topology = topology
        else:
            self.problems = (*self.problems, f"{self._paths.sysfs}: the PCI tree could not be read")

    async def close(self) -> None:
        """Let go of the driver."""
        if self._reader is not None:
            await self._reader.stop()

    async def _collect(self, collector: str) -> None:
        """Read a collector into the store; what could not be read is not there, and a problem.

        Raises:
            SourceUnavailable: the driver cannot be read at all.
        """
        if self._reader is None:
            return
        self._store.drop_group(collector)
        collected, absences = await collect_patiently(self._reader, collector)
        self._store.put_run(collector, collected.blocks, float("inf"))
        if collected.occupants is not None:
            self._store.occupants = collected.occupants
        absent = [f"{one.device or 'driver'}: {one.reason}: {one.detail}" for one in absences]
        self.problems = tuple(dict.fromkeys((*self.problems, *absent)))

    # --- what the node is ---

    @property
    def gpus(self) -> list[ProbeGpu]:
        """By index."""
        return self.probes.gpus

    # --- as the gate and the watch have it read ---

    def is_driver_expected(self) -> bool:
        return self.driver

    def stuck_readers(self) -> int:
        """None: what a reader of this command could not read is not known, and so no free GPU."""
        return 0

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

    async def read_processes(self) -> None:
        """Read the processes on the GPUs now; where they cannot be read, none is known."""
        try:
            await self._collect(PROCESS_COLLECTOR)
        except SourceUnavailable:
            # Earlier readings are dropped, and so the GPUs are not known any more.
            self._store.drop_group(PROCESS_COLLECTOR)

    # --- whether it is free ---

    async def facts(
        self, plan: CyclePlan, wanted: tuple[int, ...] = (), *, ignore_scheduler: bool = False
    ) -> GateFacts:  # fmt: skip
        """The facts for the gate's decision, gathered now; with GPUs this takes more than a second.

        Args:
            wanted: NVML indexes of the GPUs that the probe names.
            ignore_scheduler: the operator says that the node is theirs; no scheduler is asked.

        Raises:
            CommwatchError: the driver cannot be read at all.
        """
        seen = await self.probes.inspect(plan, ignore_scheduler=ignore_scheduler)
        self._scheduler = seen.scheduler
        maintenance = MaintenanceFile(self._state).read(time.time())
        return replace(self.probes.facts(wanted, seen), maintenance=maintenance.reason if maintenance else "")

    def watch(self, plan: CyclePlan, own_hold: float | None = None) -> NodeWatch:
        """The watch over the node during one cycle; the scheduler facts from ``facts`` decide whether Slurm counts.

        Args:
            own_hold: as of ``NodeWatch``.
        """
        return self.probes.watch(plan, self._scheduler, own_hold)
