"""A reader: the worker processes behind some sources, replaced when they hang or crash, never piled up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from commwatch.config.settings import Config, section_json
from commwatch.config.simulated import SimulationPlan
from commwatch.node.run import Collected, Keeper, failed
from commwatch.node.starvation import Starvation
from commwatch.readings import LOST_REASONS, Absence, SourceUnavailable
from commwatch.workers.sources import SourceRow
from commwatch.workers.start import Launch, start_python
from commwatch.workers.stuck import StuckProcesses
from commwatch.workers.wire import MOST_ALIASES, Bounds, Cadence, Order, WorkerPlan, on_grid
from commwatch.workers.worker import STARVED_PATIENCE_SECONDS, Hung, Worker

log = structlog.get_logger("commwatch.workers")

STUCK_LIMIT = 2
"""Most processes of one node that may hang in a driver; no further one is started beside them."""
CRASH_BACKOFF_SECONDS = (1.0, 60.0)
RETRY_SUSPECT_SECONDS = (30.0, 600.0)
UNAVAILABLE_BACKOFF_SECONDS = (5.0, 60.0)
REJOIN_SECONDS = 600.0
"""A suspect that has answered for this time is re-admitted to the shared worker: alone it has no peers."""
RENEW_SECONDS = (5.0, 600.0)
"""Between new processes while a device is lost, or not listed by its driver."""
_RENEWED: Final = LOST_REASONS | {"not_listed"}
END_SECONDS = 0.2
"""A process that has closed its connection ends within this time, or it hangs at its end."""
RETRY_SECONDS = 1.0
"""Between two attempts to start a process where one is missing."""


@dataclass(frozen=True)
class ReaderSettings:
    """The sources of a reader, its plan and its deadlines."""

    plan: WorkerPlan
    """Of its processes, as far as it is known before the first one starts."""
    deadline: float
    """Seconds from the time at which a collector is due, and from the batch before, until its batch has come. It begins
    again when another device is touched."""
    start_deadline: float
    """The same until a source was read, as to open a driver takes long."""
    procfs: Path = Path("/proc")
    """Where our own processes are."""
    bounds: Bounds = field(default_factory=Bounds)
    """Bounds on the output of its processes."""
    launch: Launch = start_python
    """Starts its processes."""

    @classmethod
    def of(
        cls, config: Config, sources: Sequence[SourceRow], simulation: SimulationPlan | None, *,
        opt_in: Iterable[str] = (), rest_when_unavailable: bool = False, launch: Launch = start_python,
    ) -> ReaderSettings:  # fmt: skip
        """Those of some sources of one reader, as the configuration has it; see ``WorkerPlan``."""
        row, roots = sources[0].reader, simulation or config.paths
        sections = [source.section(config.sources) for source in sources]
        deadline = max(section.deadline for section in sections)
        plan = WorkerPlan(
            row.name, tuple(source.name for source in sources), section_json(config.sources), roots.sysfs,
            roots.procfs, simulation=simulation, opt_in=tuple(sorted(opt_in)), confined=row.confined,
            rest_when_unavailable=rest_when_unavailable,
        )  # fmt: skip
        start_deadline = max(getattr(section, "start_deadline", 2 * deadline) for section in sections)
        return cls(plan, deadline, start_deadline, Path(config.paths.procfs), bounds=row.bounds, launch=launch)

    @property
    def name(self) -> str:
        """On the metrics."""
        return self.plan.name


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


class _Slot:
    """The place of one worker process: all devices but the suspects, or one suspect alone."""

    def __init__(self, only: str | None = None) -> None:
        self.only = only
        self.worker: Worker | None = None
        self.backoff = _Backoff(*(CRASH_BACKOFF_SECONDS if only is None else RETRY_SUSPECT_SECONDS))
        self.renewal = _Backoff(*RENEW_SECONDS)
        self.lost_by = ""
        """The collector that found a device lost last."""
        self.unavailable: SourceUnavailable | None = None
        """Why it has no worker, where its driver cannot be read."""
        self.failure = ""
        """The reason why the previous worker failed, if it ended by itself or never started."""
        self.given: set[str] = set()
        """Collectors that the worker has given."""
        self.closed = False
        """Released: nothing is started in it any more, and nothing is taken of it."""
        self.well_since: float | None = None
        """Monotonic seconds from which on everything was read."""
        self.batches: dict[str, Collected] = {}
        """By collector what was not handed on yet."""
        self.absent: dict[str, Cadence] = {}
        """By collector when its absence is reported next, while there is no worker."""
        self.wake = asyncio.Event()
        self.serving: asyncio.Task[None] | None = None

    def vacate(self) -> Worker | None:
        """The worker, which is no longer of this slot."""
        worker, self.worker = self.worker, None
        return worker

    def close(self) -> None:
        """Start nothing any more."""
        self.closed = True
        self.wake.set()


_RELEASED: Final = Absence("", "crashed", "released")


class Reader:
    """Keeps worker processes running that read the devices of some sources, each run with a deadline.

    A missed deadline makes the device that was being touched a suspect: its process is left alone, one replacement
    serves the other devices, and the suspect gets a process of its own once no process is stuck any more. So never more
    than two processes can hang: one alone, and the one that serves the others.
    """

    def __init__(
        self,
        settings: ReaderSettings,
        keeper: Keeper | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        starvation: Starvation | None = None,
    ) -> None:
        """Args:
        keeper: None: only who waits for a run gets it.
        """
        self.settings = settings
        self.keeper = keeper or Keeper()
        self._starvation = starvation
        self._monotonic = monotonic
        self._every: dict[str, float] = {}
        """Seconds between two runs by collector."""
        self._waiting: dict[str, list[tuple[float, asyncio.Future[Collected]]]] = {}
        """By collector who waits for a run of it, and since which monotonic time: a run under way by then is none."""
        self._main = _Slot()
        self._own: dict[str, _Slot] = {}
        self._stuck = StuckProcesses(settings.name, settings.procfs, self.keeper.worker_stuck)
        self._retiring: dict[Worker, asyncio.Task[None]] = {}
        """Workers that were asked to end."""
        self._stopped = False
        self._aliases: dict[str, str] = {}
        self._learned: dict[str, str] = {}
        """The aliases that a worker reported last."""

    @property
    def suspects(self) -> frozenset[str]:
        """Devices that did not answer and whose process has not come back."""
        return frozenset(self._aliases.get(device, device) for device in self._stuck.devices)

    @property
    def stuck_count(self) -> int:
        """Processes that missed their deadline and are still there."""
        return len(self._stuck)

    def pids(self) -> list[int]:
        """Processes of this reader that are still there, stuck ones included."""
        workers = [slot.worker for slot in self._slots() if slot.worker is not None]
        workers += [*self._retiring, *self._stuck.workers]
        return [worker.process.pid for worker in workers if worker.process.poll() is None]

    def _slots(self) -> list[_Slot]:
        return [self._main, *self._own.values()]

    def tend(self) -> None:
        """Look after the stuck processes."""
        self._stuck.tend(self._monotonic())

    # --- what is to be run ---

    def order(self, collector: str, every: float) -> None:
        """Have a collector run at an interval, in seconds, for the first time at once; 0: not any more."""
        begins = bool(every) and collector not in self._every
        if every:
            self._every[collector] = every
        else:
            self._every.pop(collector, None)
        self._send(Order(collector, every, now=begins))
        if not every:
            for slot in self._slots():
                slot.batches.pop(collector, None)
            self._answer(failed(collector, _RELEASED))

    def hasten(self, collector: str) -> None:
        """Have a collector run now, beside its interval."""
        self._send(Order(collector, self._every.get(collector, 0.0), now=True))

    async def now(self, collector: str) -> Collected:
        """Have a collector run now; returns once the keeper has what it gave."""
        if self._stopped:
            return failed(collector, _RELEASED)
        given: asyncio.Future[Collected] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(collector, []).append((time.monotonic(), given))
        self.hasten(collector)
        return await given

    def _send(self, order: Order) -> None:
        if self._stopped:
            return
        for slot in self._slots():
            if slot.worker is not None:
                slot.worker.order(order)
            slot.absent.pop(order.collector, None)
            self._serve(slot)

    def _plan(self, slot: _Slot) -> WorkerPlan:
        only = None if slot.only is None else self._spellings(slot.only)
        leave_out = () if slot.only is not None else [name for one in self._own for name in self._spellings(one)]
        resume = self.keeper.resume_point(self.settings.plan.sources)
        return msgspec.structs.replace(self.settings.plan, leave_out=tuple(leave_out), only=only, resume=resume)

    def _spellings(self, device: str) -> tuple[str, ...]:
        """A device by its key and by what it is called before its key is known."""
        others = [alias for alias, key in self._aliases.items() if key == device]
        others += [self._aliases[device]] if device in self._aliases else []
        return (device, *others)

    # --- what comes ---

    def _take(self, slot: _Slot, collected: Collected) -> None:
        """Take what a worker gave."""
        if slot.closed:
            return
        if slot.worker is not None and slot.worker.aliases is not self._learned:
            self._learn_aliases(slot.worker.aliases)
        if (error := collected.unavailable) is not None:
            self._rest_unavailable(slot, error)
            if slot.only is not None:
                collected = failed(collected.collector, Absence(slot.only, error.reason, error.detail))
        elif slot.worker is not None:  # and has not been asked to end
            slot.unavailable = None
            if self.settings.plan.rest_when_unavailable and (collected.absences or slot.lost_by):
                self._renew_for_lost(slot, collected)
        if slot.worker is not None:
            slot.given.add(collected.collector)
            # Before that, one that ends its process each time is still to come.
            if slot.backoff.until and slot.given >= self._every.keys():
                slot.backoff.reset()
        self._put(slot, collected)

    def _starved(self, slot: _Slot, collector: str) -> None:
        """Nothing came in time: the node is starved, so that is not judged."""
        if slot.closed:
            return
        why = "no answer in time; the node is starved, so that is not judged"
        for name in {collector, *(self._waiting if slot.only is None else ())}:
            self._put(slot, failed(name, Absence(slot.only or "", "starved", why)))

    def _put(self, slot: _Slot, collected: Collected) -> None:
        """Hand a batch on, together with those of the other processes, once each of these has given its own."""
        name = collected.collector
        if slot is self._main and not self._own and name not in slot.batches:
            self._give(collected)
            return
        if earlier := slot.batches.pop(name, None):
            if slot.only is None:  # the others are late
                slot.batches[name] = earlier
                self._hand(name)
            else:
                collected = replace(
                    collected,
                    events=[*earlier.events, *collected.events],
                    log_errors=[*earlier.log_errors, *collected.log_errors],
                )
        slot.batches[name] = collected
        self._hand_whole(name)

    def _hand_whole(self, name: str) -> None:
        """Hand on a run of a collector where no process has its part still to give.

        Where that of the others answers who waits, that of a suspect is to do so too.
        """
        if name not in self._main.batches:
            return
        began = self._main.batches[name].began
        asked = max((asked for asked, _ in self._waiting.get(name, ()) if asked <= began), default=0.0)
        parts = [one.batches.get(name) for one in self._own.values() if one.worker is not None]
        if all(part is not None and part.began >= asked for part in parts):
            self._hand(name)

    def _hand(self, name: str) -> None:
        whole = self._main.batches.pop(name)
        parts = []
        for slot in self._own.values():
            part = slot.batches.pop(name, None)
            if part is None and slot.worker is not None:  # it is late, and its deadline is not over
                whole = replace(whole, is_part=True)
                continue
            part = part or failed(name, self._why_absent(slot))
            parts.append((slot, part))
            occupants = whole.occupants if part.occupants is None else {**part.occupants, **(whole.occupants or {})}
            whole = replace(
                whole,
                # A suspect's own process sees it alone: the main one speaks for the source.
                blocks={**part.blocks, **whole.blocks},
                absences=[*whole.absences, *part.absences],
                events=[*whole.events, *part.events],
                log_errors=[*whole.log_errors, *part.log_errors],
                occupants=occupants,
                duration=max(whole.duration, part.duration),
            )
        self._give(whole)
        for slot, part in parts:
            self._rejoin(slot, part)

    def _give(self, whole: Collected) -> None:
        """Give the keeper a run, and then whoever waits for one."""
        if whole.absences:
            whole = replace(whole, absences=[*map(self._by_key, whole.absences)])
        self.keeper.keep(whole)
        if self._waiting:
            self._answer(whole)

    def _answer(self, collected: Collected) -> None:
        """Answer whoever waits for a collector and asked before this run began."""
        waiting = self._waiting.pop(collected.collector, [])
        if later := [one for one in waiting if one[0] > collected.began]:
            self._waiting[collected.collector] = later
        for asked, given in waiting:
            if asked <= collected.began and not given.done():
                given.set_result(collected)

    def _by_key(self, absence: Absence) -> Absence:
        """An absence by the key of its device, where the device was known by it before."""
        return replace(absence, device=self._aliases.get(absence.device, absence.device))

    def _learn_aliases(self, new: dict[str, str]) -> None:
        """Indexes move: the present message about an index or a device replaces all earlier ones."""
        self._learned = new
        devices = set(new.values())
        kept = {alias: device for alias, device in self._aliases.items() if device not in devices}
        self._aliases = dict([*kept.items(), *new.items()][-MOST_ALIASES:])

    # --- processes ---

    def _serve(self, slot: _Slot) -> None:
        """Keep a process running in a slot from now on, and start it now."""
        slot.wake.set()
        if slot.serving is None and not slot.closed:
            slot.serving = asyncio.create_task(self._keep_serving(slot))

    async def _keep_serving(self, slot: _Slot) -> None:
        while not slot.closed:
            slot.wake.clear()
            try:
                if not (self._every or self._waiting):
                    await slot.wake.wait()
                elif (worker := await self._started(slot)) is not None:
                    await self._over(slot, worker)
                else:
                    await self._without(slot)
            except Exception:
                log.exception("a reader failed", worker=self.settings.name)  # a defect of ours; it goes on
                await asyncio.sleep(RETRY_SECONDS)

    async def _started(self, slot: _Slot) -> Worker | None:
        if slot.worker is not None:
            return slot.worker
        self.tend()
        if self._monotonic() < slot.backoff.until or not self._may_start(slot):
            return None
        try:
            worker = await Worker.start(
                self.settings, partial(self._take, slot), partial(self._starved, slot), self._starvation
            )
        except OSError as error:
            slot.backoff.start(self._monotonic())
            slot.failure = f"cannot be started ({error})"
            log.error("a worker cannot be started", worker=self.settings.name, error=str(error))
            return None
        if slot.closed:
            await self._stop_worker(worker, 1.5)
            return None
        worker.send(self._plan(slot))
        for name in dict.fromkeys((*self._every, *self._waiting)):
            worker.order(Order(name, self._every.get(name, 0.0), now=True))
        slot.worker = worker
        slot.absent.clear()
        slot.given.clear()
        return worker

    def _may_start(self, slot: _Slot) -> bool:
        stuck = len(self._stuck) + self.keeper.stuck_elsewhere(self.settings.plan.sources)
        if slot.only is not None:
            return stuck == 0
        # A hang outside any device would only hang the replacement too.
        return stuck < STUCK_LIMIT and "" not in self.suspects

    async def _over(self, slot: _Slot, worker: Worker) -> None:
        """Wait for the end of a worker; handle it if the end was not requested."""
        reason = await worker.over
        if slot.worker is not worker:
            return
        if reason is None:
            await self._crashed(slot, worker)
        else:
            self._hung(slot, worker, reason)
        for name in [*self._main.batches]:  # that waited for this one
            self._hand_whole(name)

    async def _without(self, slot: _Slot) -> None:
        """Say at its interval that each collector gives nothing, until a process may be started again."""
        now = time.monotonic()
        if slot.only is None:
            for name in (*self._every, *self._waiting):
                cadence = slot.absent.get(name)
                if cadence is None:
                    cadence = slot.absent[name] = Cadence()
                    cadence.order(self._every.get(name, 0.0), now, at_once=True)
                if cadence.due <= now:
                    cadence.ran(now)
                    self._put(slot, failed(name, self._why_absent(slot), slot.unavailable))
        try:
            await asyncio.wait_for(slot.wake.wait(), on_grid(now + RETRY_SECONDS, RETRY_SECONDS) - now)
        except asyncio.TimeoutError:
            return

    def _why_absent(self, slot: _Slot) -> Absence:
        if slot.unavailable is not None:
            return Absence(slot.only or "", slot.unavailable.reason, slot.unavailable.detail)
        if self._stuck or self.keeper.stuck_elsewhere(self.settings.plan.sources):
            return Absence(slot.only or "", "deadline", "not read: a process is still stuck in the kernel")
        if slot.only is not None:
            return Absence(slot.only, "deadline", "not read: it did not answer in time, and is tried again later")
        return Absence("", "crashed", f"its worker process {slot.failure}, and is started again later")

    # --- what goes wrong ---

    def _hung(self, slot: _Slot, worker: Worker, hung: Hung) -> None:
        device, slot.well_since = slot.only or hung.suspect, None
        slot.vacate()
        self._stuck.add(worker, device, self._monotonic())
        self.keeper.worker_restarted(self.settings.name, "deadline")
        # A suspect that has come back waits: its process could be the third that hangs.
        for own in self._own.values():
            self._retire(own)
        absence = Absence(device, "deadline", "no answer in time; its process is left alone")
        if slot.only is not None:
            slot.backoff.start(self._monotonic())
            self.keeper.lose(hung.collector, self._by_key(absence))
        self._put(slot, failed(hung.collector, absence))
        if device and device not in self._own:
            self._own[device] = _Slot(device)
            self._serve(self._own[device])

    async def _crashed(self, slot: _Slot, worker: Worker) -> None:
        slot.vacate()
        touched, slot.well_since, slot.unavailable = worker.touched, None, None
        if (name := worker.first_due()) in self._every:  # it goes last: those after it would not be read
            self._every[name] = self._every.pop(name)
        slot.backoff.start(self._monotonic())
        if not await worker.ended_within(END_SECONDS):
            self._stuck.add(worker, slot.only or touched, self._monotonic())
        worker.give_up()
        exit_code = worker.process.poll()
        slot.failure = "has closed its connection" if exit_code is None else f"ended with exit code {exit_code}"
        log.warning("a worker ended and will be replaced", worker=self.settings.name, exit_code=exit_code,
                    device=touched)  # fmt: skip
        self.keeper.worker_restarted(self.settings.name, "crashed")

    def _rest_unavailable(self, slot: _Slot, error: SourceUnavailable) -> None:
        if self.settings.plan.rest_when_unavailable and slot.worker is not None:
            slot.unavailable = error
            slot.backoff = _Backoff(*UNAVAILABLE_BACKOFF_SECONDS) if not slot.backoff.until else slot.backoff
            slot.backoff.start(self._monotonic())
            self._retire(slot)

    def _renew_for_lost(self, slot: _Slot, collected: Collected) -> None:
        """A handle of a lost GPU stays dead after the GPU has come back: only a new process sees it again.

        So does the list of a driver that was opened while a GPU was being bound to it, as far as is known.
        """
        if not any(absence.reason in _RENEWED for absence in collected.absences):
            if collected.collector == slot.lost_by:  # others may not touch it
                slot.renewal.reset()
            return
        slot.lost_by = collected.collector
        now = self._monotonic()
        if not slot.renewal.until:
            slot.renewal.start(now)
        elif now >= slot.renewal.until and slot.worker is not None:
            slot.renewal.start(now)
            self.keeper.worker_restarted(self.settings.name, "device_lost")
            self._retire(slot)

    def _rejoin(self, slot: _Slot, collected: Collected) -> None:
        """Serve a former suspect with the other devices again, by a new process, once it has been well for long."""
        if collected.absences:
            slot.well_since = None
            return
        now = self._monotonic()
        if slot.well_since is None:
            slot.well_since = now
        if slot.only is None or now - slot.well_since < REJOIN_SECONDS or self._stuck:
            return
        del self._own[slot.only]
        log.info("a device that did not answer once is served with the others again", worker=self.settings.name,
                 device=slot.only)  # fmt: skip
        self.keeper.worker_restarted(self.settings.name, "rejoined")
        self._retire(slot)
        self._retire(self._main)
        slot.close()

    # --- stopping ---

    def _retire(self, slot: _Slot) -> None:
        """Have the worker of a slot end; another one may follow."""
        if (worker := slot.vacate()) is not None:
            self._retiring[worker] = asyncio.create_task(self._stop_worker(worker, 1.5))

    async def release(self, deadline: float = 1.5, patience: float = STARVED_PATIENCE_SECONDS) -> bool:
        """Stop all healthy processes; False where one is left that does not answer. A starved one gets more time.

        The next run starts others.

        Afterwards only the devices of stuck processes are suspects: the driver may be another one by then.
        """
        slots = self._slots()
        workers = [worker for slot in slots if (worker := slot.vacate()) is not None]
        for slot in slots:
            slot.close()
        await asyncio.gather(
            *self._retiring.values(), *(self._stop_worker(worker, deadline, patience) for worker in workers)
        )
        await asyncio.gather(*(slot.serving for slot in slots if slot.serving is not None))
        self.tend()
        suspects = {device for device in self._stuck.devices if device}
        self._aliases = {
            alias: device for alias, device in self._aliases.items() if alias in suspects or device in suspects
        }
        self._main, self._own = _Slot(), {}
        for name in [*self._waiting]:
            self._put(self._main, failed(name, _RELEASED))
        self._own = {device: _Slot(device) for device in suspects}
        return not self._stuck

    async def _stop_worker(
        self, worker: Worker, deadline: float, patience: float = STARVED_PATIENCE_SECONDS
    ) -> None:  # fmt: skip
        if not await worker.stop(deadline, patience):
            self._stuck.add(worker, worker.touched, self._monotonic())
        self._retiring.pop(worker, None)

    def take_over(self, earlier: Reader) -> None:
        """Look after the stuck processes of a reader that was stopped, and leave their devices alone as it did."""
        self._stuck, self._aliases = earlier._stuck, earlier._aliases
        self._stuck.changed = self.keeper.worker_stuck
        self._own = {device: _Slot(device) for device in self._stuck.devices if device}
        self.keeper.worker_stuck(self.settings.name, len(self._stuck))

    async def stop(self, deadline: float = 1.5) -> None:
        """Stop for good; a stuck process is left behind, and ends by itself when its call returns."""
        self._stopped = True
        await self.release(deadline, patience=deadline)
