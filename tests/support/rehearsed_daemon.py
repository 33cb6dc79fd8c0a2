"""A daemon over a simulated node in this process, at times that the test sets, and the commands that ask it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pynvml
import pytest
from structlog.testing import capture_logs

import commwatch.service.log
from commwatch import __main__
from commwatch.commands import score
from commwatch.config.settings import Config, NcclLogsSection, Paths, Simulation, Sources
from commwatch.config.simulated import SimulationPlan, absolute
from commwatch.diagnosis import known
from commwatch.diagnosis.health import check
from commwatch.jobs.logs import source as nccl_logs
from commwatch.jobs.logs.event import time_of
from commwatch.jobs.settings.plan import JobSettings
from commwatch.node.run import Collected, Collector
from commwatch.node.topology.sysfs import SysfsFacts, read_sysfs
from commwatch.probes import topology
from commwatch.probes.node import ProbeNode
from commwatch.probes.plan import CyclePlan, CycleResult, Failed
from commwatch.probes.rank_plan import FailureReason
from commwatch.probes.results.records import AnyRecord, load_record, take_outcome
from commwatch.readings import SourceUnavailable
from commwatch.service import collection, judgement, pipeline
from commwatch.service import judge as verdict
from commwatch.service.api import Answers
from commwatch.service.collection import Collection
from commwatch.service.judge import Judge
from commwatch.simulation.faults.fault import SimulatedProbeFailure
from commwatch.sources.base import Origin, Source
from commwatch.state.control import ControlServer
from commwatch.state.directory import state_path
from commwatch.workers.sources import SOURCES
from commwatch_exporters.node_page.records import ProbeStatus
from commwatch_exporters.snapshot import Block, Layout, Snapshot
from support.core import NodeReads, ScriptedReader
from support.facts import shipped
from support.probed_node import cycle_of
from support.rehearsed_probes import probe_by_hand
from support.waiting import PATIENCE_SECONDS
from support.whole_node import KEYS, NodeClock, WholeNode

ANSWERED_WITHIN = (
    (known, "_DAEMON_SECONDS"), (check, "DAEMON_SECONDS"), (check, "SNAPSHOT_SECONDS"), (check, "TOTAL_SECONDS"),
    (score, "DEADLINE_SECONDS"),
)  # fmt: skip
"""How long the commands wait for a daemon."""

BOOTED_AT = 1_767_261_600.0
"""2026-01-01 10:00 UTC: when a rehearsed node boots and its daemon starts."""
LOOK_SECONDS = 30.0
"""Between two looks; the daemon itself looks every 10 s."""


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


class RehearsedDaemon(WholeNode):
    """What a daemon knows of a simulated node as time passes: all sources, analysis, probes, findings and score.

    Sources are asked in this process and not in workers, and a probe's ranks are asked for their times without being
    started. All else is what the daemon does. No clock of the machine is read.
    """

    started_at = BOOTED_AT
    time = 0.0
    maintenance: str | None = None
    """Why it is paused; None where it is not."""

    def __init__(self, node: str, folder: Path, monkeypatch: pytest.MonkeyPatch, faults: str, job_log: str) -> None:
        self._monkeypatch = monkeypatch
        self._loop = asyncio.new_event_loop()
        self._log_file = folder / "job.log"
        self._log_file.touch()
        self._log_left = _timed(job_log)
        config = Config(
            paths=Paths(state=str(folder / "state")),
            simulation=Simulation(preset=absolute(node)),
            sources=Sources(nccl_logs=NcclLogsSection(paths=(str(self._log_file),) if job_log else ())),
        )
        state_path(config).mkdir(parents=True, exist_ok=True)
        super().__init__(absolute(node), folder, faults=faults, config=config)
        self.changes: list[Change] = []
        """What opened and closed until now."""
        self._read_no_clock()
        self._collection = Collection(
            self._collectors, self.store, self.instruments, self._after, self._absent, self._pipeline.wraps.correct,
        )  # fmt: skip
        self.verdict = Judge(
            shipped(), self._kept.history, self._kept.register, self.store, self.instruments, self._collection
        )
        self._records: dict[str, AnyRecord] = {}
        self._prober = self._probe_node()
        probe_by_hand(self, monkeypatch)

    @property
    def collectors(self) -> Sequence[Collector]:
        """All that read the node."""
        return tuple(self._collection.collectors.values())

    def _read_no_clock(self) -> None:
        clock = NodeClock(self)
        for module in (collection, verdict):
            self._monkeypatch.setattr(module, "time", clock)
        self._monkeypatch.setattr(time, "time", clock.time)
        # A command that logs would set up the logging of all tests that follow.
        self._monkeypatch.setattr(commwatch.service.log, "configure_logging", lambda settings: None)

    def _open(self, name: str, opt_in: tuple[str, ...]) -> Source:
        if name != nccl_logs.NcclLogsSource.collectors[0]:
            return super()._open(name, opt_in)
        clock = NodeClock(self)
        return nccl_logs.NcclLogsSource(
            self.config.sources.nccl_logs.paths, host="node1", clock=clock.time, monotonic=clock.monotonic
        )

    def _absent(self, source: str) -> str | None:
        sysfs, procfs = self.roots
        return SOURCES[source].why_absent(Origin(Path(sysfs), Path(procfs), self.config.sources))

    def _run(self, collector: Collector) -> None:
        reader = collector.reader
        assert isinstance(reader, ScriptedReader)
        reader.answers.append(self._answer(collector))
        self._loop.run_until_complete(self._collection.run(collector))
        reader.answers.clear()  # of a source that is not on the node, nobody asked

    def _answer(self, collector: Collector) -> Collected | SourceUnavailable:
        try:
            batch = self._sources[collector.source].collect(KEYS[collector.name])
        except SourceUnavailable as error:
            return error
        return Collected(
            self._blocks(batch, collector.source), batch.absences, 0.0, batch.events, batch.occupants,
            batch.log_errors, batch.resume, batch.audit,
        )  # fmt: skip

    # --- time ---

    def until(self, minutes: float, step: float = LOOK_SECONDS) -> None:
        """Let time pass, up to so many minutes after the boot: jobs write their log, all is read, the rules look.

        Args:
            minutes: at the end.
            step: seconds between two looks.
        """
        while self.time < 60.0 * minutes:
            self.time = min(60.0 * minutes, self.time + step)
            self._write_log()
            with capture_logs():
                self.run()
            self.look()

    def look(self) -> None:
        """Let results of probes age, and the rules look."""
        for name in self._records:
            self._publish(name)
        with capture_logs() as logged:
            self.verdict.look(self.snapshot(), time.time())
        self.changes += [
            Change(self.time, entry["event"].removeprefix("finding "), entry["code"], entry["component"])
            for entry in logged
            if entry["event"] in ("finding opened", "finding closed")
        ]

    def _write_log(self) -> None:
        """What the job has written by now."""
        due = [line for at, line in self._log_left if at <= time.time()]
        if due:
            with self._log_file.open("a", encoding="utf-8") as log:
                log.writelines(due)
            del self._log_left[: len(due)]

    # --- probes ---

    def probe(self, *names: str) -> None:
        """Run one cycle of each of these probes, or of all, on a node that is free."""
        for name in names or self.config.probes.definitions:
            self._probe(name)
        self.look()

    @property
    def is_free(self) -> bool:
        """Whether no job is on a GPU."""
        return not any(self.store.occupants.values())

    def _probe(self, name: str) -> None:
        assert self.is_free, "a daemon would not probe while a job runs"
        probe = self.config.probes.definitions[name]
        prospect = self._loop.run_until_complete(self._prober.joined_prospect(name))
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = load_record(self.state, prospect.plan, probe, shipped())
        record.adopt_plan(prospect.plan)
        if prospect.plan.steps:
            take_outcome(record, self.outcome(prospect.plan), prospect, probe, time.time())
        self._publish(name)

    def outcome(self, plan: CyclePlan) -> CycleResult:
        """What a cycle that is run now comes to."""
        if error := self.node.error_of_cycle(plan.ranks, plan.devices):
            return Failed(finished_at=time.time(), occupied_seconds=3.0, reason="nccl_error", detail=error)
        try:
            return cycle_of(plan, self.node, time.time())
        except SimulatedProbeFailure as failure:
            reason: FailureReason = "wrong_result" if failure.reason == "wrong_result" else "nccl_error"
            return Failed(finished_at=time.time(), occupied_seconds=3.0, reason=reason, detail=failure.reason)

    def record(self, name: str) -> AnyRecord:
        """What is known of a probe that has run."""
        return self._records[name]

    def show(self, name: str) -> None:
        """Put what is known of a probe into the store, as the daemon does once a minute."""
        self._publish(name)

    def _publish(self, name: str) -> None:
        readings = self._records[name].readings(time.time())
        layout = Layout(tuple((metric, labels) for metric, labels, _ in readings))
        block = Block(layout, [value for _, _, value in readings], self.time)
        self.store.put("probes", name, block, float("inf"))

    def _probe_node(self) -> ProbeNode:
        # Else in a process of its own, which may hang.
        self._monkeypatch.setattr(topology, "ask_sysfs", _read_sysfs)

        async def nothing() -> None:
            """All was read at the last step."""

        sysfs, procfs = self.roots
        plan = SimulationPlan(self.preset, str(self.faults_file or ""), self.started_at, sysfs, procfs)
        read = NodeReads(nothing, nothing)
        return ProbeNode(self.config, self.store, self.state.path, plan, read)

    # --- commands ---

    def command(self, *arguments: str, simulated: bool = True) -> tuple[int, str]:
        """Exit code and output of a command, asked of this daemon through its control socket.

        Args:
            arguments: of ``commwatch``.
            simulated: False: both say that the node is a real one.
        """
        self.save()
        own = ["--path.state", str(self.state.path)]
        if simulated:
            own = ["--simulate", self.preset, "--path.state", self.config.paths.state]
        output = io.StringIO()
        with self.control(simulated=simulated), contextlib.redirect_stdout(output):
            code = __main__.main([*arguments, *own])
        return code, output.getvalue()

    @contextmanager
    def control(self, *, simulated: bool = True) -> Iterator[None]:
        """The daemon's end of the control socket, in a thread: commands wait for what it says."""
        config = self.config if simulated else msgspec.structs.replace(self.config, simulation=Simulation())
        answers = Answers(AskedDaemon(self, config, self.maintenance))
        server, loop = ControlServer(self.state.path, answers.operations()), asyncio.new_event_loop()
        loop.run_until_complete(server.listen())
        thread = threading.Thread(target=loop.run_forever, name=f"daemon of {self.preset}")
        thread.start()
        try:
            with pytest.MonkeyPatch.context() as patched:
                # The daemon shares its interpreter with the command: how soon it answers is the machine's affair.
                for module, name in ANSWERED_WITHIN:
                    patched.setattr(module, name, PATIENCE_SECONDS)
                yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(server.stop())
            loop.close()

    def save(self) -> None:
        """Write what must survive a restart, as the daemon does at its end."""
        self.save_judgement()
        for name, record in self._records.items():
            self.state.save(f"probe-{name}", record.history)

    def save_judgement(self) -> None:
        """Write what must agree after a crash, as of the last look."""
        kept = self.judgement()
        judgement.check(kept)
        self.state.save(judgement.STATE_NAME, kept)
        self.state.save(pipeline.STATE_NAME, self._pipeline.inventory.state)

    def version(self) -> tuple[int, ...]:
        """Changes with each event that the daemon would save soon."""
        return (*self._pipeline.version, self.verdict.register.version)

    def judgement(self) -> judgement.Judgement:
        """What must survive a crash."""
        return self._pipeline.judgement(self.verdict)

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        self._loop.close()


@dataclass(frozen=True)
class AskedDaemon:
    """A rehearsed daemon as its endpoint and its control socket ask it."""

    daemon: RehearsedDaemon
    config: Config
    maintenance: str | None = None
    probes: Callable[[float], Sequence[ProbeStatus]] = lambda now: ()

    @property
    def verdict(self) -> Judge:
        """As of its last look."""
        return self.daemon.verdict

    @property
    def job_settings(self) -> JobSettings:
        """As of the last audit."""
        return self.daemon.job_settings

    def whole_snapshot(self) -> Snapshot:
        """As of the last run of everything."""
        return self.daemon.snapshot()

    def probe_statuses(self, now: float) -> Sequence[ProbeStatus]:
        """As the test says."""
        return self.probes(now)


@contextmanager
def rehearsed(
    node: str, folder: Path, monkeypatch: pytest.MonkeyPatch, faults: str = "", job_log: str = ""
) -> Iterator[RehearsedDaemon]:
    """A node that boots now, under a daemon; driver library and clocks are put back afterwards.

    Args:
        node: a preset, or a file of one's own.
        folder: for its files and its state.
        monkeypatch: puts the driver library and the clocks back.
        faults: YAML.
        job_log: what a job will have written; each line is added at the time that it names, in UTC, and those without
            one with the line before.
    """
    with monkeypatch.context() as patched:
        patched.setattr(pynvml, "nvmlLib", None)
        patched.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        daemon = RehearsedDaemon(node, folder, patched, faults, job_log)
        try:
            yield daemon
        finally:
            daemon.close()


def _timed(log: str) -> list[tuple[float, str]]:
    """The lines of a log, each with the seconds since 1970 at which it was written."""
    lines, at = [], BOOTED_AT
    for line in log.splitlines(keepends=True):
        at = time_of(line, time.gmtime(BOOTED_AT).tm_year) or at
        lines.append((at, line))
    return lines


async def _read_sysfs(sysfs: str, procfs: str, deadline: float) -> SysfsFacts:
    return read_sysfs(Path(sysfs), Path(procfs))
