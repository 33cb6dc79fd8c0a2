"""The probes of this node, for the daemon and for commands: their plans, whether the node is free, and the cycle."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from commwatch.config.settings import Config, Probe
from commwatch.config.simulated import SimulationPlan, is_recording
from commwatch.errors import CommwatchError
from commwatch.node.gpus_now import GpuFacts, GpusNow, ProbeGpu
from commwatch.node.starvation import Starvation
from commwatch.node.store import Store
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.model import Topology
from commwatch.node.topology.nvlink import stored_driver
from commwatch.node.topology.reach import gpu_paths
from commwatch.node.topology.sysfs import SysfsFacts
from commwatch.probes.cycle.environment import why_no_torch
from commwatch.probes.cycle.launch import Launcher, Progress
from commwatch.probes.cycle.lock import LOCK_FILE, ProbeLock
from commwatch.probes.gate.decision import GateFacts, SchedulerFacts, decide
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.gate.schedulers import initial_pid_namespace, scheduler_facts
from commwatch.probes.gate.watch import NodeWatch
from commwatch.probes.plan import CyclePlan, CycleResult
from commwatch.probes.prospect import Prospect
from commwatch.probes.rank_plan import SimulatedNodePlan
from commwatch.probes.workload import choose_backend, plan_cycle
from commwatch.workers.by_hand import ask_sysfs
from commwatch_exporters.node.model import NvLink, node_at

log = structlog.get_logger("commwatch.probing")

_SYSFS_SECONDS = 10.0


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


class Seen(NamedTuple):
    """GPUs and schedulers as the node was checked."""

    gpus: tuple[GpuFacts, ...] = ()
    scheduler: SchedulerFacts | None = None


def simulated_node(plan: SimulationPlan | None) -> SimulatedNodePlan | None:
    """The simulated node as ranks get it; None for a real one."""
    if plan is None:
        return None
    return SimulatedNodePlan(preset=plan.preset, faults_file=plan.faults_file or None, started_at=plan.started_at)


class ProbeNode:
    """This node, for all probes of a configuration; one cycle at a time."""

    def __init__(
        self,
        settings: Config,
        store: Store,
        state: Path,
        simulation: SimulationPlan | None,
        read: ReadNode,
        starvation: Starvation | None = None,
    ) -> None:
        """Nothing is read.

        Args:
            state: the state directory, where the hold and the lock are.
            simulation: the simulated node; None on a real one.
            starvation: ranks that were late for want of CPU or memory have not failed; by default that is not asked.
        """
        self._settings = settings
        self._simulation = simulation
        self._read = read
        self._view = GpusNow(store)
        self._procfs = Path(settings.paths.procfs)
        self._sysfs = Path(settings.paths.sysfs)
        self._store = store
        self._tree: tuple[frozenset[str], SysfsFacts] | None = None
        """The PCI tree, and the GPUs that were here when it was read."""
        self._hold = HoldFile(state)
        self.launcher = Launcher(
            procfs=self._procfs,
            python=settings.probes.python,
            lock=ProbeLock(state / LOCK_FILE),
            starvation=starvation,
        )
        """Runs the ranks."""

    @property
    def gpus(self) -> list[ProbeGpu]:
        """Those of the node that answer, by index."""
        return self._view.gpus()

    async def read_topology(self) -> Topology | None:
        """How the GPUs are joined; None where the PCI tree cannot be read, in a child, as it is when GPUs changed."""
        gpus, roots = frozenset(gpu.pci_bus_id for gpu in self.gpus), self._simulation or self._settings.paths
        if self._tree is None or self._tree[0] != gpus:
            try:
                self._tree = gpus, await ask_sysfs(roots.sysfs, roots.procfs, _SYSFS_SECONDS)
            except CommwatchError as error:
                log.warning("the PCI tree is not known to the probes", error=str(error))
                return None
        return build_topology(self._tree[1], stored_driver(self._store))

    def _expected_links(self) -> Mapping[str, Set[int]]:
        """Numbers of the NVLinks that each GPU should have, by PCI address, as the inventory has learned."""
        links: dict[str, set[int]] = {}
        with node_at(self._store.snapshot()) as node:
            for link, _ in node.each(NvLink.expected):
                links.setdefault(link.address, set()).add(int(link.number))
        return links

    # --- what a cycle would be ---

    def prospect(self, name: str, probe: Probe, topology: Topology | None = None) -> Prospect:
        """A probe's cycle.

        Args:
            topology: of this node; None: without reading how the GPUs are connected.
        """
        backend = choose_backend(
            probe, simulated=self._simulation is not None, driver=self._read.is_driver_expected()
        )  # fmt: skip
        # In the order in which the probe names them; one that is not here is left out.
        here = {} if backend == "gloo" else {gpu.index: gpu for gpu in self.gpus}
        chosen = [here[index] for index in probe.gpus or here if index in here]
        paths = None
        if topology is not None and chosen:
            paths = gpu_paths(topology, [gpu.pci_bus_id for gpu in chosen], self._expected_links())
        plan = plan_cycle(
            name,
            probe,
            self._settings.probes,
            backend=backend,
            devices=tuple(gpu.uuid or str(gpu.index) for gpu in chosen),
            simulation=simulated_node(self._simulation),
            shared_links=None if paths is None else paths.shared_links,
        )
        return Prospect(plan, tuple(chosen[: plan.ranks]), topology, paths, probe.expected_bandwidth)

    # --- whether the node is free ---

    async def inspect(self, plan: CyclePlan, *, ignore_scheduler: bool = False) -> Seen:
        """Read every GPU, twice and a second apart, and ask the schedulers, as far as a cycle needs them.

        Args:
            ignore_scheduler: the operator says that the node is theirs; no scheduler is asked, nor about a simulated
                node.
        """
        gpus = () if plan.on_host else await self._view.look_twice(self._read.read_gpus, time.monotonic)
        if ignore_scheduler or self._simulation is not None:
            return Seen(gpus, SchedulerFacts())
        return Seen(gpus, await scheduler_facts(self._settings.probes, self._procfs, self._sysfs))

    def facts(self, wanted: Sequence[int] = (), seen: Seen | None = None) -> GateFacts:
        """The facts about the node for the gate's decision; its caller adds what it knows of the probe.

        Args:
            wanted: NVML indexes of the GPUs that the probe names; empty: none in particular.
            seen: the result of the check of the node; None: before that.
        """
        simulation = self._settings.simulation
        hold, readers = self._hold.read(), self._read.stuck_readers()
        stuck = [f"rank process {pid}{device and f' on {device}'}" for pid, device in self.launcher.stuck.items()]
        if readers:
            stuck.append(f"{readers} process{'es' if readers > 1 else ''} of the driver's reader")
        here, (gpus, scheduler) = {gpu.index for gpu in self.gpus} if wanted else set(), seen or Seen()
        return GateFacts(
            enabled=self._settings.probes.enabled and self._settings.probes.gate != "off",
            is_recording=is_recording(simulation.preset) and not simulation.faults,
            hold_seconds=hold.left(time.time()) if hold else 0.0,
            no_torch=why_no_torch(self._settings.probes.python),
            missing_gpus=tuple(index for index in wanted if index not in here),
            stuck=tuple(stuck),
            scheduler=scheduler,
            initial_pid_namespace=initial_pid_namespace(self._procfs),
            gpus=gpus,
        )

    # --- the cycle ---

    async def run(self, plan: CyclePlan, facts: GateFacts, progress: Progress | None = None) -> CycleResult:
        """Run one cycle, if nothing speaks against it. Nothing is awaited before it can be cancelled.

        Args:
            plan: with ranks and steps, unless the gate says no.
            facts: gathered just now.
            progress: as of ``Launcher.run``.
        """
        if skip := decide(plan, facts):
            return skip.as_result(time.time())
        return await self.launcher.run(plan, self.watch(plan, facts.scheduler), progress)

    def watch(
        self, plan: CyclePlan, scheduler: SchedulerFacts | None, own_hold: float | None = None
    ) -> NodeWatch:  # fmt: skip
        """The watch over the node during a cycle; it begins now. Jobs of Slurm count if Slurm was asked.

        Args:
            own_hold: as of ``NodeWatch``.
        """
        by_slurm = scheduler is not None and scheduler.slurm is not None
        return NodeWatch(
            self._hold,
            gpus=None if plan.on_host else self._view,
            read_processes=self._read.read_processes,
            cgroups=self._sysfs / "fs/cgroup" if by_slurm else None,
            procfs=self._procfs,
            now=time.time,
            monotonic=time.monotonic,
            own_hold=own_hold,
        )
