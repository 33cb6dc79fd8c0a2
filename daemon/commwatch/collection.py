"""Runs the collectors: asks the readers on time, keeps what they gave, and says what failed."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import structlog

from commwatch.instruments import Instruments
from commwatch.scheduler import Scheduler
from commwatch.sources.base import Absence, SourceUnavailable
from commwatch.store import Store
from commwatch.workers.reader import Reader
from commwatch.workers.worker import Collected

log = structlog.get_logger("commwatch.collection")

SLOW_SHARE = 0.1
"""A collector that takes more than this share of its interval runs half as often."""
SLOW_RUNS = 3
"""So many slow runs in a row, so that one hiccup changes nothing."""
LONGEST_STRETCH = 16
AFTER_FAILURE_SECONDS = 2.0
WORKER_REASONS = frozenset({"deadline", "crashed"})


@dataclass
class Collector:
    """One group of counters with its cadence, and how its last runs went."""

    name: str
    """As on the metrics: ``nvml_nvlink``."""
    key: str
    """As the source calls it: ``nvlink``."""
    source: str
    reader: Reader
    interval: float
    """Seconds, as configured."""
    needs_release: bool
    """Whether it holds a driver or device file, and so rests during maintenance."""
    stretch: int = 1
    slow_runs: int = 0
    failing: frozenset[Absence] = frozenset()
    """What could not be read at the last run; a change of it is an event of the log."""
    last_success: float | None = None
    """Wall clock seconds since 1970."""
    attempted: bool = False

    @property
    def current_interval(self) -> float:
        """Seconds between two runs now."""
        return self.interval * self.stretch

    @property
    def lifetime(self) -> float:
        """Seconds for which a reading counts as current."""
        return 3 * self.current_interval + self.reader.settings.deadline


@dataclass
class Outcome:
    """What a run gave, for the analysis that follows."""

    collector: Collector
    collected: Collected
    unavailable: SourceUnavailable | None = None
    time: float = field(default=0.0)
    """Monotonic seconds at the end of the run."""


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
    ) -> None:
        """Args:
        analyse: told of each run.
        origin_absent: says for a source why it is not needed on this node; None where it is to be read.
        """
        self.collectors = {one.name: one for one in collectors}
        self.paused = False
        self._store = store
        self._instruments = instruments
        self._scheduler = scheduler
        self._analyse = analyse
        self._origin_absent = origin_absent
        self._told_absent: set[str] = set()

    @property
    def absent_sources(self) -> frozenset[str]:
        """Sources that are not on this node."""
        return frozenset(self._told_absent)

    def schedule(self) -> None:
        """Plan every collector at its interval."""
        for collector in self.collectors.values():
            self._scheduler.add(collector.name, self._runner(collector), collector.current_interval)
            self._instruments.collector_interval.labels(collector.name).set(collector.current_interval)

    def _runner(self, collector: Collector) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await self.run(collector)

        return run

    async def run(self, collector: Collector) -> None:
        """Run one collector once and keep what it gave."""
        if self.paused and collector.needs_release:
            return
        absent = self._origin_absent(collector.source)
        if absent is not None:
            self._not_needed(collector, absent)
            return
        self._told_absent.discard(collector.source)
        unavailable = None
        try:
            collected = await collector.reader.collect(collector.key)
        except SourceUnavailable as error:
            unavailable = error
            collected = Collected({}, [Absence("", error.reason, error.detail)], 0.0)
        if self.paused and collector.needs_release:
            return  # what was read before the release began is not kept past it
        self._keep(collector, collected, unavailable)
        self._record(collector, collected, unavailable)
        self._analyse(Outcome(collector, collected, unavailable, time.monotonic()))
        self._adapt(collector, collected.duration)
        if not collected.blocks and any(absence.reason in WORKER_REASONS for absence in collected.absences):
            # The worker failed, not its source: a slow collector need not wait for its turn to be read again.
            self._scheduler.run_in(collector.name, min(collector.current_interval, AFTER_FAILURE_SECONDS))

    def _not_needed(self, collector: Collector, why: str) -> None:
        self._instruments.source_available.labels(collector.source).set(0)
        if collector.source not in self._told_absent:
            self._told_absent.add(collector.source)
            log.info("a source is not on this node", source=collector.source, reason=why)
            self._instruments.changed = True

    def _keep(self, collector: Collector, collected: Collected, unavailable: SourceUnavailable | None) -> None:
        now = time.monotonic()
        if unavailable is not None:
            self._store.drop_group(collector.name)
            return
        for device, block in collected.blocks.items():
            self._store.put(collector.name, device, block, block.time + collector.lifetime)
        for absence in collected.absences:
            if absence.device and absence.device not in collected.blocks:
                self._drop_device(collector, absence)
        # A run without any block says nothing of the devices that it did not come to.
        if collected.blocks or not collected.absences:
            for device in self._store.group(collector.name).keys() - collected.blocks.keys():
                self._store.drop(collector.name, device)
        self._store.expire(now)

    def _drop_device(self, collector: Collector, absence: Absence) -> None:
        """A device that failed here is absent here; one that does not answer is absent everywhere at once."""
        for other in self.collectors.values():
            if other is collector or (other.reader is collector.reader and absence.reason == "deadline"):
                self._store.drop(other.name, absence.device)

    def _record(self, collector: Collector, collected: Collected, unavailable: SourceUnavailable | None) -> None:
        instruments = self._instruments
        failing = frozenset(collected.absences)
        success = not failing
        instruments.collector_success.labels(collector.name).set(int(success))
        instruments.collector_duration.labels(collector.name).set(collected.duration)
        instruments.source_available.labels(collector.source).set(int(unavailable is None))
        if success:
            collector.last_success = time.time()
            instruments.collector_last_success.labels(collector.name).set(round(collector.last_success, 3))
        for absence in failing:
            instruments.collector_errors.labels(collector.name, absence.reason).inc()
        if failing != collector.failing or not collector.attempted:
            instruments.changed = True
            self._log_change(collector, failing)
        collector.failing = failing
        collector.attempted = True

    def _log_change(self, collector: Collector, failing: frozenset[Absence]) -> None:
        for absence in sorted(failing - collector.failing, key=lambda one: (one.device, one.detail)):
            log.warning("something cannot be read", collector=collector.name, device=absence.device,
                        reason=absence.reason, detail=absence.detail)  # fmt: skip
        if collector.failing and not failing:
            log.info("everything is read again", collector=collector.name)

    def _adapt(self, collector: Collector, duration: float) -> None:
        slow = duration > SLOW_SHARE * collector.current_interval
        collector.slow_runs = collector.slow_runs + 1 if slow else 0
        if collector.slow_runs >= SLOW_RUNS and collector.stretch < LONGEST_STRETCH:
            collector.stretch *= 2
            collector.slow_runs = 0
            self._scheduler.set_interval(collector.name, collector.current_interval)
            self._instruments.collector_interval.labels(collector.name).set(collector.current_interval)
            log.warning("a collector is too slow for its interval and runs half as often", collector=collector.name,
                        duration_seconds=round(duration, 4), interval_seconds=collector.current_interval)  # fmt: skip

    def rest(self) -> None:
        """Forget what the resting collectors gave: it is not current any more."""
        for collector in self.collectors.values():
            if collector.needs_release:
                self._store.drop_group(collector.name)
                collector.failing = frozenset()
                self._instruments.forget_run(collector.name)
        self._instruments.changed = True
