"""Runs the probes of a configuration: when each is due, asks the gate, starts the ranks, keeps the outcome."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import structlog

from commwatch import config
from commwatch.analysis.expected import Expected, expected_bus_bandwidth
from commwatch.gpu_view import GpuView
from commwatch.probes.budget import Occupied, expected_gpu_seconds, fits
from commwatch.probes.gate import GateFacts, GpuFacts, SchedulerFacts, Skip, decide
from commwatch.probes.launch import Launcher
from commwatch.probes.plan import (
    CyclePlan,
    CycleResult,
    Failed,
    Measured,
    SimulatedNodePlan,
    SkipReason,
    choose_backend,
    plan_cycle,
)
from commwatch.probes.record import ProbeHistory, ProbeRecord, rules_of
from commwatch.probes.scheduler import initial_pid_namespace, scheduler_facts
from commwatch.scheduler import Scheduler
from commwatch.state import StateDirectory
from commwatch.store import Store
from commwatch.thresholds import Thresholds
from commwatch.units import format_rate, format_seconds
from commwatch.workers.wire import SimulationPlan
from commwatch_exporters.snapshot import Block, Layout
from commwatch_exporters.web import ProbeStatus

log = structlog.get_logger("commwatch.probing")

SUSPICIOUS_RETRY_SECONDS = 30.0
"""A bad result brings the next cycle forward to this, at most"""
SUSPICIOUS_RETRIES_PER_HOUR = 2
BUSY_SAMPLES_APART_SECONDS = 1.0
"""Utilisation is a sample of the past: two of them must be zero (nccl.md 2.3)."""


class Probing:
    """All probes of a node; one cycle at a time."""

    def __init__(
        self,
        settings: config.Config,
        thresholds: Thresholds,
        state: StateDirectory,
        store: Store,
        scheduler: Scheduler,
        simulation: SimulationPlan | None,
        driver_present: Callable[[], bool],
        read_gpus: Callable[[], Awaitable[None]],
        stuck_elsewhere: Callable[[], int],
    ) -> None:
        """Args:
        driver_present: whether an NVIDIA driver is here.
        read_gpus: reads use, memory and modes of the GPUs into the store now.
        stuck_elsewhere: processes of the readers that hang in the driver.
        """
        self._settings = settings
        self._limits = settings.probes
        self._thresholds = thresholds
        self._state = state
        self._store = store
        self._gpus = GpuView(store)
        self._scheduler = scheduler
        self._simulation = simulation
        self._driver_present = driver_present
        self._read_gpus = read_gpus
        self._stuck_elsewhere = stuck_elsewhere
        self._procfs = Path(settings.paths.procfs)
        self._launcher = Launcher(procfs=self._procfs)
        self._records: dict[str, ProbeRecord] = {}
        self._layouts: dict[str, Layout] = {}
        self._last_skip: dict[str, Skip | None] = {}
        self._last_result: dict[str, CycleResult] = {}
        self._retries: dict[str, list[float]] = {}
        self._spread: set[str] = set()
        self._turn = asyncio.Lock()
        self._maintenance = ""
        self._stopped = False

    def schedule(self) -> None:
        """Plan the first cycle of each probe, and show what is known of it from before."""
        if not self._limits.enabled or self._limits.gate == "off":
            return
        for name, probe in self._limits.definitions.items():
            self._record(name, self._plan(name))
            self._publish(name)
            self._scheduler.add(_job(name), self._runner(name), probe.interval, delay=self._limits.start_delay)

    def _runner(self, name: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await self.run(name)

        return run

    async def run(self, name: str) -> None:
        """Run one cycle of a probe, or skip it, and keep the outcome."""
        async with self._turn:
            if self._stopped:
                return
            record = self._record(name, self._plan(name))
            fresh_from = time.monotonic()
            busy_before = await self._look_at_gpus(name, fresh_from)
            scheduler = await asyncio.to_thread(scheduler_facts, self._procfs, Path(self._settings.paths.sysfs))
            plan = self._plan(name)
            record.adopt_plan(plan)
            # From here to the start of the ranks nothing is awaited: a pause or a stop is either seen or can cancel.
            if self._stopped:
                return
            skip = decide(
                self._limits.gate, plan.backend, plan.ranks,
                self._facts(record, plan, scheduler, self._gpus.facts(fresh_from), busy_before),
            )  # fmt: skip
            if skip is None:
                await self._cycle(name, plan, record)
            else:
                self._skipped(name, record, skip)
            self._publish(name)
            if not self._stopped:
                self._plan_next(name, suspicious=skip is None and record.suspicious)
            await asyncio.to_thread(self.save)

    async def _look_at_gpus(self, name: str, fresh_from: float) -> set[str]:
        """Read the GPUs twice, apart; returns those that were busy at the first look."""
        if not self._plan(name).gpus:
            return set()
        await self._read_gpus()
        busy = {fact.device for fact in self._gpus.facts(fresh_from) if fact.busy}
        await asyncio.sleep(BUSY_SAMPLES_APART_SECONDS)
        await self._read_gpus()
        return busy

    async def _cycle(self, name: str, plan: CyclePlan, record: ProbeRecord) -> None:
        expected = self._expected(name, plan)
        result = await self._launcher.run(plan)
        record.apply(result, expected, time.time())
        self._last_result[name] = result
        self._last_skip[name] = None
        if isinstance(result, Measured):
            log.info("probe measured", probe=name, backend=plan.backend,
                     latency_seconds=result.latency_seconds, bandwidth_seconds=result.bandwidth_seconds,
                     setup_seconds=round(result.setup_seconds, 3))  # fmt: skip
        elif isinstance(result, Failed):
            log.warning("probe failed", probe=name, backend=plan.backend, reason=result.reason, detail=result.detail)
        else:
            self._last_skip[name] = Skip(result.reason, result.detail)
            log.info("probe gave way", probe=name, reason=result.reason, detail=result.detail)

    def _skipped(self, name: str, record: ProbeRecord, skip: Skip) -> None:
        record.skip(skip.reason)
        known = self._last_skip.get(name)
        if known is None or known.reason != skip.reason:
            log.info("probe skipped", probe=name, reason=skip.reason, detail=skip.detail)
        self._last_skip[name] = skip

    def _plan_next(self, name: str, *, suspicious: bool) -> None:
        """A bad result asks for another look soon; after the first cycle the nodes of a cluster part company."""
        interval = self._limits.definitions[name].interval
        now = time.monotonic()
        recent = [one for one in self._retries.get(name, []) if one > now - 3600]
        if suspicious and len(recent) < SUSPICIOUS_RETRIES_PER_HOUR and interval > SUSPICIOUS_RETRY_SECONDS:
            self._retries[name] = [*recent, now]
            self._scheduler.run_in(_job(name), SUSPICIOUS_RETRY_SECONDS)
        elif name not in self._spread:
            self._spread.add(name)
            share = zlib.crc32(f"{socket.gethostname()}/{name}".encode()) / 2**32
            self._scheduler.run_in(_job(name), interval * (0.5 + share / 2))

    # --- what a cycle rests on ---

    def _plan(self, name: str) -> CyclePlan:
        probe = self._limits.definitions[name]
        backend = choose_backend(probe, simulated=self._simulation is not None, driver=self._driver_present())
        node = self._simulation
        simulation = None if node is None else SimulatedNodePlan(
            preset=node.preset, faults_file=node.faults_file or None, started_at=node.started_at)  # fmt: skip
        devices = tuple(labels["uuid"] or labels["gpu"] for labels in self._gpus.identities())
        return plan_cycle(name, probe, self._limits, backend=backend, devices=devices, simulation=simulation)

    def _record(self, name: str, plan: CyclePlan) -> ProbeRecord:
        record = self._records.get(name)
        if record is None:
            history = self._state.load(f"probe-{name}", ProbeHistory)
            rules = rules_of(self._limits.definitions[name], self._thresholds)
            record = self._records[name] = ProbeRecord(plan, rules, history)
        else:
            record.adopt_plan(plan)
        return record

    def _facts(
        self,
        record: ProbeRecord,
        plan: CyclePlan,
        scheduler: SchedulerFacts,
        gpus: tuple[GpuFacts, ...],
        busy_before: set[str],
    ) -> GateFacts:
        return GateFacts(
            maintenance=self._maintenance,
            other_backend=record.other_backend,
            torch_installed=importlib.util.find_spec("torch") is not None,
            stuck_processes=len(self._launcher.stuck) + self._stuck_elsewhere(),
            scheduler=scheduler,
            initial_pid_namespace=initial_pid_namespace(self._procfs),
            gpus=tuple(replace(gpu, busy=True) if gpu.device in busy_before else gpu for gpu in gpus),
            within_budget=self._within_budget(
                [cycle for one in self._records.values() for cycle in one.history.occupied], record, plan
            ),
        )

    def _within_budget(self, cycles: list[Occupied], record: ProbeRecord, plan: CyclePlan) -> bool:
        expected = expected_gpu_seconds(record.history.occupied, plan.gpus)
        return fits(cycles, expected=expected, limit=self._limits.occupancy_limit, gpus=plan.gpus, now=time.time())

    def _expected(self, name: str, plan: CyclePlan) -> Expected | None:
        return expected_bus_bandwidth(
            configured=self._limits.definitions[name].expected_bandwidth,
            backend=plan.backend,
            gpu_name=self._gpus.common_name(),
            nvlinks_per_gpu=self._gpus.nvlinks_per_gpu(),
            ranks=plan.ranks,
            size_bytes=plan.bandwidth_bytes,
        )

    # --- what others see and ask ---

    def _publish(self, name: str) -> None:
        readings = self._records[name].readings(time.time())
        series = tuple((metric, labels) for metric, labels, _ in readings)
        layout = self._layouts.get(name)
        if layout is None or layout.series != series:
            layout = self._layouts[name] = Layout(series)
        block = Block(layout, [value for _, _, value in readings], time.monotonic())
        self._store.put("probes", name, block, float("inf"))

    def refresh(self) -> None:
        """Show what is known now: results age."""
        for name in self._records:
            self._publish(name)

    def pause(self, reason: str) -> None:
        """Start no cycle until ``resume``."""
        self._maintenance = reason

    def resume(self) -> None:
        """Cycles may start again."""
        self._maintenance = ""

    async def cancel(self, reason: SkipReason, detail: str) -> bool:
        """Make a cycle under way give way within two seconds; False if a rank is stuck."""
        return await self._launcher.cancel(reason, detail)

    async def stop(self) -> None:
        """Start no cycle any more, end the one under way, and keep what came of it."""
        self._stopped = True
        await self.cancel("yielded", "the daemon stops")
        async with self._turn:
            return

    def pids(self) -> list[int]:
        """Rank processes that are still there, stuck ones included."""
        return [*self._launcher.pids, *self._launcher.stuck]

    def take_over(self, earlier: Probing) -> None:
        """Count the stuck rank processes of an earlier configuration among ours."""
        self._launcher.take_over(earlier._launcher)

    @property
    def stuck_count(self) -> int:
        """Rank processes of earlier cycles that sit in the kernel."""
        return len(self._launcher.stuck)

    def save(self) -> None:
        """Write the histories; a failure is logged and tried again at the next time."""
        for name, record in list(self._records.items()):
            try:
                self._state.save(f"probe-{name}", record.history)
            except OSError as error:
                log.error("a probe's history cannot be saved", probe=name, error=str(error))

    def status(self, now: float) -> list[ProbeStatus]:
        """The probes for the status page.

        Args:
            now: wall clock seconds since 1970.
        """
        return [self._status(name, record, now) for name, record in self._records.items()]

    def _status(self, name: str, record: ProbeRecord, now: float) -> ProbeStatus:
        key = (name, record.history.backend)
        block = self._store.get("probes", name)
        latency = bandwidth = completed = None
        if block is not None:
            latency = block.get("commwatch_probe_last_latency_seconds", *key)
            bandwidth = block.get("commwatch_probe_last_bus_bandwidth_bytes_per_second", *key)
            completed = block.get("commwatch_probe_last_completion_timestamp_seconds", *key)
        parts = [] if latency is None else [f"latency {format_seconds(latency)}"]
        parts += [] if bandwidth is None else [f"bus bandwidth {format_rate(bandwidth)}"]
        last = self._last_result.get(name)
        if isinstance(last, Failed):
            parts = [f"failed: {last.reason} ({last.detail})"]
        next_run = self._scheduler.next_run(_job(name))
        skip = self._last_skip.get(name)
        return ProbeStatus(
            name=name,
            backend=record.history.backend,
            last_result=", ".join(parts),
            age_seconds=None if completed is None else max(0.0, now - completed),
            next_run_seconds=None if next_run is None else max(0.0, next_run - now),
            skip_reason="" if skip is None else f"{skip.reason}: {skip.detail}",
        )


def _job(name: str) -> str:
    return f"probe_{name}"
