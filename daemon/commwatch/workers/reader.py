"""A reader: the worker processes behind some sources, replaced when they hang or crash, never piled up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import structlog

from commwatch.config.simulated import SimulationPlan
from commwatch.node.run import Collected
from commwatch.node.starvation import Starvation
from commwatch.readings import LOST_REASONS, Absence, Reason, SourceUnavailable
from commwatch.workers.bounds import MOST_ALIASES, Bounds
from commwatch.workers.start import Launch, start_python
from commwatch.workers.stuck import StuckProcesses
from commwatch.workers.wire import WorkerPlan
from commwatch.workers.worker import STARVED_PATIENCE_SECONDS, Layouts, Worker, WorkerEnded, WorkerHung, WorkerStarved

log = structlog.get_logger("commwatch.workers")

STUCK_LIMIT = 2
"""Most processes of one node that may hang in a driver; no further one is started beside them."""
CRASH_BACKOFF_SECONDS = (1.0, 60.0)
RETRY_SUSPECT_SECONDS = (30.0, 600.0)
UNAVAILABLE_BACKOFF_SECONDS = (5.0, 60.0)
REJOIN_SECONDS = 600.0
"""A suspect that has answered for so long is served with the others again: alone it has no peers."""
RENEW_SECONDS = (5.0, 600.0)
"""Between new processes while a device is lost, or not listed by its driver."""
_RENEWED: Final = LOST_REASONS | {"not_listed"}
END_SECONDS = 0.2
"""A process that has closed its connection is over in so long, or it hangs at its end."""


@dataclass(frozen=True)
class ReaderSettings:
    """What a reader serves and how patient it is."""

    name: str
    sources: tuple[str, ...]
    settings: bytes
    """JSON of the configuration's section ``sources``."""
    deadline: float
    start_deadline: float
    """For the first answer of a new process, which opens its sources; for each device."""
    sysfs: str
    procfs: Path
    """Where the state of our own worker processes stands."""
    source_procfs: str = "/proc"
    """Where the sources look for the node's processes."""
    simulation: SimulationPlan | None = None
    opt_in: tuple[str, ...] = ()
    """Metrics that are read only where the configuration asks for them."""
    rest_when_unavailable: bool = False
    """End the process while its source cannot be read, and try again later with a new one; and replace it now and then
    while a device is lost. For drivers: a handle of a lost device stays dead after the device has come back."""
    resume: Callable[[], dict[str, bytes]] = dict
    """``WorkerPlan.resume`` of the next process."""
    bounds: Bounds = field(default_factory=Bounds)
    """Of what its processes may say."""
    confined: bool = False
    """See ``WorkerPlan.confined``."""
    launch: Launch = start_python
    """Starts its processes."""


class ReaderEvents(Protocol):
    """What a reader reports to the daemon's own metrics."""

    def worker_restarted(self, worker: str, reason: str) -> None:
        """A process is replaced."""

    def worker_stuck(self, worker: str, count: int) -> None:
        """The number of processes that missed their deadline and have not come back."""


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
    lost_by: str = ""
    """The collector that found a device lost last."""
    unavailable: SourceUnavailable | None = None
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    closed: bool = False
    """Released: whoever still holds this slot starts nothing in it."""
    well_since: float | None = None
    """Monotonic seconds from which on everything was answered and read."""

    def take(self) -> Worker | None:
        """The worker, which is no longer of this slot."""
        worker, self.worker = self.worker, None
        return worker


def _suspect_slot(device: str) -> _Slot:
    return _Slot(only=device, backoff=_Backoff(*RETRY_SUSPECT_SECONDS))


class Reader:
    """Serves collectors through worker processes, each run with a deadline.

    A missed deadline makes the device that was being touched a suspect: its process is left alone, one replacement
    serves the other devices, and the suspect gets a process of its own once no process is stuck any more. So never
    more than two processes can hang: one alone, and the one that serves the rest.
    """

    def __init__(
        self,
        settings: ReaderSettings,
        events: ReaderEvents,
        monotonic: Callable[[], float] = time.monotonic,
        stuck_elsewhere: Callable[[], int] = lambda: 0,
        starvation: Starvation | None = None,
    ) -> None:
        """Args:
        stuck_elsewhere: processes of other readers and probes that hang in the same driver.
        starvation: see ``Worker.start``.
        """
        self.settings = settings
        self._starvation = starvation
        self._events = events
        self._monotonic = monotonic
        self._stuck_elsewhere = stuck_elsewhere
        self._main = _Slot()
        self._own: dict[str, _Slot] = {}
        self._stuck = StuckProcesses(settings.name, settings.procfs, events.worker_stuck)
        self._aliases: dict[str, str] = {}
        self._learned: dict[str, str] = {}
        """What a worker reported last of it."""
        self._layouts: Layouts = {}
        self._on_samples: Callable[[], None] | None = None

    @property
    def suspects(self) -> frozenset[str]:
        """Devices that did not answer and whose process has not come back."""
        return frozenset(self._aliases.get(device, device) for device in self._stuck.devices)

    @property
    def deadline(self) -> float:
        """Seconds that a run may take."""
        return self.settings.deadline

    @property
    def stuck_count(self) -> int:
        """Processes that missed their deadline and are still there."""
        return len(self._stuck)

    def pids(self) -> list[int]:
        """Processes of this reader that are still there, stuck ones included."""
        workers = [slot.worker for slot in self._slots() if slot.worker is not None] + self._stuck.workers
        return [worker.process.pid for worker in workers if worker.process.poll() is None]

    def _slots(self) -> list[_Slot]:
        return [self._main, *self._own.values()]

    def tend(self) -> None:
        """Look after the stuck processes."""
        self._stuck.tend(self._monotonic())

    async def collect(self, collector: str, every: float = 0.0) -> Collected:
        """Run a collector on all devices; what could not be read is an absence, whatever went wrong.

        Args:
            collector: as its source calls it.
            every: seconds after which the worker is to run it again and again, for ``take``; 0: only now.

        Raises:
            SourceUnavailable: the source as a whole cannot be read.
        """
        self.tend()
        slots = self._slots()
        # What one of several processes gives by itself is not the whole.
        runs = [self._collect_slot(slot, collector, every if len(slots) == 1 else 0.0) for slot in slots]
        # One alone, as it nearly always is, needs no task of its own.
        results = await asyncio.gather(*runs) if len(runs) > 1 else [await runs[0]]
        looked = [result.occupants for result in reversed(results) if result.occupants is not None]
        occupants = {gpu: pids for one in looked for gpu, pids in one.items()} if looked else None
        merged = Collected(
            {}, [], max(result.duration for result in results), occupants=occupants, resume=results[0].resume,
            audit=results[0].audit, earlier=[run for result in results for run in result.earlier],
        )  # fmt: skip
        for result in reversed(results):  # a suspect's own process sees it alone: the main one speaks for the source
            merged.blocks.update(result.blocks)
        for result in results:
            merged.events.extend(result.events)
            merged.log_errors.extend(result.log_errors)
            merged.absences.extend(self._by_key(absence) for absence in result.absences)
        return merged

    def take(self) -> dict[str, list[Collected]]:
        """What the worker read unasked since the last time, by collector, the oldest first; waits for nothing."""
        worker = self._main.worker
        if worker is None or self._own:
            return {}
        taken = worker.take()
        self._learn_aliases(worker.aliases)
        return taken

    def runs(self, collector: str, every: float) -> bool:
        """Whether the worker runs a collector unasked each so many seconds, and nothing that was due is missing."""
        worker = self._main.worker
        return worker is not None and not self._own and worker.runs(collector, every)

    def listen(self, on_samples: Callable[[], None] | None) -> None:
        """Call this whenever the worker has read something unasked; None: it waits for ``take``, and wakes nobody."""
        self._on_samples = on_samples
        if self._main.worker is not None:
            self._main.worker.listen(on_samples)

    def _by_key(self, absence: Absence) -> Absence:
        """An absence by the key of its device, where the device was known by it before."""
        return replace(absence, device=self._aliases.get(absence.device, absence.device))

    async def _collect_slot(self, slot: _Slot, collector: str, every: float) -> Collected:
        worker = None
        try:
            worker = await self._worker(slot)
            if worker is None:
                return self._not_asked(slot)
            collected = await self._ask(worker, collector, every)
        except WorkerHung as hung:
            return await self._hung(slot, worker, hung.suspect)
        except WorkerStarved:
            return _absent(slot.only or "", "starved", "no answer in time; the node is starved, so that is not judged")
        except WorkerEnded:
            if slot.worker is not worker and not slot.closed:
                # Another collector met the end first, while this one waited for its turn: the replacement answers.
                return await self._collect_slot(slot, collector, every)
            return await self._crashed(slot, worker)
        except SourceUnavailable as error:
            await self._unavailable(slot, error)
            if slot.only is None:
                raise
            return _absent(slot.only, error.reason, error.detail)
        slot.backoff.reset()
        slot.unavailable = None
        await self._renew_for_lost(slot, collector, collected)
        await self._rejoin(slot, collected)
        return collected

    async def _ask(self, worker: Worker, collector: str, every: float) -> Collected:
        opening = not worker.opened
        deadline = self.settings.start_deadline if opening else self.settings.deadline
        collected = await worker.collect(collector, deadline, each_device=opening, every=every)
        self._learn_aliases(worker.aliases)
        return collected

    def _learn_aliases(self, new: dict[str, str]) -> None:
        """Indexes move: what is said now of an index or of a device replaces all that was said before."""
        if new is self._learned:
            return
        self._learned = new
        devices = set(new.values())
        kept = {alias: device for alias, device in self._aliases.items() if device not in devices}
        self._aliases = dict([*kept.items(), *new.items()][-MOST_ALIASES:])

    def _not_asked(self, slot: _Slot) -> Collected:
        if self._stuck or self._stuck_elsewhere():
            return _absent(slot.only or "", "deadline", "not asked: a process is still stuck in the driver")
        if slot.only is not None:
            return _absent(slot.only, "deadline", "not asked: it did not answer in time, and is tried again later")
        return _absent("", "crashed", "not asked: its worker process is started again later")

    # --- starting ---

    async def _worker(self, slot: _Slot) -> Worker | None:
        async with slot.starting:
            if slot.worker is not None or slot.closed:
                return slot.worker
            if self._monotonic() < slot.backoff.until:
                if slot.unavailable is not None:
                    raise slot.unavailable
                return None
            if not self._may_start(slot):
                return None
            try:
                worker = await Worker.start(
                    self._plan(slot), launch=self.settings.launch, layouts=self._layouts,
                    bounds=self.settings.bounds, starvation=self._starvation,
                )  # fmt: skip
            except OSError as error:
                slot.backoff.start(self._monotonic())
                log.error("a worker cannot be started", worker=self.settings.name, error=str(error))
                return None
            if slot.closed:
                await self._stop_worker(worker, 1.5)
                return None
            slot.worker = worker
            if slot is self._main:
                worker.listen(self._on_samples)
            return worker

    def _may_start(self, slot: _Slot) -> bool:
        stuck = len(self._stuck) + self._stuck_elsewhere()
        if slot.only is not None:
            return stuck == 0
        # A hang outside any device would only hang the replacement too.
        return stuck < STUCK_LIMIT and "" not in self.suspects

    def _plan(self, slot: _Slot) -> WorkerPlan:
        settings = self.settings
        only = None if slot.only is None else self._spellings(slot.only)
        leave_out = () if slot.only is not None else [name for one in self._own for name in self._spellings(one)]
        return WorkerPlan(
            settings.sources,
            settings.settings,
            settings.sysfs,
            settings.source_procfs,
            tuple(leave_out),
            only,
            settings.simulation,
            settings.opt_in,
            settings.resume(),
            settings.confined,
            settings.name,
        )

    def _spellings(self, device: str) -> tuple[str, ...]:
        """A device by its key and by what it is called before its key is known."""
        others = [alias for alias, key in self._aliases.items() if key == device]
        others += [self._aliases[device]] if device in self._aliases else []
        return (device, *others)

    # --- what goes wrong ---

    async def _hung(self, slot: _Slot, worker: Worker | None, device: str) -> Collected:
        device, slot.well_since = slot.only or device, None
        if slot.worker is worker:
            slot.take()
        if worker is not None:
            self._stuck.add(worker, device, self._monotonic())
            self._events.worker_restarted(self.settings.name, "deadline")
        if slot.only is not None:
            slot.backoff.start(self._monotonic())
        elif device:
            self._own.setdefault(device, _suspect_slot(device))
        # A suspect that has come back waits: its process could be the third that hangs.
        alone = [own.take() for own in self._own.values()]
        await asyncio.gather(*(self._stop_worker(one, 1.5) for one in alone if one is not None))
        return _absent(device, "deadline", "no answer in time; its process is left alone")

    async def _crashed(self, slot: _Slot, worker: Worker | None) -> Collected:
        if slot.closed or worker is None:
            return _absent(slot.only or "", "crashed", "released")
        slot.take()
        touched, slot.well_since = worker.touched, None
        slot.backoff.start(self._monotonic())
        if not await worker.ended_within(END_SECONDS):
            self._stuck.add(worker, slot.only or touched, self._monotonic())
        worker.give_up()
        log.warning("a worker ended and will be replaced", worker=self.settings.name,
                    exit_code=worker.process.poll(), device=touched)  # fmt: skip
        self._events.worker_restarted(self.settings.name, "crashed")
        return _absent(slot.only or "", "crashed", "its worker process ended")

    async def _unavailable(self, slot: _Slot, error: SourceUnavailable) -> None:
        slot.unavailable = error
        if self.settings.rest_when_unavailable and (worker := slot.take()) is not None:
            slot.backoff = _Backoff(*UNAVAILABLE_BACKOFF_SECONDS) if not slot.backoff.until else slot.backoff
            slot.backoff.start(self._monotonic())
            await self._stop_worker(worker, 1.5)

    async def _renew_for_lost(self, slot: _Slot, collector: str, collected: Collected) -> None:
        """A handle of a lost GPU stays dead after the GPU has come back: only a new process sees it again.

        So does the list of a driver that was opened while a GPU was being bound to it, as far as is known.
        """
        is_lost = any(absence.reason in _RENEWED for absence in collected.absences)
        if not (is_lost and self.settings.rest_when_unavailable):
            if collector == slot.lost_by:  # others may not look at it
                slot.renewal.reset()
            return
        slot.lost_by = collector
        now = self._monotonic()
        if not slot.renewal.until:
            slot.renewal.start(now)
        elif now >= slot.renewal.until and (worker := slot.take()) is not None:
            slot.renewal.start(now)
            self._events.worker_restarted(self.settings.name, "device_lost")
            await self._stop_worker(worker, 1.5)

    async def _rejoin(self, slot: _Slot, collected: Collected) -> None:
        """Serve a former suspect with the other devices again, by a new process, once it has been well for long."""
        if slot.only is None or collected.absences:
            slot.well_since = None
            return
        now = self._monotonic()
        if slot.well_since is None:
            slot.well_since = now
        if now - slot.well_since < REJOIN_SECONDS or self._stuck or self._own.get(slot.only) is not slot:
            return
        del self._own[slot.only]
        slot.closed = True
        workers = [worker for one in (slot, self._main) if (worker := one.take()) is not None]
        log.info("a device that did not answer once is served with the others again", worker=self.settings.name,
                 device=slot.only)  # fmt: skip
        self._events.worker_restarted(self.settings.name, "rejoined")
        await asyncio.gather(*(self._stop_worker(worker, 1.5) for worker in workers))

    # --- stopping ---

    async def release(self, deadline: float = 1.5, patience: float = STARVED_PATIENCE_SECONDS) -> bool:
        """Stop all healthy processes; False where one is left that does not answer. A starved one gets more time.

        Afterwards only the devices of stuck processes are suspects: the driver may be another one by then.
        """
        slots = self._slots()
        for slot in slots:
            slot.closed = True
        workers = [worker for slot in slots if (worker := slot.take()) is not None]
        await asyncio.gather(*(self._stop_worker(worker, deadline, patience) for worker in workers))
        self.tend()
        suspects = {device for device in self._stuck.devices if device}
        self._aliases = {
            alias: device for alias, device in self._aliases.items() if alias in suspects or device in suspects
        }
        self._main = _Slot()
        self._own = {device: _suspect_slot(device) for device in suspects}
        return not self._stuck

    async def rest(self, deadline: float = 1.5) -> None:
        """End all healthy processes; the next run starts others."""
        workers = [worker for slot in self._slots() if (worker := slot.take()) is not None]
        await asyncio.gather(*(self._stop_worker(worker, deadline) for worker in workers))

    async def _stop_worker(
        self, worker: Worker, deadline: float, patience: float = STARVED_PATIENCE_SECONDS
    ) -> None:  # fmt: skip
        if not await worker.stop(deadline, patience):
            self._stuck.add(worker, worker.touched, self._monotonic())

    def take_over(self, earlier: Reader) -> None:
        """Look after the stuck processes of a reader that was stopped, and leave their devices alone as it did."""
        self._stuck, self._aliases = earlier._stuck, earlier._aliases
        self._own = {device: _suspect_slot(device) for device in self._stuck.devices if device}
        self._events.worker_stuck(self.settings.name, len(self._stuck))

    async def stop(self, deadline: float = 1.5) -> None:
        """Stop for good; a stuck process is left behind, and ends by itself when its call returns."""
        await self.release(deadline, patience=deadline)
        self._main.closed = True
        for slot in self._own.values():
            slot.closed = True


def _absent(device: str, reason: Reason, detail: str) -> Collected:
    return Collected({}, [Absence(device, reason, detail)], 0.0)
