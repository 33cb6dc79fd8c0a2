"""The daemon's own composition over a simulated node, in this process, on a clock that the test moves."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import shutil
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import msgspec
import pynvml
import pytest
from structlog.testing import capture_logs

from commwatch import __main__
from commwatch.__main__ import build_parser
from commwatch.config.settings import Config, Metrics, NcclLogsSection, Paths, Simulation, Sources
from commwatch.config.simulated import SimulationPlan, absolute, is_recording
from commwatch.findings.api_documents import SnapshotDocument, metric_records
from commwatch.node.run import Collected, Collector, Keeper
from commwatch.node.starvation import Starvation
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, Measured, NcclNotes, StepOutcome
from commwatch.readings import Batch, SourceUnavailable
from commwatch.service.api import Answers
from commwatch.service.engine import Engine
from commwatch.service.instruments import Instruments
from commwatch.sources.base import Source
from commwatch.sources.kernel_log import KernelLogSource
from commwatch.sources.nvml.source import NvmlSource
from commwatch.state.control import ControlServer
from commwatch.state.directory import StateDirectory, state_path
from commwatch.workers.child import make_source
from commwatch.workers.wire import Cadence, WorkerPlan
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot
from commwatch_rehearsal.simulation.faults.fault import SimulatedProbeFailure
from commwatch_rehearsal.simulation.library import install
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.presets.parts import Preset
from commwatch_rehearsal.simulation.probe_answers import SimulatedProbes
from commwatch_rehearsal.simulation.recording.answers import install as install_recorded
from commwatch_rehearsal.simulation.recording.node import RecordedNode
from support.core import KEYS, Clock, ScriptedReader, SteppedScheduler, give_clock, keep_time
from support.facts import NOW, shipped
from support.quick_ranks import read_sysfs_here
from support.rehearsed_probes import probe_by_hand
from support.waiting import PATIENCE_SECONDS

BOOTED_AT = 1_767_261_600.0
"""2026-01-01 10:00 UTC: when a node boots and its daemon starts."""
READ_AT = NOW - 1.0
"""When ``whole_node`` is read first, an hour after its boot."""
LOOK_SECONDS = 30.0
"""Between two looks of ``until``; the daemon itself looks every 10 s."""
STEP_SECONDS = 15.0
"""Between two scrapes of a daemon that runs by its cadences."""
SECOND_LOOK_SECONDS = 1.0
"""Before each scrape, what is due is read once more: use is made of two readings that are not far apart."""
_SETTINGS = "nccl_settings"
_WARM_CALLS = (30, 33, 36)
"""Calls of a rank whose clocks have risen; their median counts, as of the timings of a cycle."""
_ANSWERED_WITHIN = (
    "commwatch.diagnosis.known._DAEMON_SECONDS", "commwatch.diagnosis.health.check.DAEMON_SECONDS",
    "commwatch.diagnosis.health.check.SNAPSHOT_SECONDS", "commwatch.diagnosis.health.check.TOTAL_SECONDS",
    "commwatch.commands.score.DEADLINE_SECONDS",
)  # fmt: skip
"""How long the commands wait for a daemon."""


Outage: TypeAlias = Callable[[Collected], Collected]


@dataclass(frozen=True)
class Change:
    """A finding that opened or closed."""

    seconds: float
    """Since the node booted."""
    event: str
    """``opened`` or ``closed``."""
    code: str
    component: str
    """Its identity."""


class _Clock(Clock):
    """Stands in for the module ``time``: the clocks are the node's, all else is the module's."""

    def __init__(self, daemon: SimulatedDaemon) -> None:
        super().__init__()
        self._daemon = daemon

    def monotonic(self) -> float:
        return self._daemon.time

    def time(self) -> float:
        return self._daemon.booted_at + self._daemon.time + self._daemon.clock_error

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class _Scheduler(SteppedScheduler):
    """Remembers also for what is not planned when it was asked to run."""

    def __init__(self, daemon: SimulatedDaemon) -> None:
        super().__init__(lambda: daemon.time)
        self._daemon = daemon
        self.asked: dict[str, float] = {}
        """Monotonic seconds."""

    def run_in(self, name: str, delay: float) -> None:
        self.asked[name] = self._daemon.time + delay
        super().run_in(name, delay)


class _ReaderHere(ScriptedReader):
    """Reads its sources in this process, without a worker; by itself where a daemon goes by its cadences."""

    daemon: SimulatedDaemon

    def __init__(self, settings: Any, keeper: Keeper, **_: Any) -> None:
        super().__init__(settings.name, keeper=keeper)
        self.settings = settings
        self._sources: dict[str, Source] = {}
        """Open, by name."""
        self._blocks: dict[tuple[Series, ...], Layout] = {}
        self._cadences: dict[str, Cadence] = {}

    def order(self, collector: str, every: float) -> None:
        begins = bool(every) and collector not in self._cadences
        self._cadences.setdefault(collector, Cadence()).order(every, self.daemon.time, at_once=begins)
        if not every:
            del self._cadences[collector]

    def hasten(self, collector: str) -> None:
        cadence = self._cadences[collector]
        cadence.order(cadence.every, self.daemon.time, at_once=True)

    async def now(self, collector: str) -> Collected:
        if collector in self._cadences:
            self._cadences[collector].ran(self.daemon.time)
        return self.give(collector, self._read(collector))

    async def run_due(self) -> None:
        """Run what is due, and what is hastened by that."""
        while due := [name for name, one in self._cadences.items() if one.due <= self.daemon.time]:
            await self.now(due[0])

    def _read(self, collector: str) -> Collected | SourceUnavailable:
        name, key = KEYS[collector]
        try:
            given = self._collected((self._sources.get(name) or self._open(name)).collect(key))
            outage = self.daemon.outages.get(collector)
            return given if outage is None else outage(given)
        except SourceUnavailable as error:
            if name in self._sources:
                self._sources.pop(name).close()
            return error

    def _open(self, name: str) -> Source:
        source = make_source(name, self._plan_of_worker(), self.daemon.node)
        give_clock(source, self.daemon.clock, 1)
        if isinstance(source, KernelLogSource):  # the log stamps its records by the clock that its reader goes by
            open_log: Any = source._open_log
            source._open_log = partial(open_log, monotonic=self.daemon.clock.monotonic)
        if isinstance(source, NvmlSource):  # none of the many files that this process maps is of the simulated driver
            source._own_maps = Path(os.devnull)
        source.open(lambda device: None, frozenset(), None)
        self._sources[name] = source
        return source

    def _plan_of_worker(self) -> WorkerPlan:
        return msgspec.structs.replace(self.settings.plan, resume=self.keeper.resume_point(self.settings.plan.sources))

    def _collected(self, batch: Batch) -> Collected:
        blocks, now = {}, self.daemon.time
        for readings in batch.readings:
            layout = self._blocks.get(readings.series)
            if layout is None:
                assert self.settings.bounds.checked(readings.series) is readings.series
                layout = self._blocks[readings.series] = Layout(readings.series)
            blocks[readings.device] = Block(layout, readings.values, now)
        return Collected(
            blocks, batch.absences, 0.0, batch.events, batch.occupants, batch.log_errors, batch.resume, batch.audit
        )

    def close(self) -> None:
        """Let go of the sources; the next run opens them again."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()

    async def release(self, *_: Any, **__: Any) -> bool:
        self.close()
        return True


def _restless(change_seconds: float) -> type:
    """The links of idle GPUs change their generation now and then, as for the driver's own short work."""
    from commwatch_rehearsal.simulation.hardware import Epoch, Hardware

    class Restless(Hardware):
        def epoch(self, time: float) -> Epoch:
            epoch = super().epoch(time)
            if int(time / change_seconds) % 2 == 0:
                return epoch
            known = self.__dict__.setdefault("_raised", (None, None))
            if known[0] is not epoch:
                gpus = tuple(replace(one, pcie_generation=one.pcie_generation_under_load) for one in epoch.gpus)
                known = self.__dict__["_raised"] = (epoch, replace(epoch, gpus=gpus))
            raised: Epoch = known[1]
            return raised

    return Restless


class _Answers(Answers):
    """The documents, without the daemon's own metrics, which differ from run to run."""

    def snapshot(self) -> SnapshotDocument:
        self.engine.store.drop_group("daemon")
        return SnapshotDocument(**self._about(), metrics=metric_records(self.engine.store.snapshot()))


class SimulatedDaemon:
    """A daemon of a simulated node as time passes.

    Sources are read in this process and not in workers, and a probe's ranks are asked for their times without being
    started. All else is what the daemon does. No clock of the machine is read.

    Either the test says what is read when (``run``, ``until``, ``probe``), or it calls ``start``, and from then on
    cadences, gate and schedule of the probes are the daemon's (``step_to``).
    """

    def __init__(
        self,
        preset: str | Preset,
        folder: Path,
        patched: pytest.MonkeyPatch,
        *,
        faults: str = "",
        booted_at: float = BOOTED_AT,
        time_now: float = 0.0,
        clock_error: float = 0.0,
        change_seconds: float = 0.0,
        job_log: str = "",
        config: Config | None = None,
        opt_in: Sequence[str] = (),
    ) -> None:
        """Reads nothing.

        Args:
            preset: of the node: its name, a file of one's own, or itself.
            folder: for its files and the state, which an earlier daemon may have left.
            patched: takes clocks, driver library and parts of the simulation.
            faults: YAML; times are since it booted.
            booted_at: seconds since 1970.
            time_now: seconds since the boot.
            clock_error: seconds by which the wall clock is ahead.
            change_seconds: between two changes of the generation of idle PCIe links; 0: they do not change.
            job_log: what a job will have written; each line is added at the time that it names, in UTC, and those
                without one with the line before.
            config: another than the default.
            opt_in: metrics that are asked for.
        """
        self.booted_at, self.time, self.clock_error = booted_at, time_now, clock_error
        self.preset = preset.name if isinstance(preset, Preset) else absolute(preset)
        self._patched, self._loop = patched, asyncio.new_event_loop()
        self._log_file = folder / "job.log"
        self._log_left = _timed(job_log)
        if self._log_left:
            self._log_file.touch()
        self.config = config or Config(
            paths=Paths(state=str(folder / "state")),
            simulation=Simulation(preset=self.preset),
            metrics=Metrics(opt_in=tuple(opt_in)),
            sources=Sources(nccl_logs=NcclLogsSection(paths=(str(self._log_file),) if job_log else ())),
        )
        self.state = StateDirectory(state_path(self.config))
        self.state.path.mkdir(parents=True, exist_ok=True)
        self.clock = _Clock(self)
        self._patch(preset, change_seconds)
        faults_file = folder / "faults.yaml" if faults else None
        if faults_file is not None:
            faults_file.write_text(faults, encoding="utf-8")
        self.node = self._make_node(faults_file)
        self._trees = folder / "sysfs", folder / "procfs"
        for tree in self._trees:
            shutil.rmtree(tree, ignore_errors=True)
        self._write_trees()
        self.instruments, self.scheduler = Instruments(), _Scheduler(self)
        self.instruments.simulated.set(1)
        self.instruments.thresholds_info.labels(shipped().digest)
        self.instruments.config_reload_successful.set(1)
        self.instruments.config_reload_time.set(round(time.time(), 3))
        self.outages: dict[str, Outage] = {}
        """By collector: what its runs give in place of what they read."""
        self.engine = Engine(
            self.config, shipped(), self.state,
            SimulationPlan(self.preset, str(faults_file or ""), booted_at, *self.roots), self.instruments,
            self.scheduler, Starvation(Path("/nonexistent")),
        )  # fmt: skip
        give_clock(self.engine, self.clock)
        self.verdict, self.store = self.engine.verdict, self.engine.store
        self.job_settings = self.engine.job_settings
        self.answers = _Answers(self.engine)
        self.changes: list[Change] = []
        """The findings that opened and closed until now."""
        self._measure_without_ranks()

    def _make_node(self, faults_file: Path | None) -> Any:
        """The node with its driver installed; a recording begins to play now."""

        def now() -> float:
            return self.booted_at + self.time

        if is_recording(self.preset):
            recorded = RecordedNode(Path(self.preset), faults_file, now(), now)
            install_recorded(recorded)
            return recorded
        node = SimulatedNode(self.preset, faults_file, self.booted_at, now)
        install(node)
        return node

    def _patch(self, preset: str | Preset, change_seconds: float) -> None:
        patched = self._patched
        patched.setattr(pynvml, "nvmlLib", None)
        patched.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        keep_time(patched, self.clock)
        patched.setattr(time, "time", self.clock.time)
        patched.setattr(socket, "gethostname", lambda: "node1")
        # A command that logs would set up the logging of all tests that follow.
        patched.setattr("commwatch.service.log.configure_logging", lambda settings: None)
        patched.setattr("commwatch.service.engine.Reader", type("_Reader", (_ReaderHere,), {"daemon": self}))
        if isinstance(preset, Preset):
            patched.setattr("commwatch_rehearsal.simulation.node.find_preset", lambda name: preset)
        if change_seconds:
            patched.setattr("commwatch_rehearsal.simulation.node.Hardware", _restless(change_seconds))

    def _measure_without_ranks(self) -> None:
        probing, patched = self.engine.probing, self._patched
        node = probing._node
        facts = node.facts

        look_twice = node._view.look_twice

        async def look(read: Callable[[], Awaitable[None]], _: Callable[[], float]) -> Any:
            async def no_wait(seconds: float) -> None:
                """The node does not change meanwhile."""

            return await look_twice(read, lambda: self.time, no_wait)

        async def run(plan: CyclePlan, *_: Any) -> CycleResult:
            return self.outcome(plan)

        read_sysfs_here(patched)
        patched.setattr(node._view, "look_twice", look)
        patched.setattr(
            node, "facts", lambda *a, **named: replace(facts(*a, **named), no_torch="", initial_pid_namespace=True)
        )
        patched.setattr(node.launcher, "run", run)

    # --- what is there ---

    @property
    def collectors(self) -> Sequence[Collector]:
        """All that read the node."""
        return tuple(self.engine.collection.collectors.values())

    @property
    def roots(self) -> tuple[str, str]:
        """Its sysfs and procfs."""
        return str(self._trees[0]), str(self._trees[1])

    @property
    def is_free(self) -> bool:
        """Whether no job is on a GPU."""
        return not any(self.store.occupants.values())

    def snapshot(self) -> Snapshot:
        """The series that would be exposed now, without the daemon's own metrics."""
        self.store.drop_group("daemon")
        return self.store.snapshot()

    def exposed(self) -> Snapshot:
        """The node as a scrape gets it."""
        return self.engine.whole_snapshot()

    def findings(self) -> dict[str, Any]:
        """The document of findings as a client reads it."""
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.answers.findings()))
        return document

    def version(self) -> int:
        """Changes with each event that the daemon would save soon."""
        return self.engine.version

    # --- time, as the test says ---

    def run(self, *names: str) -> None:
        """Run all collectors once, or those that are named, and the analysis after each."""
        with capture_logs():
            self._loop.run_until_complete(self.read(*names))

    async def read(self, *names: str) -> None:
        """The same in the test's own event loop."""
        self._write_trees()
        for collector in self.collectors:
            if (not names or collector.name in names) and self._is_due(collector):
                await self.engine.collection.run(collector)

    def _is_due(self, collector: Collector) -> bool:
        """Whether a collector runs now: all do each time, but an audit of settings where the daemon would have one."""
        asked = self.scheduler.asked
        if collector.name != _SETTINGS:
            return True
        if self.time < asked.get(_SETTINGS, float("inf")):
            return False
        asked[_SETTINGS] = self.time + collector.interval
        return True

    def until(self, minutes: float, step: float = LOOK_SECONDS) -> None:
        """Let time pass until this number of minutes after the boot: jobs write their log, all is read, the rules look.

        Args:
            minutes: at the end.
            step: seconds between two looks.
        """
        while self.time < 60.0 * minutes:
            self.time = min(60.0 * minutes, self.time + step)
            self.write_log()
            self.run()
            self.look()

    def until_with_peaks(self, minutes: float) -> None:
        """As ``until``, each 10 s as shipped; NVLinks are also read 1 and 2 s before, so that their peaks are known."""
        while self.time < 60.0 * minutes:
            for seconds in (8, 1):
                self.time += seconds
                self.run("nvml_nvlink")
            self.until((self.time + 1) / 60, 1)

    def look(self) -> None:
        """Let results of probes age, and the rules look."""
        with capture_logs() as logged:
            self.engine.refresh()
            self.engine.look()
        self._note(logged)

    def _note(self, logged: Sequence[Any]) -> None:
        self.changes += [
            Change(self.time, entry["event"].removeprefix("finding "), entry["code"], entry["component"])
            for entry in logged
            if entry["event"] in ("finding opened", "finding closed")
        ]

    def write_log(self) -> None:
        """The log that the job has written by now."""
        due = [line for at, line in self._log_left if at <= time.time()]
        if due:
            with self._log_file.open("a", encoding="utf-8") as log:
                log.writelines(due)
            del self._log_left[: len(due)]

    def _write_trees(self) -> None:
        sysfs, procfs = self._trees
        self.node.write_sysfs(sysfs)
        self.node.write_procfs(procfs)

    # --- time, as the daemon says ---

    def start(self) -> None:
        """Read everything once, and go by the daemon's cadences from now on."""

        async def begin() -> None:
            self.scheduler.start()
            await self.engine.start()

        with capture_logs() as logged:
            self._loop.run_until_complete(begin())
        self._note(logged)

    def step_to(self, seconds: float) -> None:
        """Let time pass until this number of seconds after the boot: what is due runs, and the rules look."""
        for moment in (seconds - SECOND_LOOK_SECONDS, seconds):
            self.read_to(moment)
        with capture_logs():
            self.engine.expire()
        self.look()

    def read_to(self, seconds: float) -> None:
        """Let time pass until this number of seconds after the boot: what is due runs."""
        self.time = max(self.time, seconds)
        self._write_trees()
        with capture_logs() as logged:
            self.engine.collection.tend()
            self._loop.run_until_complete(self._run_due())
        self._note(logged)

    async def _run_due(self) -> None:
        for reader in self.engine._readers.values():
            await reader.run_due()  # type: ignore[attr-defined]
        await self.scheduler.run_due()

    def pause(self, reason: str) -> None:
        """Let go of the driver."""
        self.instruments.show_maintenance(reason)
        with capture_logs():
            self._loop.run_until_complete(self.engine.pause(reason))

    def resume(self) -> None:
        """Read and probe again."""
        self.instruments.show_maintenance(None)
        with capture_logs():
            self.engine.resume()

    def step_clock(self, seconds: float) -> None:
        """The wall clock is set."""
        self.clock_error += seconds
        self.instruments.clock_steps.inc()
        self.engine.collection.follow_clock(seconds)

    def renew(self) -> None:
        """Open the driver again, as a new process of its reader does after a GPU was lost."""
        for reader in self.engine._driver_readers():
            reader.close()  # type: ignore[attr-defined]

    # --- probes ---

    def probe(self, *names: str) -> None:
        """Run one cycle of each of these probes, or of all, on a node that is free, though the gate would wait."""
        assert self.is_free, "a daemon would not probe while a job runs"
        with self._patched.context() as patched:
            patched.setattr("commwatch.probes.node.decide", lambda *_: None)
            for name in names or self.config.probes.definitions:
                with capture_logs():
                    self._loop.run_until_complete(self.engine.probing.run(name))
        self.look()

    @cached_property
    def probes(self) -> SimulatedProbes:
        """The probes on its node, which is no recording."""
        return SimulatedProbes(self.node)

    def outcome(self, plan: CyclePlan) -> CycleResult:
        """The result of a cycle that is run now."""
        if error := self.probes.error_of_cycle(plan.ranks, plan.devices):
            return Failed(finished_at=time.time(), occupied_seconds=3.0, reason="nccl_error", detail=error)
        try:
            return Measured(
                finished_at=time.time(), occupied_seconds=5.0, setup_seconds=3.0, torch_version="",
                nccl_version="simulated", nccl=NcclNotes(),
                outcomes=tuple(
                    StepOutcome(step=step, seconds=tuple(
                        _seconds(plan, step, rank, self.probes) if rank in step.clocks else None
                        for rank in range(plan.ranks)
                    ))
                    for step in plan.steps
                ),
            )  # fmt: skip
        except SimulatedProbeFailure as failure:
            reason: Any = "wrong_result" if failure.reason == "wrong_result" else "nccl_error"
            return Failed(finished_at=time.time(), occupied_seconds=3.0, reason=reason, detail=failure.reason)

    # --- commands ---

    def command(self, *arguments: str, simulated: bool = True) -> tuple[int, str]:
        """Exit code and output of a command, asked of this daemon through its control socket.

        Args:
            arguments: of ``commwatch``.
            simulated: False: both say that the node is a real one.
        """
        said = self.verdict.findings, self.verdict.looked_at
        self.save()  # looks once more
        self.verdict.findings, self.verdict.looked_at = said
        own = ["--path.state", str(self.state.path)]
        if simulated:
            own = ["--simulate", self.preset, "--path.state", self.config.paths.state]
        output = io.StringIO()
        with (
            self.control(simulated=simulated),
            self._patched.context() as patched,
            contextlib.redirect_stdout(output),
        ):
            probe_by_hand(self, patched)
            patched.setattr(__main__, "build_parser", _parser)
            code = __main__.main([*arguments, *own])
        return code, output.getvalue()

    @contextmanager
    def control(self, *, simulated: bool = True) -> Iterator[None]:
        """The daemon's end of the control socket, in a thread: commands wait for its answers."""
        config = self.engine.config
        if not simulated:
            self.engine.config = msgspec.structs.replace(config, simulation=Simulation())
        server, loop = ControlServer(self.state.path, self.answers.operations()), asyncio.new_event_loop()
        loop.run_until_complete(server.listen())
        thread = threading.Thread(target=loop.run_forever, name=f"daemon of {self.preset}")
        thread.start()
        try:
            with pytest.MonkeyPatch.context() as patched:
                # The daemon shares its interpreter with the command: how soon it answers is the machine's affair.
                for name in _ANSWERED_WITHIN:
                    patched.setattr(name, PATIENCE_SECONDS)
                yield
        finally:
            self.engine.config = config
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(server.stop())
            loop.close()

    # --- its end ---

    def save(self) -> None:
        """Write what must survive a restart, as the daemon does at its end."""
        with capture_logs():
            self._loop.run_until_complete(self.engine.save())

    def stop(self) -> None:
        """Keep what must survive, and end."""
        with capture_logs():
            self._loop.run_until_complete(self.engine.stop())
        self.close()

    def close(self) -> None:
        """Let go of everything at once, as a daemon that is killed."""
        for reader in self.engine._readers.values():
            reader.close()  # type: ignore[attr-defined]
        if isinstance(self.node, RecordedNode):
            self.node.close()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextmanager
def simulated(preset: str | Preset, folder: Path, **more: Any) -> Iterator[SimulatedDaemon]:
    """A daemon of a node that boots now, by its own cadences; it keeps its state at the end.

    Args:
        preset: see ``SimulatedDaemon``, as for the rest.
        folder: for its files and its state.
        more: of ``SimulatedDaemon``.
    """
    with pytest.MonkeyPatch.context() as patched:
        daemon = SimulatedDaemon(preset, folder, patched, **more)
        daemon.start()
        try:
            yield daemon
        finally:
            daemon.stop()


@contextmanager
def rehearsed(
    node: str, folder: Path, monkeypatch: pytest.MonkeyPatch, faults: str = "", job_log: str = "", **more: Any
) -> Iterator[SimulatedDaemon]:
    """A node that boots now, read and probed when the test says so; driver library and clocks are put back afterwards.

    Args:
        node: a preset, or a file of one's own.
        folder: for its files and its state.
        monkeypatch: puts the driver library and the clocks back.
        faults: YAML.
        job_log: see ``SimulatedDaemon``.
        more: of ``SimulatedDaemon``.
    """
    with monkeypatch.context() as patched:
        daemon = SimulatedDaemon(node, folder, patched, faults=faults, job_log=job_log, **more)
        try:
            yield daemon
        finally:
            daemon.close()


@contextmanager
def whole_node(
    preset: str, folder: Path, monkeypatch: pytest.MonkeyPatch, opt_in: Sequence[str] = (), faults: str = ""
) -> Iterator[SimulatedDaemon]:
    """A node that has been read twice, a second apart, so that rates are known.

    Args:
        preset: name of the simulated node.
        folder: for its files and its state.
        monkeypatch: puts driver library and clocks back.
        opt_in: metrics that are asked for.
        faults: YAML; the first reading is an hour after the boot.
    """
    booted_at, log = READ_AT - 3600.0, "\n"
    with rehearsed(
        preset, folder, monkeypatch, faults, log, opt_in=opt_in, booted_at=booted_at, time_now=3600.0
    ) as node:
        node.run()
        node.time += 1.0
        node.run()
        yield node


@cache
def _parser(commands: tuple[str, ...]) -> argparse.ArgumentParser:
    """The command line, made once: it takes longer than most commands."""
    return build_parser(commands)


def _seconds(plan: CyclePlan, step: Any, rank: int, probes: SimulatedProbes) -> float:
    ways = [step.members]
    if pair := next((pair for pair in step.pairs if rank in pair), None):
        # The clock of a small message is that of its source, and half of the round trip comes back.
        here, there = rank, sum(pair) - rank
        ways = [(here, there), (there, here)] if step.purpose == "latency" else [(there, here)]
    return sum(
        median(
            probes.operation_seconds(step.operation, step.size_bytes, way, rank, call, both_ways=step.both_ways,
                                     devices=plan.devices)
            for call in _WARM_CALLS
        )
        for way in ways
    ) / len(ways)  # fmt: skip


def _timed(log: str) -> list[tuple[float, str]]:
    """The lines of a log, each with the seconds since 1970 at which it was written."""
    from commwatch.jobs.logs.event import time_of

    lines, at = [], BOOTED_AT
    for line in log.strip("\n").splitlines(keepends=True):
        at = time_of(line, time.gmtime(BOOTED_AT).tm_year) or at
        lines.append((at, line))
    return lines
