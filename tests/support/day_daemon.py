"""A daemon over a simulated node in this process, on a clock of its own: each job runs when it is due, no earlier."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from commwatch.config.simulated import SimulationPlan
from commwatch.jobs.settings.plan import SOURCE as SETTINGS
from commwatch.node.gpus_now import GPU_COLLECTORS, PROCESS_COLLECTOR, GpuFacts
from commwatch.node.run import Collected
from commwatch.node.starvation import Starvation
from commwatch.probes import node as probe_node
from commwatch.probes.gate.decision import GateFacts
from commwatch.probes.plan import CyclePlan, CycleResult
from commwatch.readings import SourceUnavailable
from commwatch.service import collection, probing
from commwatch.service import judge as verdict
from commwatch.service.probing import Probing
from commwatch.simulation.hardware import Epoch, Hardware
from commwatch.simulation.presets import PRESETS
from commwatch.simulation.presets.parts import Preset
from commwatch.sources.base import Source
from commwatch.sources.kernel_log import KernelLogSource
from commwatch.sources.nvml.source import NvmlSource
from commwatch.workers.sources import SOURCES
from commwatch.workers.wire import Cadence
from commwatch_exporters.snapshot import Snapshot
from support import rehearsed_daemon
from support.core import NodeReads, ScriptedReader, SteppedScheduler
from support.facts import shipped
from support.rehearsed_daemon import BOOTED_AT, RehearsedDaemon
from support.whole_node import NodeClock

STEP_SECONDS = 15.0
"""Between two scrapes."""
SECOND_LOOK_SECONDS = 1.0
"""Before each scrape, what is due is read once more: use is made of two readings that are not far apart."""


class _LiveReader(ScriptedReader):
    """Reads the source in this process, when a collector is due on the clock of the test."""

    def __init__(
        self, name: str, read: Callable[[str], Collected | SourceUnavailable], monotonic: Callable[[], float]
    ) -> None:
        super().__init__(name)
        self._read = read
        self._now = monotonic
        self._cadences: dict[str, Cadence] = {}

    def order(self, collector: str, every: float) -> None:
        begins = bool(every) and collector not in self._cadences
        self._cadences.setdefault(collector, Cadence()).order(every, self._now(), at_once=begins)
        if not every:
            del self._cadences[collector]

    def hasten(self, collector: str) -> None:
        cadence = self._cadences[collector]
        cadence.order(cadence.every, self._now(), at_once=True)

    async def now(self, collector: str) -> Collected:
        if collector in self._cadences:
            self._cadences[collector].ran(self._now())
        return self.give(collector, self._read(collector))

    async def run_due(self) -> None:
        """Run what is due, and what is hastened by that."""
        while due := [name for name, one in self._cadences.items() if one.due <= self._now()]:
            await self.now(due[0])


class _AuditReader(_LiveReader):
    """Runs nothing by itself: audits are jobs of the scheduler."""

    def order(self, collector: str, every: float) -> None:
        """See ``SettingsReader.order``."""


class _RestlessHardware(Hardware):
    """The links of idle GPUs change their generation now and then, as for the driver's own short work."""

    change_seconds = 0.0

    def epoch(self, time: float) -> Epoch:
        epoch = super().epoch(time)
        if self.change_seconds == 0.0 or int(time / self.change_seconds) % 2 == 0:
            return epoch
        known = self.__dict__.setdefault("_raised", (None, None))
        if known[0] is not epoch:
            gpus = tuple(replace(one, pcie_generation=one.pcie_generation_under_load) for one in epoch.gpus)
            known = self.__dict__["_raised"] = (epoch, replace(epoch, gpus=gpus))
        raised: Epoch = known[1]
        return raised


@dataclass(frozen=True)
class Boot:
    """A node as it boots."""

    preset: Preset
    faults: str
    """YAML; times are since it booted."""
    at: float
    """When, seconds since 1970."""
    change_seconds: float
    """Between two changes of the generation of idle PCIe links."""


class DayDaemon(RehearsedDaemon):
    """The daemon as it runs: cadences, gate and schedule of the probes, pauses, its own metrics.

    Each cadence shorter than a step is that of the steps. Sources are asked in this process, and a probe's ranks are
    asked for their times without being started.
    """

    def __init__(
        self, boot: Boot, folder: Path, patched: pytest.MonkeyPatch, time_now: float, clock_error: float = 0.0
    ) -> None:
        """Reads everything once.

        Args:
            boot: of the node.
            folder: for its files and the state, which an earlier daemon may have left.
            patched: takes clocks and parts of the simulation.
            time_now: seconds since the boot.
            clock_error: seconds by which the wall clock is ahead.
        """
        self.started_at, self.time, self.clock_error = boot.at, time_now, clock_error
        self.scheduler = SteppedScheduler(lambda: self.time)
        self._patched = patched
        self._closed: set[Source] = set()
        """Drivers that could not be read: each is opened at the next run, as a worker does."""
        for tree in ("sysfs", "procfs"):
            shutil.rmtree(folder / tree, ignore_errors=True)
        _RestlessHardware.change_seconds = boot.change_seconds
        patched.setattr("commwatch.simulation.node.find_preset", lambda name: boot.preset)
        patched.setattr("commwatch.simulation.node.Hardware", _RestlessHardware)
        patched.setattr(rehearsed_daemon, "probe_by_hand", lambda node, patch: None)
        super().__init__(boot.preset.name, folder, patched, boot.faults, "")
        self._read_live()
        self.probing = self._scheduled_probes()
        self.instruments.simulated.set(1)
        self.instruments.thresholds_info.labels(shipped().digest)
        self.instruments.config_reload_successful.set(1)
        self.instruments.config_reload_time.set(round(time.time(), 3))
        with capture_logs():
            self._loop.run_until_complete(self._start())

    # --- as the engine builds it ---

    def _read_no_clock(self) -> None:
        super()._read_no_clock()
        clock = NodeClock(self)
        for module in (collection, verdict, probing, probe_node):
            self._patched.setattr(module, "time", clock)
        self._patched.setattr(time, "time", clock.time)

    def _open(self, name: str, opt_in: tuple[str, ...]) -> Source:
        source = super()._open(name, opt_in)
        clock = NodeClock(self)
        if isinstance(source, NvmlSource):
            source._events._clock = clock.time
        if isinstance(source, KernelLogSource):
            source._clock, source._monotonic = clock.time, clock.monotonic
        return source

    def _read_live(self) -> None:
        self._readers: dict[str, _LiveReader] = {}
        for collector in self._collectors:
            row = SOURCES[collector.source].reader
            kind = _AuditReader if collector.name == SETTINGS else _LiveReader
            made = kind(row.name, self._ask, lambda: self.time)
            made.keeper = self._collection
            collector.reader = self._readers.setdefault(row.name, made)
            collector.needs_release = row.needs_release

    def _ask(self, name: str) -> Collected | SourceUnavailable:
        collector = self._collection.collectors[name]
        if name == SETTINGS:
            if (nothing := self.job_settings.nothing()) is not None:
                return nothing
            self._sources[SETTINGS] = self._open(SETTINGS, ())
        source = self._sources[collector.source]
        if isinstance(source, NvmlSource) and source in self._closed:
            source.open(lambda device: None, frozenset(), None)
            self._closed.discard(source)
        answer = self._answer(collector)
        if isinstance(answer, SourceUnavailable) and isinstance(source, NvmlSource):
            source.close()
            self._closed.add(source)
        return answer

    def _plan_audit(self, delay: float) -> None:
        self.scheduler.run_in(SETTINGS, delay)

    def _scheduled_probes(self) -> Probing:
        sysfs, procfs = self.roots
        plan = SimulationPlan(self.preset, str(self.faults_file or ""), self.started_at, sysfs, procfs)
        read = NodeReads(self._read_gpus, self._read_processes)
        made = Probing(
            self.config, shipped(), self.state, self.store, self.scheduler, plan, read,
            Starvation(Path("/nonexistent")),
        )  # fmt: skip
        node, launcher, facts = made._node, made._launcher, made._node.facts

        async def look() -> tuple[GpuFacts, ...]:
            async def no_wait(seconds: float) -> None:
                """The node does not change meanwhile."""

            return await node._view.look_twice(self._read_gpus, lambda: self.time, no_wait)

        def facts_here(*arguments: Any, **named: Any) -> GateFacts:
            return replace(facts(*arguments, **named), no_torch="", initial_pid_namespace=True)

        async def run(plan: CyclePlan, *_: Any) -> CycleResult:
            return self.outcome(plan)

        self._patched.setattr(node, "look_at_gpus", look)
        self._patched.setattr(node, "facts", facts_here)
        self._patched.setattr(launcher, "run", run)
        self._patched.setattr(socket, "gethostname", lambda: "node1")
        return made

    async def _read_gpus(self) -> None:
        for name in GPU_COLLECTORS:
            await self._collection.run(self._collection.collectors[name])

    async def _read_processes(self) -> None:
        await self._collection.run(self._collection.collectors[PROCESS_COLLECTOR])

    async def _start(self) -> None:
        self._write_trees()
        self.scheduler.start()
        for collector in self._collectors:
            await self._collection.run(collector)
        self._pipeline.observe(self.time)
        audits = self._collection.collectors[SETTINGS]
        self.scheduler.add(SETTINGS, partial(self._collection.run, audits), audits.interval)
        self.job_settings.begin()
        self.probing.schedule()

    def _write_trees(self) -> None:
        self.node.write_sysfs(self._sysfs)
        self.node.write_procfs(self._procfs)

    # --- as the service runs it ---

    def step_to(self, seconds: float) -> None:
        """Let time pass up to so many seconds after the boot: what is due runs, and the rules look."""
        for moment in (seconds - SECOND_LOOK_SECONDS, seconds):
            self.time = max(self.time, moment)
            self._write_trees()
            with capture_logs():
                self._collection.tend()
                self._loop.run_until_complete(self._run_due())
        with capture_logs():
            self.store.expire(self.time)
            self.probing.refresh()
        self.look()

    async def _run_due(self) -> None:
        for reader in self._readers.values():
            await reader.run_due()
        await self.scheduler.run_due()

    def snapshot(self) -> Snapshot:
        """What a scrape is given."""
        self.store.put("daemon", "", self.instruments.block(self.time), float("inf"))
        return super().snapshot()

    def pause(self, reason: str) -> None:
        """Let go of the driver."""
        self.instruments.show_maintenance(reason)
        with capture_logs():
            self._collection.pause()
            self.job_settings.look()
            self.probing.pause(reason)
            self._sources["nvml"].close()
            self._pipeline.pause()

    def resume(self) -> None:
        """Read and probe again."""
        self.instruments.show_maintenance(None)
        self._sources["nvml"] = self._open("nvml", ())
        self._collection.resume()
        self._pipeline.resume()
        self.probing.resume()
        self.scheduler.run_in(SETTINGS, 0.0)

    def step_clock(self, seconds: float) -> None:
        """The wall clock is set."""
        self.clock_error += seconds
        self.instruments.clock_steps.inc()
        self._collection.follow_clock(seconds)

    def stop(self) -> None:
        """Keep what must survive, and end."""
        self.save_judgement()
        self.probing.save()
        self.close()


@contextmanager
def stepped(preset: str, folder: Path, start: float = 0.0) -> Iterator[DayDaemon]:
    """A daemon in this process, over a whole node, whose clock the test moves.

    Args:
        preset: of the node.
        folder: for its files and the state.
        start: seconds since the node booted.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pynvml, "nvmlLib", None)
        patched.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        daemon = DayDaemon(Boot(PRESETS[preset], "", BOOTED_AT, 0.0), folder, patched, start)
        try:
            yield daemon
        finally:
            daemon.stop()
