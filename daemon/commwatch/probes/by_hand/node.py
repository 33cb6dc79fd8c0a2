"""The node as a command sees it that probes without a daemon: its driver is open as long as the command needs it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

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
from commwatch.probes.rank_plan import SimulatedNodePlan
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
        self._state = state_path(config)
        self._files = ExitStack()
        self._reader: Reader | None = None
        self._store = Store()
        self._topology = Topology()
        self._scheduler: SchedulerFacts | None = None
        self.probes = ProbeNode(config, self._store, self._state, None, self)
        """Plans and runs the cycles."""
        self.simulation: SimulatedNodePlan | None = None
        """The simulated node; None on a real one."""
        self.driver = False
        """Whether an NVIDIA driver is here, real or simulated."""
        self.problems: tuple[str, ...] = ()
        """Errors in reading driver and topology, for the operator."""

    async def __aenter__(self) -> NodeByHand:
        """Open the driver, and read GPUs and topology.

        A driver that does not answer leaves no GPUs and a problem.

        Raises:
            CommwatchError: there is no such simulated node.
        """
        try:
            plan = self._files.enter_context(simulated_files(self._config))
            self.simulation = simulated_node(plan)
            self.probes = ProbeNode(self._config, self._store, self._state, plan, self)
            self.driver = plan is not None or nvidia_driver_present(Path(self._config.paths.procfs))
            if self.driver and self._config.sources.nvml.enabled:
                self._reader = nvml_reader(self._config, plan)
                await self._read_driver()
            elif self.driver:
                self.problems = ("sources.nvml is disabled in the configuration",)
            await self._read_topology(plan)
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
        absent = [f"{one.device or 'driver'}: {one.reason}: {one.detail}" for one in absences]
        self.problems = tuple(dict.fromkeys((*self.problems, *absent)))

    async def _read_topology(self, plan: SimulationPlan | None) -> None:
        topology = await self.probes.read_topology()
        if topology is not None:
            self._topology = topology
        else:
            paths = plan or self._config.paths
            self.problems = (*self.problems, f"{paths.sysfs}: the PCI tree could not be read")

    # --- what the node is ---

    @property
    def gpus(self) -> list[ProbeGpu]:
        """By index."""
        return self.probes.gpus

    def topology(self) -> Topology:
        """As it was read at the start; without paths where the PCI tree could not be read."""
        return self._topology

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
        return self.probes.facts(wanted, seen, maintenance=maintenance.reason if maintenance else "")

    def watch(self, plan: CyclePlan) -> NodeWatch:
        """The watch over the node during one cycle; the scheduler facts from ``facts`` decide whether Slurm counts."""
        return self.probes.watch(plan, self._scheduler)
