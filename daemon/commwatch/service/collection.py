"""The collectors: which of them run, what is kept of what they give, and what failed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from commwatch.config.settings import Paths, Sources
from commwatch.config.simulated import SimulationPlan
from commwatch.findings.verdict import UnreadSource
from commwatch.node.gpus_on_bus import GpusOnBus
from commwatch.node.inventory_tracker import InventoryTracker
from commwatch.node.pcie_samples import COLLECTOR as PCIE_SAMPLES
from commwatch.node.pcie_samples import WithoutGpm
from commwatch.node.run import AGAIN_SECONDS, TEND_SECONDS, Collected, Collector, Outcome, RunState, is_everywhere
from commwatch.node.store import Store
from commwatch.node.wrap import Wraps
from commwatch.readings import WORKER_REASONS, Absence
from commwatch.service.instruments import Instruments
from commwatch.sources.base import Origin
from commwatch.sources.presence import nvidia_driver_present
from commwatch.workers.reader import Reader
from commwatch.workers.sources import SOURCES

log = structlog.get_logger("commwatch.collection")

SLOW_SHARE = 0.1
"""A collector that takes more than this share of its interval runs half as often."""
SLOW_RUNS = 3
"""Number of slow runs in a row that count, so that one hiccup changes nothing."""
QUICK_RUNS = 60
LONGEST_STRETCH = 16
UNREAD_INTERVALS = 2
"""A source is unread once its last reading is older than this number of intervals plus ``TEND_SECONDS``."""
STARTING_SECONDS = 60.0
"""A source that was not read yet is exposed as unread only then: a driver may take as long to open."""
SOON_SECONDS = 1.0
"""After a device went or came, the collectors of its source that run less often run at once, not only in their turn."""


class Presence:
    """Which sources a node needs: what is not on it, and is not missed, is not read."""

    def __init__(
        self,
        roots: Paths | SimulationPlan,
        procfs: Path,
        sources: Sources,
        inventory: InventoryTracker,
        bus: GpusOnBus,
        without_gpm: WithoutGpm,
    ) -> None:
        """Args:
        roots: where the node shows itself.
        procfs: where the driver of a real node does.
        """
        self._origin = Origin(Path(roots.sysfs), Path(roots.procfs), sources)
        self._is_simulated = isinstance(roots, SimulationPlan)
        self._procfs = procfs
        self._inventory = inventory
        self._bus = bus
        self._without_gpm = without_gpm

    def has_driver(self) -> bool:
        """Whether this node has an NVIDIA driver that could be read."""
        return self._is_simulated or nvidia_driver_present(self._procfs)

    def is_driver_expected(self) -> bool:
        """Whether this node has an NVIDIA driver, or should have one."""
        return self.has_driver() or self._bus.is_driver_wanted()

    def why_absent(self, source: str) -> str | None:
        """Why a source is not needed on this node; None where it is."""
        if SOURCES[source].needs_gpus:
            if self.is_driver_expected():
                return self._without_gpm.why_not_sampled if source == PCIE_SAMPLES else None
            return "no NVIDIA driver is loaded and no GPU is on the PCI bus; to see a GPU node: --simulate h100x8"
        if source == "rdma" and self._inventory.expects("rdma_port"):
            return None  # ports that should be here and are not are a fault
        return SOURCES[source].why_absent(self._origin)


class Collection:
    """All collectors of a node."""

    def __init__(
        self,
        collectors: Iterable[Collector],
        readers: Mapping[str, Reader],
        store: Store,
        instruments: Instruments,
        presence: Presence,
        wraps: Wraps,
    ) -> None:
        self.collectors = {one.name: one for one in collectors}
        self._readers = readers
        self._stopped = False
        self._began = time.monotonic()
        """When it was started or resumed, monotonic seconds."""
        self._store = store
        self._instruments = instruments
        self._presence = presence
        self._wraps = wraps
        self.available: dict[str, bool] = {}
        """Whether each source can be read; a source that was neither read nor searched for is missing."""
        instruments.collection = self

    def reader_of(self, collector: Collector) -> Reader:
        """Whose worker processes run a collector."""
        return self._readers[SOURCES[collector.source].reader.name]

    @property
    def absent_sources(self) -> frozenset[str]:
        """Sources that are not on this node."""
        return frozenset(one.source for one in self.collectors.values() if one.state == "absent")

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Collectors that had no answer in time while the node was starved."""
        return tuple(
            name for name, one in self.collectors.items() if any(gap.reason == "starved" for gap in one.failing)
        )

    def unread(self) -> tuple[UnreadSource, ...]:
        """The sources of this node without a current reading: none for two intervals, or none since the start.

        Of a source that is read, the collectors that have failed for as long are named alone. Sources of jobs, and
        those that complete another one, are left out, and so are those that are paused, are not on this node, or were
        starved: without a reading of a job nothing is unknown of the node, and what starved is not judged.
        """
        now, found = time.monotonic(), []
        for name, row in SOURCES.items():
            if row.of_jobs or row.completes:
                continue
            late = {
                one.name: self.collectors[one.name] for one in row.collectors if self._is_late(one.name, now)
            }  # fmt: skip
            pulse = late.get(row.pulse or row.collectors[0].name)
            if pulse is not None:
                found.append(_unread(name, pulse, now, row.lists_parts))
            else:  # one that gives no value and does not fail has nothing to read, as GPM in MIG mode
                found += [_unread(one.name, one, now, False) for one in late.values() if one.failing]
        return tuple(sorted(found, key=lambda one: not one.lists_parts))

    def _is_late(self, name: str, now: float) -> bool:
        """Whether a collector that should run has no current reading, and was not starved."""
        one = self.collectors.get(name)
        if one is None or one.state in ("absent", "paused") or any(gap.reason == "starved" for gap in one.failing):
            return False
        allowed = UNREAD_INTERVALS * one.current_interval + TEND_SECONDS
        return one.last_reading is None or now - one.last_reading > allowed

    def exposed_as_unread(self) -> dict[str, bool]:
        """By source: whether it has no current reading; one that starts or resumes has time for its first one."""
        unread = {one.source: one.seconds for one in self.unread()}
        starts = time.monotonic() - self._began < STARTING_SECONDS
        sources = dict.fromkeys(one.source for one in self.collectors.values() if not SOURCES[one.source].completes)
        return {name: name in unread and not (unread[name] is None and starts) for name in sources}

    # --- which collectors run ---

    def tend(self) -> None:
        """Have those collectors run whose sources are on the node; call each ``TEND_SECONDS``."""
        sources = dict.fromkeys(one.source for one in self.collectors.values())
        why = {source: self._presence.why_absent(source) for source in sources}
        for collector in self.collectors.values():
            self._change(collector, why[collector.source])

    async def run(self, collector: Collector) -> None:
        """Read one collector now; returns once that is kept, or at once where it does not run."""
        self._change(collector, self._presence.why_absent(collector.source))
        if collector.state != "runs":
            return
        reader = self.reader_of(collector)
        if collector.nothing is not None and (nothing := collector.nothing()) is not None:
            reader.keeper.keep(replace(nothing, collector=collector.name))
            return
        await reader.now(collector.name)
        if collector.nothing is not None:
            await reader.release()

    def _change(self, collector: Collector, absent: str | None) -> None:
        """Bring the state of a collector up to date, given why its source is not needed on this node."""
        earlier, collector.state = collector.state, self._state(collector, absent)
        if collector.state == earlier:
            return
        if collector.state == "runs":
            self._order(collector, collector.due_after)
            return
        if earlier == "runs":
            self._order(collector, 0.0)
            self._store.drop_group(collector.name)  # it is not current any more
            self._forget_run(collector)
        if absent is not None and collector.state == "absent":
            self.available[collector.source] = False
            if collector is next(one for one in self.collectors.values() if one.source == collector.source):
                log.info("source not available", source=collector.source, reason=absent)

    def _order(self, collector: Collector, every: float) -> None:
        if collector.nothing is None:
            self.reader_of(collector).order(collector.name, every)

    def _state(self, collector: Collector, absent: str | None) -> RunState:
        if self._stopped:
            return "paused"
        if absent is not None:
            return "absent"
        if not collector.is_ready() or (self._store.maintenance is not None and collector.needs_release):
            return "paused"
        return "runs"

    # --- what is kept ---

    def keep(self, collected: Collected) -> Outcome | None:
        """Keep what one run of a collector gave; whatever went wrong is an absence. None: it does not run any more."""
        collector = self.collectors[collected.collector]
        if collector.state != "runs":  # it was under way when that changed
            return None
        blocks = self._wraps.correct(collector, collected.blocks)
        if blocks is not collected.blocks:
            collected = replace(collected, blocks=blocks)
        self._store_run(collector, collected)
        self._record(collector, collected)
        if collector.devices_per_interval:
            self._spread(collector, len(collected.devices_read - {""}))
        if collector.nothing is None:
            self._adapt(collector, collected.duration)
            if collected.absences or collector.is_asked_again:
                self._ask_again(collector, collected)
        self._follow(collector, collected)
        return Outcome(collector, collected, time.monotonic())

    def _store_run(self, collector: Collector, collected: Collected) -> None:
        self._store.put_run(collector.name, collected.blocks, collector.lifetime)
        if collected.occupants is not None:
            self._store.occupants = collected.occupants
        if collected.absences:
            self._drop_failed(collector, collected)
        elif not collected.is_part:  # only a complete run shows that a device has gone
            self._store.retain(collector.name, collected.blocks.keys())

    def _drop_failed(self, collector: Collector, collected: Collected) -> None:
        for absence in collected.absences:
            if absence.device and absence.device not in collected.blocks:
                self.drop_device(collector, absence)
        whole = [absence for absence in collected.absences if not absence.device]
        if whole and not collected.blocks:
            self._drop_all(collector, whole[0], source_gone=collected.unavailable is not None)
        elif not whole and not collected.is_cut_short:
            self._store.retain(collector.name, collected.blocks.keys())

    def _drop_all(self, collector: Collector, absence: Absence, *, source_gone: bool) -> None:
        """Nothing was read: neither here nor, where worker or source are to blame, by their other collectors."""
        for other in self.collectors.values():
            same_worker = self._is_beside(other, collector) and absence.reason in WORKER_REASONS
            if other is collector or same_worker or (source_gone and other.source == collector.source):
                self._store.drop_group(other.name)

    def _is_beside(self, other: Collector, collector: Collector) -> bool:
        """Whether one reader runs both."""
        return SOURCES[other.source].reader is SOURCES[collector.source].reader

    def drop_device(self, collector: Collector, absence: Absence) -> None:
        """A device that failed here is absent here; one that is gone, or does not answer, is absent everywhere."""
        for other in self.collectors.values():
            if other is collector or (self._is_beside(other, collector) and is_everywhere(absence)):
                self._store.drop(other.name, absence.device)

    def _follow(self, collector: Collector, collected: Collected) -> None:
        """Have the slow collectors of a source read at once what came, and say at once what went.

        Each of them notices the change in its turn, which moves the others once more; then all agree.
        """
        gone = frozenset(
            one.device
            for one in collected.absences
            if not one.device or is_everywhere(one) or one.reason == "not_listed"
        )  # fmt: skip
        before = collector.seen
        cut_short = "" in gone or collected.is_cut_short
        # A run that was cut short does not say which of the others are here.
        here = before[0] if cut_short and before is not None else collected.devices_read
        seen = collector.seen = (here, gone)
        if before is None or before == seen:
            return
        for other in self.collectors.values():
            same = other.source == collector.source and other is not collector
            if same and other.current_interval > SOON_SECONDS and other.state == "runs":
                self.reader_of(other).hasten(other.name)

    def _record(self, collector: Collector, collected: Collected) -> None:
        failing = frozenset(collected.absences)
        self.available[collector.source] = collected.unavailable is None
        collector.duration = collected.duration
        if not failing:
            collector.last_success = time.time()
        if collected.has_reading:
            collector.last_reading = time.monotonic()
        for absence in failing:
            self._instruments.collector_errors.labels(collector.name, absence.reason).inc()
        if failing != collector.failing or not collector.attempted:
            self._log_change(collector, failing)
        collector.failing = failing
        collector.attempted = True

    def _log_change(self, collector: Collector, failing: frozenset[Absence]) -> None:
        for absence in sorted(failing - collector.failing, key=lambda one: (one.device, one.detail)):
            log.warning("something cannot be read", collector=collector.name, device=absence.device,
                        reason=absence.reason, detail=absence.detail)  # fmt: skip
        if collector.failing and not failing:
            log.info("everything is read again", collector=collector.name)

    def _spread(self, collector: Collector, devices: int) -> None:
        """Run less often the more devices there are: reading each takes long."""
        spread = max(1, math.ceil(devices / collector.devices_per_interval))
        if spread != collector.spread:
            collector.spread = spread
            self._order(collector, collector.due_after)

    def _adapt(self, collector: Collector, duration: float) -> None:
        """Run half as often what takes too long, and as often as before once it is quick again."""
        slow = SLOW_SHARE * collector.current_interval
        collector.slow_runs = collector.slow_runs + 1 if duration > slow else 0
        collector.quick_runs = collector.quick_runs + 1 if duration < slow / 4 else 0
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
        self._order(collector, collector.due_after)

    def _ask_again(self, collector: Collector, collected: Collected) -> None:
        """Have a collector that could not read something run again soon, and at its interval once it can.

        A driver that cannot be opened and a process without an answer are tried again by their reader. A run that takes
        long waits for its interval: others of its process wait for it.
        """
        failures = [one for one in collected.absences if one.reason not in WORKER_REASONS]
        is_quick = collected.duration <= SLOW_SHARE * AGAIN_SECONDS
        before = collector.due_after
        collector.is_asked_again = bool(failures) and is_quick and collected.unavailable is None
        if collector.due_after != before:
            self._order(collector, collector.due_after)

    def _forget_run(self, collector: Collector) -> None:
        """Say nothing of the last run of a collector that does not run now."""
        collector.failing = frozenset()
        collector.is_asked_again = collector.attempted = False
        collector.last_reading = None
        self.available.pop(collector.source, None)

    def resume(self) -> None:
        """Run all collectors again, after a maintenance."""
        self._began = time.monotonic()
        self.tend()

    def follow_clock(self, step: float) -> None:
        """Shift the wall-clock times of the collectors' last runs by a clock step, in seconds."""
        for collector in self.collectors.values():
            if collector.last_success is not None:
                collector.last_success += step

    def stop(self) -> None:
        """Run nothing any more, and keep nothing of what is under way."""
        self._stopped = True
        for collector in self.collectors.values():
            collector.state = "paused"


def _unread(name: str, collector: Collector, now: float, lists_parts: bool) -> UnreadSource:
    age = None if collector.last_reading is None else now - collector.last_reading
    why = next(iter(sorted(gap.detail for gap in collector.failing)), "")
    return UnreadSource(name, age, why, lists_parts)
