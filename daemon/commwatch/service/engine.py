"""The running parts of one configuration: readers, collectors, analysis and probes; rebuilt when it changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import structlog

from commwatch.cluster.between_nodes import BetweenNodes
from commwatch.config.metric_profile import unexported
from commwatch.config.settings import Config, Paths
from commwatch.config.simulated import SimulationPlan
from commwatch.config.thresholds import Thresholds
from commwatch.errors import CommwatchError
from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.history import CounterHistory
from commwatch.findings.register import Register
from commwatch.jobs.evidence import JobEvidence
from commwatch.jobs.settings.plan import SOURCE as SETTINGS
from commwatch.jobs.settings.plan import JobSettings
from commwatch.node.gpus_now import GPU_COLLECTORS, PROCESS_COLLECTOR
from commwatch.node.run import Collected, Collector, Keeper
from commwatch.node.starvation import Starvation
from commwatch.node.store import Store
from commwatch.readings import Absence
from commwatch.service.collection import Collection, Presence
from commwatch.service.instruments import Instruments
from commwatch.service.job_ras import INTERVAL_SECONDS as RAS_SECONDS
from commwatch.service.job_ras import JobRas
from commwatch.service.job_words import JobWords
from commwatch.service.judge import Judge
from commwatch.service.judgement import STATE_NAME, check, restore
from commwatch.service.keeping import Keeping
from commwatch.service.pipeline import STATE_NAME as INVENTORY
from commwatch.service.pipeline import Pipeline
from commwatch.service.probing import Probing
from commwatch.service.scheduling import Scheduler
from commwatch.sources.presence import boot_identity
from commwatch.state.directory import StateDirectory
from commwatch.workers.process_state import held_devices
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.sources import READERS, SOURCES, ReaderRow, SourceRow
from commwatch.workers.start import Launch, start_python
from commwatch_exporters.catalogue import OPT_IN
from commwatch_exporters.snapshot import Snapshot

log = structlog.get_logger("commwatch.engine")

FIRST_RUN_PATIENCE_SECONDS = 10.0
"""The daemon is ready after this time, even if some collectors have not answered."""
_VERSION = attrgetter("version")


class Engine(Keeper):
    """Everything that depends on the configuration."""

    def __init__(
        self,
        config: Config,
        thresholds: Thresholds,
        state: StateDirectory,
        simulation: SimulationPlan | None,
        instruments: Instruments,
        scheduler: Scheduler,
        starvation: Starvation,
        launch: Launch = start_python,
        kernel_log: int | None = None,
    ) -> None:
        self.config = config
        self._launch = launch
        self._kernel_log = kernel_log
        self.store = Store(OPT_IN - config.metrics.asked_for, unexported(config.metrics))
        self._instruments = instruments
        self._scheduler = scheduler
        self._starvation = starvation
        self._simulation = simulation
        self._procfs = Path(config.paths.procfs)
        self._roots: SimulationPlan | Paths = simulation or config.paths
        """Where the node shows itself."""
        self._first_runs: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self.job_settings = JobSettings(
            self.store, self._own_ranks, partial(scheduler.run_in, SETTINGS), identity=config.jobs.identity
        )
        self._readers = self._build_readers()
        collectors = self._build_collectors()
        kept = restore(state, boot_identity(self._roots.procfs), time.time())
        history = CounterHistory(WATCHED, EVENTS, kept.history)
        self.pipeline = Pipeline(
            config, thresholds, self._roots, state, kept, history, self.store, self._driver_readers(),
            tuple(self._readers.values()), self.job_settings, collectors,
        )  # fmt: skip
        self.presence = Presence(
            self._roots, self._procfs, config.sources, self.pipeline.inventory, self.pipeline.bus,
            self.pipeline.without_gpm,
        )  # fmt: skip
        self.collection = Collection(
            collectors, self._readers, self.store, instruments, self.presence, self.pipeline.wraps
        )  # fmt: skip
        self.verdict = Judge(
            thresholds, history, Register(kept.register), self.store, instruments, self.collection
        )  # fmt: skip
        self.probing = Probing(
            config,
            thresholds,
            state,
            self.store,
            scheduler,
            simulation,
            self,
            starvation,
        )
        self.job_ras = JobRas(self.store, thresholds, self._roots.procfs) if config.jobs.ras else None
        self._job_words = JobWords(
            self.store, self.pipeline.stuck_jobs, self.pipeline.flight_recorder, self.pipeline.job_logs,
            self.job_settings, self.job_ras, Path(self._roots.procfs),
        )  # fmt: skip
        self.between_nodes = BetweenNodes(config.cluster, state, self.store)
        self._silent_gpus = self.pipeline.inventory.silent_gpus
        """As of the last run that was kept."""
        self._is_judged = False
        """Whether the rules have seen all that was kept."""
        self._keeping = Keeping(state, self, scheduler)

    # --- what is built ---

    def _build_readers(self) -> dict[str, Reader]:
        readers = {}
        for row in READERS:
            if sources := [source for source in row.sources if source.section(self.config.sources).enabled]:
                readers[row.name] = self._reader(row, sources)
        return readers

    def _reader(self, row: ReaderRow, sources: Sequence[SourceRow]) -> Reader:
        names = [source.name for source in sources]
        settings = ReaderSettings.of(
            self.config,
            sources,
            self._simulation,
            opt_in=self.config.metrics.asked_for,
            rest_when_unavailable=row.holds_driver,
            # No other process gets it: a driver's library or the file of a job has no business in it.
            launch=partial(self._launch, kernel_log=self._kernel_log) if "kernel_log" in names else self._launch,
        )
        self.worker_stuck(row.name, 0)
        return Reader(settings, self, starvation=None if SETTINGS in names else self._starvation)

    def _build_collectors(self) -> list[Collector]:
        return [
            Collector(
                name=row.name,
                source=source.name,
                deadline=self._readers[source.reader.name].settings.deadline,
                interval=getattr(source.section(self.config.sources), row.interval),
                needs_release=source.reader.needs_release,
                is_ready=self.job_settings.is_ready if source.name == SETTINGS else lambda: True,
                nothing=self.job_settings.nothing if source.name == SETTINGS else None,
                devices_per_interval=row.devices_per_interval,
            )
            for source in SOURCES.values()
            if source.section(self.config.sources).enabled
            for row in source.collectors
        ]

    # --- what is read ---

    def keep(self, collected: Collected) -> None:
        """Keep what one run of a collector gave, have the trackers follow it, and have it saved if it must not be lost.

        It comes from the readers, unasked.
        """
        try:
            outcome = self.collection.keep(collected)
            if outcome is None:
                return
            self._is_judged = False
            self.pipeline.on_batch(outcome)
            silent, self._silent_gpus = self._silent_gpus, self.pipeline.inventory.silent_gpus
            if self._silent_gpus != silent and self.verdict.looked_at is not None:
                self.look()  # the verdict is not OK for longer than that takes to be known
            self._keeping.notice()
        except Exception:  # a defect of ours must be seen, and no other collector is to suffer from it
            log.exception("what was read could not be kept", collector=collected.collector)

    def lose(self, collector: str, absence: Absence) -> None:
        """Drop everything about a device that does not answer; the next run reports it."""
        self.collection.drop_device(self.collection.collectors[collector], absence)

    def worker_restarted(self, worker: str, reason: str) -> None:
        self._instruments.worker_restarts.labels(worker, reason).inc()

    def worker_stuck(self, worker: str, count: int) -> None:
        self._instruments.worker_stuck.labels(worker).set(count)

    def resume_point(self, sources: tuple[str, ...]) -> dict[str, bytes]:
        return {SETTINGS: self.job_settings.order()} if SETTINGS in sources else self.pipeline.job_logs.resume_point

    def stuck_elsewhere(self, sources: tuple[str, ...]) -> int:
        # What is stuck in a driver holds nothing back but what holds the driver.
        return self.probing.stuck_count if SOURCES[sources[0]].reader.holds_driver else 0

    # --- what the parts ask of each other ---

    def _own_ranks(self) -> list[int]:
        return self.probing.pids()

    def _driver_readers(self) -> list[Reader]:
        """Those that hold a driver's device files open."""
        return [self._readers[row.name] for row in READERS if row.holds_driver and row.name in self._readers]

    def stuck_readers(self) -> int:
        """Processes of driver readers that hang; other readers hold no driver."""
        return sum(reader.stuck_count for reader in self._driver_readers())

    def is_driver_expected(self) -> bool:
        """Whether this node has an NVIDIA driver, or should have one."""
        return self.presence.is_driver_expected()

    async def read_gpus(self) -> None:
        """Read use, memory, modes and processes of the GPUs now."""
        for name in GPU_COLLECTORS:
            await self._read_now(name)

    async def read_processes(self) -> None:
        """Read the processes on the GPUs now."""
        await self._read_now(PROCESS_COLLECTOR)

    async def _read_now(self, name: str) -> None:
        collector = self.collection.collectors.get(name)
        if collector is not None:
            await self.collection.run(collector)

    # --- life ---

    def take_over(self, earlier: Engine) -> None:
        """Look after what hangs in a driver since an engine that was stopped: no process joins it.

        Reports of runs between nodes go to that engine until this one has started.
        """
        for name, reader in self._readers.items():
            if name in earlier._readers:
                reader.take_over(earlier._readers[name])
        self.probing.take_over(earlier.probing)
        if self.job_ras is not None and earlier.job_ras is not None:
            self.job_ras.take_over(earlier.job_ras)
        self.between_nodes.take_over(earlier.between_nodes)

    async def start(self) -> None:
        """Have every collector run from now on; returns when each has run once or the time for that is over."""
        self.collection.tend()
        latest = time.monotonic() + FIRST_RUN_PATIENCE_SECONDS
        await self._run_first(self.collection.collectors.values(), latest)
        # What these read may show that another source is needed.
        await self._run_first([one for one in self.collection.collectors.values() if one.state == "absent"], latest)
        self.pipeline.observe(time.monotonic())
        if (audits := self.collection.collectors.get(SETTINGS)) is not None:
            self._scheduler.add(SETTINGS, partial(self.collection.run, audits), audits.interval)
        self.job_settings.begin()
        if self.job_ras is not None:
            self._scheduler.add("job_ras", self.job_ras.run, RAS_SECONDS)
        self.probing.schedule()
        self.refresh()
        self.look()  # what is counted is not saved before the rules have seen it
        self._keeping.start()

    async def _run_first(self, collectors: Iterable[Collector], latest: float) -> None:
        runs = [asyncio.create_task(self.collection.run(one)) for one in collectors]
        if runs:
            # The event loop itself keeps no task alive, and some may go on past our patience.
            self._first_runs.update(runs)
            await asyncio.wait(runs, timeout=max(0.0, latest - time.monotonic()))

    async def pause(self, reason: str) -> None:
        """Let go of the driver: probes and driver workers are gone when this returns, or known to be stuck."""
        self.store.maintenance = reason
        self.collection.tend()
        self.job_settings.look()
        await asyncio.gather(self.probing.cancel("maintenance", reason), *(
            reader.release() for reader in self._driver_readers()))  # fmt: skip
        self.pipeline.pause()
        log.warning("paused", reason=reason, released=self.released())

    def resume(self) -> None:
        """Read and probe again."""
        self.look()  # what the driver reported until now is in the findings before it is no longer recent
        self.store.maintenance = None
        self.collection.resume()
        self.pipeline.resume()
        self._scheduler.run_in(SETTINGS, 0.0)
        log.info("resumed")

    def released(self) -> bool:
        """Whether no process of ours that may hold a driver is left."""
        return not any(reader.pids() for reader in self._driver_readers()) and not self.probing.pids()

    def held(self) -> dict[int, list[str]]:
        """Device files that our processes hold open, by process."""
        pids = [pid for reader in self._readers.values() for pid in reader.pids()] + self.probing.pids()
        return held_devices(self._procfs, pids)

    def processes(self) -> list[tuple[str, list[int]]]:
        """Our processes by name."""
        return [(name, reader.pids()) for name, reader in self._readers.items()] + [("probe", self.probing.pids())]

    def expire(self) -> None:
        """Drop expired values, and check the stuck processes."""
        self.store.expire(time.monotonic())
        for reader in self._readers.values():
            reader.tend()

    def refresh(self) -> None:
        """Bring up to date what depends on the time alone."""
        self.worker_stuck("probe", self.probing.stuck_count)
        self.probing.refresh()
        self.between_nodes.refresh()

    async def stop(self) -> None:
        """Stop everything that answers; a stuck process is left behind.

        It goes on where the caller is cancelled, and a second call waits for the same end.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self.collection.stop()
        self._scheduler.remove_all()
        await asyncio.gather(self.probing.stop(), *(reader.stop() for reader in self._readers.values()))
        self._keeping.stop()
        await self.save()

    def whole_snapshot(self) -> Snapshot:
        """All that is current of the node, with the metrics of the daemon itself."""
        self.store.put("daemon", "", self._instruments.block(time.monotonic()))
        return self.store.snapshot()

    def look(self) -> None:
        """Look at the node with the rules; what opens or closes is saved at once."""
        self._evaluate()
        self._keeping.notice()

    def _evaluate(self) -> None:
        now = time.time()
        words: Mapping[str, Sequence[JobEvidence]] = {}
        try:
            words = self._job_words.words(now)
        except Exception:  # a defect of ours must be seen, and what a job wrote must not end the watching
            log.exception("what jobs wrote could not be joined to the findings")
        self.verdict.evaluate(self.whole_snapshot(), now, words)
        self._is_judged = True

    # --- what must survive a restart ---

    async def save(self) -> None:
        """Write all of it now; what cannot be written is logged, and tried again at the next time."""
        await self._keeping.save()

    def records(self) -> dict[str, msgspec.Struct]:
        """The records that should agree after a crash, by name, in the order in which they are written."""
        records: dict[str, msgspec.Struct] = {INVENTORY: self.pipeline.inventory.state}
        if self.verdict.looked_at is None:
            return records  # events may have been counted that the history does not know yet
        if not self._is_judged:
            self._evaluate()
        judgement = self.pipeline.judgement(self.verdict)
        try:
            check(judgement)
        except ValueError as error:
            # A defect of ours: what was written before agrees, and what has happened since is counted again from it.
            log.error("the record of events and findings contradicts itself and is not saved", error=str(error))
            return records
        return {**records, STATE_NAME: judgement}

    @property
    def version(self) -> int:
        """Grows with each event that must not be lost."""
        return sum(map(_VERSION, (*self.pipeline.trackers, self.pipeline.wraps, self.verdict.register)))

    def save_others(self) -> None:
        """Save what agrees with nothing else, where it has changed; called in a thread."""
        try:
            self.between_nodes.save()
        except OSError as error:
            log.error("something cannot be saved; it is tried again later", what="runs between nodes", error=str(error))
        self.probing.save()

    def inventory(self) -> dict[str, Any]:
        """The document of ``commwatch inventory``; a probe's open loss counts as missing, like a part."""
        known = self.pipeline.inventory.describe()
        return {**known, "missing": [*known["missing"], *self.probing.losses()]}

    async def accept_inventory(self) -> dict[str, Any]:
        """Expect what is here now, and nothing more.

        Raises:
            CommwatchError: it cannot be accepted, or not be saved.
        """
        given_up = [*self.pipeline.inventory.accept(), *self.probing.accept()]
        self._is_judged = False
        failures = await self._keeping.save()
        if error := failures.get(INVENTORY):
            raise CommwatchError(f"accepted, but lost at the next start: the state is not saved ({error})") from error
        return {**self.inventory(), "given_up": given_up}
