"""A reader: the worker processes behind some sources, replaced when they hang or crash, never piled up."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from commwatch.sources.base import Absence, Reason, SourceUnavailable
from commwatch.workers.process_state import process_state
from commwatch.workers.wire import SimulationPlan, WorkerPlan
from commwatch.workers.worker import Collected, Worker, WorkerEnded, WorkerHung

log = structlog.get_logger("commwatch.workers")

STUCK_LIMIT = 2
"""Most processes of one node that may hang in a driver; no further one is started beside them."""
SIGNAL_AFTER_SECONDS = 150.0
"""A stuck process gets no signal earlier: the driver may need 3 × 45 s to give up (counters.md 8.3)."""
KILL_AFTER_SECONDS = 10.0
"""From TERM to KILL."""
CRASH_BACKOFF_SECONDS = (1.0, 60.0)
RETRY_SUSPECT_SECONDS = (30.0, 600.0)
RENEW_SECONDS = (30.0, 600.0)
"""Between new processes while a device is lost."""
LOST_REASONS = frozenset({"lost", "reset_required", "not_found"})
UNAVAILABLE_BACKOFF_SECONDS = (5.0, 60.0)


@dataclass(frozen=True)
class ReaderSettings:
    """What a reader serves and how patient it is."""

    name: str
    sources: tuple[str, ...]
    settings: dict[str, bytes]
    """JSON of each source's section of the configuration."""
    deadline: float
    start_deadline: float
    """For the first answer of a collector in a new process, which opens the source; for each device."""
    sysfs: str
    procfs: Path
    simulation: SimulationPlan | None = None
    rest_when_unavailable: bool = False
    """End the process while its source cannot be read, and try again later with a new one."""


class ReaderEvents(Protocol):
    """What a reader tells the daemon's own metrics."""

    def worker_restarted(self, worker: str, reason: str) -> None:
        """A process is replaced."""

    def worker_stuck(self, worker: str, count: int) -> None:
        """The number of processes that missed their deadline and have not come back."""


@dataclass
class _Stuck:
    """A process that missed its deadline; left alone."""

    worker: Worker
    device: str
    since: float
    terminated_at: float | None = None
    killed: bool = False


@dataclass
class _Backoff:
    """Waiting times that double."""

    first: float
    longest: float
    _next: float = 0.0
    until: float = 0.0

    def start(self, now: float) -> None:
        self._next = min(self._next * 2, self.longest) if self._next else self.first
        self.until = now + self._next

    def reset(self) -> None:
        self._next = self.until = 0.0


@dataclass
class _Slot:
    """The place of one worker process: all devices but the suspects, or one suspect alone."""

    only: str | None = None
    worker: Worker | None = None
    backoff: _Backoff = field(default_factory=lambda: _Backoff(*CRASH_BACKOFF_SECONDS))
    renewal: _Backoff = field(default_factory=lambda: _Backoff(*RENEW_SECONDS))
    unavailable: SourceUnavailable | None = None
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


class Reader:
    """Serves collectors through worker processes, each run with a deadline.

    A missed deadline makes the device that was being touched a suspect: its process is left alone, one replacement
    serves the other devices, and the suspect gets a process of its own once the stuck one has ended.
    """

    def __init__(
        self, settings: ReaderSettings, events: ReaderEvents, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self._events = events
        self._monotonic = monotonic
        self._main = _Slot()
        self._own: dict[str, _Slot] = {}
        self._stuck: list[_Stuck] = []
        self._aliases: dict[str, str] = {}
        self._stopped = False

    @property
    def suspects(self) -> frozenset[str]:
        """Devices that did not answer and whose process has not come back."""
        return frozenset(stuck.device for stuck in self._stuck)

    @property
    def stuck_count(self) -> int:
        """Processes that missed their deadline and are still there."""
        return len(self._stuck)

    def pids(self) -> list[int]:
        """Processes of this reader that are still there, stuck ones included."""
        slots = (self._main, *self._own.values())
        workers = [slot.worker for slot in slots if slot.worker is not None] + [one.worker for one in self._stuck]
        return [worker.process.pid for worker in workers if worker.process.poll() is None]

    async def collect(self, collector: str) -> Collected:
        """Run a collector on all devices; what could not be read is an absence, whatever went wrong.

        Raises:
            SourceUnavailable: the source as a whole cannot be read.
        """
        self.tend()
        slots = [self._main, *self._own.values()]
        results = await asyncio.gather(*(self._collect_slot(slot, collector) for slot in slots))
        merged = Collected({}, [], 0.0)
        for result in results:
            merged.blocks.update(result.blocks)
            merged.absences.extend(result.absences)
            merged = Collected(merged.blocks, merged.absences, max(merged.duration, result.duration))
        return merged

    async def _collect_slot(self, slot: _Slot, collector: str) -> Collected:
        worker = None
        try:
            worker = await self._worker(slot)
            if worker is None:
                if self._stuck:
                    return _absent(slot.only or "", "deadline", "not asked: a process is still stuck in the driver")
                return _absent(slot.only or "", "crashed", "not asked: its worker process is started again later")
            collected = await self._ask(worker, collector)
        except WorkerHung as hung:
            return self._hung(slot, collector, hung.suspect)
        except WorkerEnded:
            if slot.worker is not worker:
                # Another collector met the end first, while this one waited for its turn: the replacement answers.
                return await self._collect_slot(slot, collector)
            return self._crashed(slot)
        except SourceUnavailable as error:
            await self._unavailable(slot, error)
            if slot.only is None:
                raise
            return _absent(slot.only, error.reason, error.detail)
        slot.backoff.reset()
        slot.unavailable = None
        await self._renew_for_lost(slot, collected)
        return collected

    async def _renew_for_lost(self, slot: _Slot, collected: Collected) -> None:
        """A handle of a lost GPU stays dead after the GPU has come back: only a new process sees it again."""
        if not any(absence.reason in LOST_REASONS for absence in collected.absences):
            slot.renewal.reset()
            return
        now = self._monotonic()
        if not slot.renewal.until:
            slot.renewal.start(now)
        elif now >= slot.renewal.until and slot.worker is not None:
            worker, slot.worker = slot.worker, None
            slot.renewal.start(now)
            self._events.worker_restarted(self.settings.name, "device_lost")
            await self._stop_worker(worker, 1.5)

    async def _ask(self, worker: Worker, collector: str) -> Collected:
        fresh = collector not in worker.opened
        deadline = self.settings.start_deadline if fresh else self.settings.deadline
        collected = await worker.collect(collector, deadline, each_device=fresh)
        self._aliases.update(worker.aliases)
        return collected

    async def _worker(self, slot: _Slot) -> Worker | None:
        async with slot.starting:
            if slot.worker is not None:
                return slot.worker
            now = self._monotonic()
            if now < slot.backoff.until:
                if slot.unavailable is not None:
                    raise slot.unavailable
                return None
            if self._stopped or not self._may_start(slot):
                return None
            slot.worker = await Worker.start(self._plan(slot))
            return slot.worker

    def _may_start(self, slot: _Slot) -> bool:
        if len(self._stuck) >= STUCK_LIMIT:
            return False
        if slot.only is not None:
            return slot.only not in self.suspects
        # A hang outside any device would only hang the replacement too.
        return "" not in self.suspects

    def _plan(self, slot: _Slot) -> WorkerPlan:
        settings = self.settings
        only = None if slot.only is None else self._spellings(slot.only)
        leave_out = () if slot.only is not None else [name for one in self._own for name in self._spellings(one)]
        return WorkerPlan(
            settings.sources, settings.settings, settings.sysfs, tuple(leave_out), only, settings.simulation
        )

    def _spellings(self, device: str) -> tuple[str, ...]:
        pairs = {alias: name for name, alias in self._aliases.items()} | self._aliases
        return (device, pairs[device]) if device in pairs else (device,)

    def _hung(self, slot: _Slot, collector: str, device: str) -> Collected:
        worker, slot.worker = slot.worker, None
        device = slot.only or device
        if worker is not None:
            worker.give_up()
            self._stuck.append(_Stuck(worker, device, self._monotonic()))
            log.error("a worker missed its deadline and is left alone", worker=self.settings.name, collector=collector,
                      device=device, pid=worker.process.pid, stuck=len(self._stuck))  # fmt: skip
            self._events.worker_stuck(self.settings.name, len(self._stuck))
            self._events.worker_restarted(self.settings.name, "deadline")
        if device and slot.only is None:
            self._own[device] = _Slot(only=device, backoff=_Backoff(*RETRY_SUSPECT_SECONDS))
        elif slot.only is not None:
            slot.backoff.start(self._monotonic())
        return _absent(device, "deadline", "no answer in time; its process is left alone")

    def _crashed(self, slot: _Slot) -> Collected:
        worker, slot.worker = slot.worker, None
        if worker is not None and not self._stopped:
            worker.give_up()
            slot.backoff.start(self._monotonic())
            log.warning("a worker ended and will be replaced", worker=self.settings.name,
                        exit_code=worker.process.poll())  # fmt: skip
            self._events.worker_restarted(self.settings.name, "crashed")
        return _absent(slot.only or "", "crashed", "the worker process ended")

    async def _unavailable(self, slot: _Slot, error: SourceUnavailable) -> None:
        slot.unavailable = error
        if self.settings.rest_when_unavailable and slot.worker is not None:
            worker, slot.worker = slot.worker, None
            slot.backoff = _Backoff(*UNAVAILABLE_BACKOFF_SECONDS) if not slot.backoff.until else slot.backoff
            slot.backoff.start(self._monotonic())
            await self._stop_worker(worker, 1.5)

    def tend(self) -> None:
        """Look after the stuck processes: forget those that ended, end those that are past saving."""
        now = self._monotonic()
        before = len(self._stuck)
        self._stuck = [stuck for stuck in self._stuck if not self._gone(stuck, now)]
        if len(self._stuck) != before:
            self._events.worker_stuck(self.settings.name, len(self._stuck))

    def _gone(self, stuck: _Stuck, now: float) -> bool:
        process = stuck.worker.process
        if process.poll() is not None:
            log.info("a stuck worker has come back and ended", worker=self.settings.name, device=stuck.device,
                     after_seconds=round(now - stuck.since, 1))  # fmt: skip
            return True
        if now - stuck.since < SIGNAL_AFTER_SECONDS or process_state(self.settings.procfs, process.pid) == "D":
            return False
        if stuck.terminated_at is None:
            stuck.terminated_at = now
            process.send_signal(signal.SIGTERM)
        elif now - stuck.terminated_at >= KILL_AFTER_SECONDS and not stuck.killed:
            stuck.killed = True
            process.kill()
        return False

    async def release(self, deadline: float = 1.5) -> bool:
        """Stop all healthy processes; False where one is left that does not answer.

        The suspects are forgotten: after a release the driver may be another one.
        """
        workers: Sequence[Worker] = [
            slot.worker for slot in (self._main, *self._own.values()) if slot.worker is not None
        ]
        self._main, self._own = (
            _Slot(),
            {stuck.device: _Slot(only=stuck.device) for stuck in self._stuck if stuck.device},
        )
        await asyncio.gather(*(self._stop_worker(worker, deadline) for worker in workers))
        self.tend()
        return not self._stuck

    async def _stop_worker(self, worker: Worker, deadline: float) -> None:
        if not await worker.stop(deadline):
            self._stuck.append(_Stuck(worker, "", self._monotonic()))
            self._events.worker_stuck(self.settings.name, len(self._stuck))

    async def stop(self, deadline: float = 1.5) -> None:
        """Stop for good; a stuck process is left behind, and ends by itself when its call returns."""
        self._stopped = True
        await self.release(deadline)


def _absent(device: str, reason: Reason, detail: str) -> Collected:
    return Collected({}, [Absence(device, reason, detail)], 0.0)
