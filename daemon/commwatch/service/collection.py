"""Runs the collectors: asks the readers on time, keeps what they gave, and says what failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog

from commwatch.findings.verdict import UnreadSource
from commwatch.node.run import TAKE_SECONDS, AskedReader, Collected, Collector, Outcome, is_everywhere
from commwatch.node.store import Store
from commwatch.readings import WORKER_REASONS, Absence, SourceUnavailable
from commwatch.service.instruments import Instruments
from commwatch.service.scheduling import Scheduler
from commwatch.workers.sources import SOURCES
from commwatch_exporters.snapshot import Block

log = structlog.get_logger("commwatch.collection")

SLOW_SHARE = 0.1
"""A collector that takes more than this share of its interval runs half as often."""
SLOW_RUNS = 3
"""So many slow runs in a row, so that one hiccup changes nothing."""
QUICK_RUNS = 60
LONGEST_STRETCH = 16
AFTER_FAILURE_SECONDS = 2.0
UNREAD_INTERVALS = 2
"""A source is unread once its last reading is older than this number of intervals plus ``TAKE_SECONDS``."""
STARTING_SECONDS = 60.0
"""A source that was not read yet is exposed as unread only then: a driver may take as long to open."""
WATCHED_SECONDS = 3.0
"""Who asks again within this time watches."""
_OF_GPUS = tuple(name for name, row in SOURCES.items() if row.needs_gpus)
"""Sources of which only the daemon notices that nothing is left to read."""
SOON_SECONDS = 1.0
"""After a device went or came, the slow collectors of its source run so soon, not only when it is their turn."""


class Collection:
    """All collectors of a node."""

    def __init__(
        self,
        collectors: Iterable[Collector],
        store: Store,
        instruments: Instruments,
        scheduler: Scheduler,
        analyse: Callable[[Outcome], None],
        origin_absent: Callable[[str], str | None],
        correct: Callable[[Collector, dict[str, Block]], dict[str, Block]] = lambda collector, blocks: blocks,
    ) -> None:
        """Args:
        analyse: called with each run.
        origin_absent: says for a source why it is not needed on this node; None where it is to be read.
        correct: makes of the blocks that were read those that are kept.
        """
        self.collectors = {one.name: one for one in collectors}
        self._paused = self._stopped = False
        self._began = time.monotonic()
        """When it was started or resumed, monotonic seconds."""
        self._epoch = 0
        """Changes with each pause, resume and stop: what was asked for in an earlier epoch is not kept in a later."""
        self._store = store
        self._instruments = instruments
        self._scheduler = scheduler
        self._analyse = analyse
        self._origin_absent = origin_absent
        self._correct = correct
        self._told_absent: set[str] = set()
        self._asked_at = float("-inf")
        self._listens = False
        """Whether what workers read by themselves is taken as it comes."""
        of_reader: dict[int, tuple[AskedReader, dict[str, Collector]]] = {}
        for one in sorted(self.collectors.values(), key=lambda collector: collector.interval):
            of_reader.setdefault(id(one.reader), (one.reader, {}))[1][one.key] = one
        self._by_reader: Sequence[tuple[AskedReader, Mapping[str, Collector]]] = tuple(of_reader.values())
        """Each reader and its collectors, by what its worker calls them, the most frequent first."""

    @property
    def absent_sources(self) -> frozenset[str]:
        """Sources that are not on this node."""
        return frozenset(self._told_absent)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Collectors that had no answer in time while the node was starved."""
        return tuple(
            name for name, one in self.collectors.items() if any(gap.reason == "starved" for gap in one.failing)
        )

    def unread(self) -> tuple[UnreadSource, ...]:
        """The sources of this node without a current reading: none for two intervals, or none since the start.

        Sources of jobs are left out, and so are those that rest, are not on this node, or were starved: without a
        reading of a job nothing is unknown of the node, and what starved is not judged.
        """
        now, found = time.monotonic(), []
        for name, row in SOURCES.items():
            pulse = self.collectors.get(row.pulse or row.collectors[0].name)
            if pulse is None or row.of_jobs or name in self._told_absent or self._rests(pulse):
                continue
            if any(gap.reason == "starved" for gap in pulse.failing):
                continue
            age = None if pulse.last_reading is None else now - pulse.last_reading
            if age is not None and age <= UNREAD_INTERVALS * pulse.current_interval + TAKE_SECONDS:
                continue
            why = next(iter(sorted(gap.detail for gap in pulse.failing)), "")
            found.append(UnreadSource(name, age, why, row.lists_parts))
        return tuple(sorted(found, key=lambda one: not one.lists_parts))

    def show_unread(self) -> None:
        """Expose which sources have no current reading; one that starts or resumes has time for its first one."""
        unread = {one.source: one.seconds for one in self.unread()}
        starts = time.monotonic() - self._began < STARTING_SECONDS
        for name in {one.source for one in self.collectors.values()}:
            flag = name in unread and not (unread[name] is None and starts)
            self._instruments.source_unread.labels(name).set(flag)

    @property
    def is_paused(self) -> bool:
        """Whether what holds a driver rests."""
        return self._paused

    def schedule(self) -> None:
        """Plan every collector at its interval, but for those that their workers run and those that are not here."""
        for collector in self.collectors.values():
            self._scheduler.add(collector.name, partial(self.run, collector), collector.current_interval)
            if collector.is_flowing or collector.is_absent:
                self._scheduler.rest(collector.name)
            self._instruments.collector_interval.labels(collector.name).set(collector.current_interval)

    async def run(self, collector: Collector) -> None:
        """Ask for one collector and keep what it gives; whatever goes wrong is an absence."""
        if self._rests(collector):
            return
        absent = self._origin_absent(collector.source)
        if absent is not None:
            self._not_needed(collector, absent)
            return
        self._told_absent.discard(collector.source)
        collector.is_absent = False
        if not collector.is_ready():
            self._store.drop_group(collector.name)
            self._forget_run(collector)
            return
        epoch, unavailable = self._epoch, None
        every = collector.current_interval if collector.is_standing else 0.0
        try:
            collected = await collector.reader.collect(collector.key, every)
        except SourceUnavailable as error:
            unavailable = error
            collected = Collected({}, [Absence("", error.reason, error.detail)], 0.0)
        if self._stopped or (collector.needs_release and epoch != self._epoch):
            return
        self._set_flow(collector, flows=bool(every) and collector.reader.runs(collector.key, every))
        self._keep_runs(collector, [*collected.earlier, collected], unavailable)
        if any(absence.reason in WORKER_REASONS and not absence.device for absence in collected.absences):
            # The worker failed, not its source: a slow collector need not wait for its turn to be read again.
            self._scheduler.run_in(collector.name, min(collector.current_interval, AFTER_FAILURE_SECONDS))

    def _keep_runs(
        self, collector: Collector, runs: Sequence[Collected], unavailable: SourceUnavailable | None = None
    ) -> None:
        """Keep what came of one collector at once, the oldest first; of all but the last only what moves or happens."""
        earlier = [self._correct(collector, run.blocks) for run in runs[:-1]]
        last = runs[-1]
        blocks = self._correct(collector, last.blocks)
        if blocks is not last.blocks or len(runs) > 1:
            last = replace(
                last,
                blocks=blocks,
                events=[event for run in runs for event in run.events],
                log_errors=[error for run in runs for error in run.log_errors],
                # Told only where it has changed.
                resume=next((run.resume for run in reversed(runs) if run.resume is not None), None),
            )
        self._keep(collector, last, source_gone=unavailable is not None)
        self._record(collector, last, unavailable)
        self._analyse(Outcome(collector, last, unavailable, time.monotonic(), earlier))
        if collector.slow_runs or collector.stretch > 1 or last.duration > SLOW_SHARE * collector.interval:
            self._adapt(collector, last.duration)
        if last.absences or collector.seen is None or collector.seen[1] or collector.seen[0] != last.blocks.keys():
            self._follow(collector, last)

    def asked(self) -> None:
        """Somebody wants to know what is now: take what was read unasked; waits for nothing.

        While somebody asks again and again, it is taken as it comes: then there is nothing to do at the question.
        """
        now = time.monotonic()
        is_watched = now - self._asked_at <= WATCHED_SECONDS
        self._asked_at = now
        for reader, collectors in self._by_reader:
            if is_watched and self._listens:
                # Of a process that hangs the most frequent one is missing first.
                self._ask_for_missing(next(iter(collectors.values())))
                continue
            self._take(reader, collectors)
            if is_watched:
                reader.listen(partial(self._take, reader, collectors))
        self._listens = is_watched

    def tend(self) -> None:
        """Take what was read unasked, and ask for what should have been and was not, or can be again.

        Call each ``TAKE_SECONDS``.
        """
        self._listens = self._listens and time.monotonic() - self._asked_at <= WATCHED_SECONDS
        for reader, collectors in self._by_reader:
            self._take(reader, collectors)
            for collector in collectors.values():
                self._ask_for_missing(collector)
            if not self._listens:
                reader.listen(None)
        followed = [
            one for one in self.collectors.values() if one.is_absent or (one.is_flowing and one.source in _OF_GPUS)
        ]
        sources = {one.source for one in followed}
        absent = {source for source in sources if self._origin_absent(source) is not None}
        for collector in followed:
            if collector.is_absent != (collector.source in absent):
                self._ask_again(collector)

    def _take(self, reader: AskedReader, collectors: Mapping[str, Collector]) -> None:
        for key, runs in reader.take().items():
            collector = collectors[key]
            if runs and not self._rests(collector):
                self._keep_taken(collector, runs)
            self._ask_for_missing(collector)

    def _ask_for_missing(self, collector: Collector) -> None:
        if collector.is_flowing and not collector.reader.runs(collector.key, collector.current_interval):
            self._ask_again(collector)

    def _keep_taken(self, collector: Collector, runs: Sequence[Collected]) -> None:
        had_devices = bool(self._store.devices(collector.name))
        try:
            self._keep_runs(collector, runs)
        except Exception:  # a defect of ours must be seen, and nobody who asks is to suffer from it
            log.exception("what was read could not be kept", collector=collector.name)
        if had_devices and not runs[-1].blocks:
            self._ask_again(collector)  # its origin may not be on this node any more

    def _set_flow(self, collector: Collector, *, flows: bool) -> None:
        """Ask for a collector at its interval, or not at all while its worker runs it by itself."""
        if flows:
            self._scheduler.rest(collector.name)  # also where it was brought forward once
        elif collector.is_flowing:
            self._scheduler.set_interval(collector.name, collector.current_interval)
        collector.is_flowing = flows

    def _ask_again(self, collector: Collector) -> None:
        """Now: what its worker was ordered to do does not hold any more, too little came of it, or its source came."""
        collector.is_flowing = False
        self._scheduler.set_interval(collector.name, collector.current_interval)
        self._scheduler.run_in(collector.name, 0.0)

    def _rests(self, collector: Collector) -> bool:
        return self._stopped or (self._paused and collector.needs_release)

    def _not_needed(self, collector: Collector, why: str) -> None:
        if collector.attempted:  # it was read until now
            self._store.drop_group(collector.name)
            self._forget_run(collector)
        collector.is_absent, collector.is_flowing = True, False
        self._scheduler.rest(collector.name)  # ``tend`` looks for its source
        self._instruments.source_available.labels(collector.source).set(0)
        if collector.source not in self._told_absent:
            self._told_absent.add(collector.source)
            log.info("source not available", source=collector.source, reason=why)

    def _keep(self, collector: Collector, collected: Collected, *, source_gone: bool) -> None:
        lifetime = collector.lifetime
        for device, block in collected.blocks.items():
            self._store.put(collector.name, device, block, block.time + lifetime)
        if collected.occupants is not None:
            self._store.occupants = collected.occupants
        if collected.absences:
            self._drop_failed(collector, collected, source_gone=source_gone)
        else:
            self._drop_missing(collector, collected)

    def _drop_failed(self, collector: Collector, collected: Collected, *, source_gone: bool) -> None:
        for absence in collected.absences:
            if absence.device and absence.device not in collected.blocks:
                self._drop_device(collector, absence)
        whole = [absence for absence in collected.absences if not absence.device]
        worker_failed = any(absence.reason in WORKER_REASONS for absence in collected.absences)
        if worker_failed or source_gone:
            for other in self.collectors.values():
                if other.reader is collector.reader:
                    self._set_flow(other, flows=False)
        if whole and not collected.blocks:
            self._drop_all(collector, whole[0], source_gone=source_gone)
        elif not whole and not worker_failed:
            self._drop_missing(collector, collected)

    def _drop_missing(self, collector: Collector, collected: Collected) -> None:
        """Only a run that came to its end says that a device has gone."""
        for device in self._store.devices(collector.name) - collected.blocks.keys():
            self._store.drop(collector.name, device)

    def _drop_all(self, collector: Collector, absence: Absence, *, source_gone: bool) -> None:
        """Nothing was read: neither here nor, where worker or source are to blame, by their other collectors."""
        for other in self.collectors.values():
            same_worker = other.reader is collector.reader and absence.reason in WORKER_REASONS
            if other is collector or same_worker or (source_gone and other.source == collector.source):
                self._store.drop_group(other.name)

    def _drop_device(self, collector: Collector, absence: Absence) -> None:
        """A device that failed here is absent here; one that is gone, or does not answer, is absent everywhere."""
        for other in self.collectors.values():
            if other is collector or (other.reader is collector.reader and is_everywhere(absence)):
                self._store.drop(other.name, absence.device)

    def _follow(self, collector: Collector, collected: Collected) -> None:
        """Have the slow collectors of a source read soon what came, and say soon what went.

        Each of them notices the change in its turn, which moves the others once more; then all agree.
        """
        gone = frozenset(
            one.device
            for one in collected.absences
            if not one.device or is_everywhere(one) or one.reason == "not_listed"
        )  # fmt: skip
        before = collector.seen
        cut_short = "" in gone or any(one.reason in WORKER_REASONS for one in collected.absences)
        # A run that was cut short does not say which of the others are here.
        here = before[0] if cut_short and before is not None else collected.devices_read
        seen = collector.seen = (here, gone)
        if before is None or before == seen:
            return
        for other in self.collectors.values():
            same = other.source == collector.source and other is not collector
            if same and other.current_interval > SOON_SECONDS:
                self._scheduler.run_in(other.name, SOON_SECONDS)

    def _record(self, collector: Collector, collected: Collected, unavailable: SourceUnavailable | None) -> None:
        failing = frozenset(collected.absences)
        instruments = self._instruments
        instruments.source_available.labels(collector.source).set(unavailable is None)
        instruments.collector_success.labels(collector.name).set(not failing)
        instruments.collector_duration.labels(collector.name).set(collected.duration)
        if not failing:
            self._set_last_success(collector, time.time())
        if collected.has_reading:
            collector.last_reading = time.monotonic()
        for absence in failing:
            instruments.collector_errors.labels(collector.name, absence.reason).inc()
        if failing != collector.failing or not collector.attempted:
            self._log_change(collector, failing)
        collector.failing = failing
        collector.attempted = True

    def _set_last_success(self, collector: Collector, moment: float) -> None:
        collector.last_success = moment
        self._instruments.collector_last_success.labels(collector.name).set(round(moment, 3))

    def _log_change(self, collector: Collector, failing: frozenset[Absence]) -> None:
        for absence in sorted(failing - collector.failing, key=lambda one: (one.device, one.detail)):
            log.warning("something cannot be read", collector=collector.name, device=absence.device,
                        reason=absence.reason, detail=absence.detail)  # fmt: skip
        if collector.failing and not failing:
            log.info("everything is read again", collector=collector.name)

    def _adapt(self, collector: Collector, duration: float) -> None:
        """Run half as often what takes too long, and as often as before once it is quick again."""
        slow = duration > SLOW_SHARE * collector.current_interval
        quick = duration < SLOW_SHARE * collector.current_interval / 4
        collector.slow_runs = collector.slow_runs + 1 if slow else 0
        collector.quick_runs = collector.quick_runs + 1 if quick else 0
        if collector.slow_runs >= SLOW_RUNS and collector.stretch < LONGEST_STRETCH:
            self._set_stretch(collector, collector.stretch * 2)
            log.warning("a collector is too slow for its interval and runs half as often", collector=collector.name,
                        duration_seconds=round(duration, 4), interval_seconds=collector.current_interval)  # fmt: skip
        elif collector.quick_runs >= QUICK_RUNS and collector.stretch > 1:
            self._set_stretch(collector, collector.stretch // 2)
            log.info("a collector is quick again and runs twice as often", collector=collector.name,
                     interval_seconds=collector.current_interval)  # fmt: skip

    def _set_stretch(self, collector: Collector, stretch: int) -> None:
        collector.stretch = stretch
        collector.slow_runs = collector.quick_runs = 0
        collector.is_flowing = False
        self._scheduler.set_interval(collector.name, collector.current_interval)
        self._instruments.collector_interval.labels(collector.name).set(collector.current_interval)

    def pause(self) -> None:
        """Let the collectors that hold a driver rest, and forget what they gave: it is not current any more."""
        self._paused = True
        self._epoch += 1
        for collector in self.collectors.values():
            if collector.needs_release:
                self._store.drop_group(collector.name)
                self._forget_run(collector)
                self._set_flow(collector, flows=False)

    def _forget_run(self, collector: Collector) -> None:
        """Say nothing of the last run of a collector that does not run now."""
        collector.failing = frozenset()
        collector.attempted = False
        collector.last_reading = None
        self._instruments.forget_run(collector.name, collector.source)

    def resume(self) -> None:
        """Run all collectors again."""
        self._paused = False
        self._epoch += 1
        self._began = time.monotonic()

    def follow_clock(self, step: float) -> None:
        """Tell when collectors ran last by the wall clock of now, which was stepped by so many seconds."""
        for collector in self.collectors.values():
            if collector.last_success is not None:
                self._set_last_success(collector, collector.last_success + step)

    def stop(self) -> None:
        """Run nothing any more, and keep nothing of what is under way."""
        self._stopped = True
        self._epoch += 1
