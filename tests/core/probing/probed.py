"""A node whose probes run when the test says so, by a launcher that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from commwatch.config.settings import Config, Duration, Paths, Probe, Probes
from commwatch.config.simulated import SimulationPlan
from commwatch.config.thresholds import load_thresholds
from commwatch.node.starvation import Starvation
from commwatch.node.store import Store
from commwatch.probes.cycle.launch import Launcher, Progress
from commwatch.probes.gate.watch import Halt, Watch
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured, StepOutcome
from commwatch.probes.results.records import ProbeStatus
from commwatch.service.probing import Probing
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, Clock, NodeReads, PlannedJobs, block, in_loop

KEY = ("ring", "simulated")
OF_LAST_RESULT = ("last_latency_seconds", "last_bus_bandwidth_bytes_per_second", "setup_seconds")


class ScriptedLauncher(Launcher):
    """A launcher without ranks: each cycle gives a good result, unless the test says otherwise."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.plans: list[CyclePlan] = []
        self.halts: list[Halt | None] = []
        """What the watch said at the first look of each cycle."""
        self.results: list[Callable[[], CycleResult]] = []
        """Results of the next cycles, in place of good ones."""
        self.gate: asyncio.Event | None = None
        """A cycle ends when this is set; None: at once."""
        self.under_way = 0
        self.most_at_once = 0
        self.left_behind: dict[int, str] = {}
        self._clock = clock

    @property
    def stuck(self) -> dict[int, str]:
        return self.left_behind

    async def run(self, plan: CyclePlan, watch: Watch, progress: Progress | None = None) -> CycleResult:
        self.plans.append(plan)
        self.halts.append(await watch(frozenset()))
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        await (self.gate.wait() if self.gate is not None else asyncio.sleep(0))
        self.under_way -= 1
        return self.results.pop(0)() if self.results else self.good()

    def good(self, latency: float = 1e-3) -> Measured:
        seconds = {"latency": latency, "bandwidth": 1e-2}
        plan = self.plans[-1]
        return Measured(
            finished_at=self._clock.time(), occupied_seconds=1.0, setup_seconds=3.0,
            outcomes=tuple(
                StepOutcome(
                    step=step,
                    seconds=tuple(seconds[step.purpose] if rank in step.clocks else None for rank in range(plan.ranks)),
                )
                for step in plan.steps
            ),
        )  # fmt: skip

    def slow(self) -> Measured:
        """Above the absolute limit of these probes."""
        return self.good(latency=0.5)

    def failed(self) -> Failed:
        return Failed(finished_at=self._clock.time(), occupied_seconds=1.0, reason="nccl_error", detail="rank 1: gone")


class Node:
    """A simulated node with two free GPUs and its probes; or a ``real`` one; or a real one without GPUs."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        launcher: ScriptedLauncher,
        *,
        real: bool = False,
        gpu_less: bool = False,
        **limits: object,
    ) -> None:
        self.folder, self.clock, self.launcher = folder, clock, launcher
        self.store, self.jobs = Store(), PlannedJobs()
        self.gpu_reads = 0
        self.processes: tuple[int, ...] = ()
        """On both GPUs."""
        self.readable = True
        """Whether the readings of the GPUs succeed."""
        self.before_read: Callable[[int], None] = lambda number: None
        """Called with the number of each reading of the GPUs, first 1."""
        probe = Probe(interval=Duration(limits.pop("interval", 900)), latency_limit=Duration(0.1))  # type: ignore[arg-type]  # a number
        definitions = limits.pop("definitions", {"ring": probe})
        settings = Config(
            paths=Paths(procfs=str(folder / "proc"), sysfs=str(folder / "sys")),
            probes=Probes(definitions=definitions, **limits),  # type: ignore[arg-type]  # fields by name
        )
        (folder / "proc/self/ns").mkdir(parents=True, exist_ok=True)
        if real:
            (folder / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
        if not gpu_less:
            self.set_gpus()
        self.starvation = Starvation(Path("/nonexistent"), clock.monotonic)
        self.probing = Probing(
            settings, load_thresholds(None), StateDirectory(folder), self.store, self.jobs,
            None if real or gpu_less else SimulationPlan("h100x8", "", 0.0, "", ""),
            NodeReads(self._read_gpus, self._read_processes, not gpu_less),
            self.starvation,
        )  # fmt: skip

    async def _read_gpus(self) -> None:
        self.gpu_reads += 1
        self.before_read(self.gpu_reads)
        if self.readable:
            self.set_gpus(**self.changes)

    async def _read_processes(self) -> None:
        if self.readable:
            self.set_gpus(**self.changes)

    def set_gpus(self, **changes: Value) -> None:
        """What is read of both GPUs: free, but for the changes."""
        self.changes = changes
        for index, slot in enumerate(SLOTS):
            gpu = (str(index), slot)
            free: dict[str, Value] = {
                "busy": 0, "compute_processes": 0, "memory_used_bytes": 0, "compute_mode": 0, "mig_mode": 0
            }  # fmt: skip
            values: dict[Series, Value] = {
                (f"commwatch_gpu_{name}", gpu): value for name, value in (free | changes).items()
            }
            self.store.put("nvml_gpu", slot, block(values, self.clock.now), float("inf"))
            self.store.put("nvml_processes", slot, block({}, self.clock.now), float("inf"))
            self.store.occupants = dict.fromkeys(SLOTS, self.processes)
            info: dict[Series, Value] = {("commwatch_gpu_info", (*gpu, f"GPU-{index}", "1", "H100", "hopper")): 1}
            self.store.put("nvml_identity", slot, block(info), float("inf"))

    def cycle(self, times: int = 1, name: str = "ring") -> None:
        """Run a probe when it is due."""
        for _ in range(times):
            in_loop(lambda: self.probing.run(name))

    def value(self, metric: str, *labels: str) -> Value:
        return self.store.snapshot().value(f"commwatch_probe_{metric}", *KEY, *labels)

    def status(self) -> ProbeStatus:
        (one,) = self.probing.status(self.clock.time())
        return one
