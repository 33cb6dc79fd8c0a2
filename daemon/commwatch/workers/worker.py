"""One worker process as seen by the daemon: started, given a plan, expected to answer, given up on, stopped."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from commwatch.node.run import Collected, failed
from commwatch.node.starvation import Sample, Starvation
from commwatch.readings import Absence, SourceUnavailable
from commwatch.state.records import LONGEST_LABEL
from commwatch.workers.start import Process
from commwatch.workers.wire import (
    LONGEST_DETAIL,
    MOST_DEVICES,
    MOST_EARLY,
    MOST_WAITING,
    Cadence,
    Order,
    ProgressMark,
    WireBatch,
    WorkerPlan,
    frame,
    shortened,
    take_frames,
)
from commwatch_exporters.snapshot import Block, Layout

if TYPE_CHECKING:
    from commwatch.workers.reader import ReaderSettings

log = structlog.get_logger("commwatch.workers")

_CHECKS = 4
"""Within a deadline."""
_PART_BYTES = 64 * 2**10
STARVED_PATIENCE_SECONDS = 30.0
"""Longest wait for the end of a starved process that has been asked to end."""
_BATCHES = msgspec.msgpack.Decoder(WireBatch)
_ORDERS = msgspec.msgpack.Encoder()


class Hung(NamedTuple):
    """Nothing came of a worker in time."""

    suspect: str
    """The device that it was touching; empty where unknown."""
    collector: str
    """The collector whose batch is overdue."""


class _Expected(Cadence):
    """A collector that the process runs, the batches of it that may come, and the series that it gave last."""

    __slots__ = ("_allowed", "_since", "layouts")

    def __init__(self) -> None:
        super().__init__()
        self._allowed = float(MOST_EARLY)
        self._since = time.monotonic()
        self.layouts: dict[str, tuple[str, Layout]] = {}
        """By device of the last batch, as the process calls it: how it is shown, and the layout of its block."""

    def allow(self, more: int, now: float) -> None:
        """Allow more batches, beside those that may have come by the interval until now: call before that changes.

        Args:
            more: 1: one was ordered; -1: one has come.

        Raises:
            ValueError: more have come than can have been ordered.
        """
        if self.every:
            self._allowed = min(self._allowed + 2 * (now - self._since) / self.every, MOST_WAITING)
        self._since = now
        self._allowed += more
        if self._allowed < 0:
            raise ValueError("more batches of a collector than were ordered")


class Worker(asyncio.BufferedProtocol):
    """A worker process and the connection to it."""

    def __init__(
        self,
        process: Process,
        mark: ProgressMark,
        settings: ReaderSettings,
        take: Callable[[Collected], None],
        starved: Callable[[str], None],
        starvation: Starvation | None = None,
    ) -> None:
        """Args:
        process: it waits for its plan, and opens each source when it runs a collector of it.
        mark: in which it names the device that it touches.
        take: called with each batch.
        starved: called with a collector of which nothing came in time, for want of CPU or memory: it is waited for.
        starvation: finds deadlines that are missed for that; None: not checked.
        """
        self.process = process
        self.over: asyncio.Future[Hung | None] = asyncio.get_running_loop().create_future()
        """Done once nothing more is to be expected of it; None: it has ended."""
        self.aliases: dict[str, str] = {}
        """Keys of devices by what they are called before their key is known."""
        self.touched = ""
        """The device that the process was touching when its connection ended."""
        self._mark = mark
        self._take = take
        self._starved = starved
        self._settings = settings
        self._starvation = starvation
        self._since: Sample | None = None
        """The process at the first of the checks that go on now."""
        self._is_open = False
        """Whether a source was read."""
        self._expected: dict[str, _Expected] = {}
        """By collector."""
        self._timer: asyncio.TimerHandle | None = None
        self._part = bytearray(_PART_BYTES)
        """Received into again and again: a new one each time is mapped and unmapped by the allocator."""
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._has_ended = False

    @classmethod
    async def start(
        cls, settings: ReaderSettings, take: Callable[[Collected], None], starved: Callable[[str], None],
        starvation: Starvation | None = None,
    ) -> Worker:  # fmt: skip
        """Start a process; arguments as above.

        Raises:
            OSError: no process can be started.
        """
        ours, theirs = socket.socketpair()
        mark = ProgressMark.create()
        try:
            process = settings.launch(theirs.fileno(), mark.descriptor)
        except OSError:
            mark.close()
            ours.close()
            raise
        finally:
            theirs.close()
        worker = cls(process, mark, settings, take, starved, starvation)
        await worker.connect(ours)
        return worker

    async def connect(self, connection: socket.socket) -> None:
        """Take the connection to the process."""
        self._transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=connection)

    def send(self, plan: WorkerPlan) -> None:
        """Send the process its plan, before any order."""
        self._write(_ORDERS.encode(plan))

    def order(self, order: Order) -> None:
        """Change what the process runs, and what is expected of it. Checks of what is due already go on as they are."""
        was_due, now = self._is_due(), time.monotonic()
        self._write(_ORDERS.encode(order))
        expected = self._expected.setdefault(order.collector, _Expected())
        expected.allow(1, now)
        expected.order(order.every, now, at_once=order.now)
        if not (was_due and self._is_due()):
            self._watch()

    def _write(self, message: bytes) -> None:
        if self._transport is not None and not self._has_ended:
            self._transport.write(frame(message))

    # --- deadlines ---

    def _is_due(self) -> bool:
        """Whether anything is due, so that its checks go on."""
        return any(one.due <= time.monotonic() for one in self._expected.values())

    def _watch(self) -> None:
        """Have the process checked once what is due next may be late: one step after that, and after the last batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min([one.due for one in self._expected.values()], default=math.inf)
        if due != math.inf and not self.over.done():
            begin = max(due, time.monotonic())
            # Set again with each batch: one that goes on would wake the daemon each second. And no task for each, which
            # would cost more than the batch.
            self._timer = asyncio.get_running_loop().call_at(begin + self._patience / _CHECKS, self._check, "", 0)

    @property
    def _patience(self) -> float:
        return self._settings.deadline if self._is_open else self._settings.start_deadline

    def _check(self, touched: str, checks: int) -> None:
        """Check whether the process still touches the device at which ``checks`` checks found it.

        It hangs once all checks of a deadline have found it there.
        """
        now = self._mark.get()
        checks = checks + 1 if now == touched and checks else 1
        if checks == 1:
            self._since = self._sample()
        step = self._patience / _CHECKS
        if checks < _CHECKS:
            self._timer = asyncio.get_running_loop().call_later(step, self._check, now, checks)
        elif self._was_starved(self._since, (_CHECKS - 1) * step):
            self._starved(self.first_due())
            self._watch()
        else:
            self._end_with(Hung(now, self.first_due()))

    def first_due(self) -> str:
        """The collector that is due first, so that the process runs it where any is due; empty where it has none."""
        return min(self._expected, key=lambda name: self._expected[name].due, default="")

    def _sample(self) -> Sample | None:
        return None if self._starvation is None else self._starvation.sample(self.process.pid)

    def _was_starved(self, since: Sample | None, deadline: float) -> bool:
        if self._starvation is None or since is None:
            return False
        return self._starvation.excuses(self.process.pid, since, deadline)

    # --- what comes ---

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next part of what the worker sends goes."""
        return self._part

    def buffer_updated(self, nbytes: int) -> None:
        """Take what the worker sent; one that sends what makes no sense is given up, as if it had ended."""
        self._buffer += memoryview(self._part)[:nbytes]
        try:
            batches = [
                self._collected(message) for message in take_frames(self._buffer, self._settings.bounds.largest_frame)
            ]
        except (ValueError, KeyError, RecursionError) as error:
            log.error("a worker sent what makes no sense and is given up", pid=self.process.pid,
                      error=shortened(str(error), LONGEST_DETAIL))  # fmt: skip
            self.give_up()
            return
        if batches:
            self._watch()
        for collected in batches:
            self._take(collected)

    def _collected(self, message: bytes) -> Collected:
        """The batch in a message.

        Raises:
            ValueError: no worker of ours would have sent it.
        """
        batch = _BATCHES.decode(message)
        expected = self._expected.get(batch.collector)
        if expected is None:
            raise ValueError(f"a batch of {batch.collector!r}, which was not ordered")
        now = time.monotonic()
        expected.allow(-1, now)
        expected.ran(now)
        known, expected.layouts = expected.layouts, {}
        if batch.unavailable is not None:
            reason, detail = batch.unavailable
            unavailable = SourceUnavailable(reason, shortened(detail, LONGEST_DETAIL))
            return failed(batch.collector, Absence("", reason, unavailable.detail), unavailable)
        self._is_open = True
        if batch.aliases:
            self.aliases = {_word(alias): _word(device) for alias, device in batch.aliases.items()}
        absences = [
            Absence(_word(one.device), one.reason, shortened(one.detail, LONGEST_DETAIL)) for one in batch.absences
        ]
        events = [replace(one, device=_word(one.device), code=_word(one.code)) for one in batch.events]
        blocks, is_new = {}, False
        for one in batch.readings:
            if one.series is not None:
                known[one.device] = _word(one.device), Layout(self._settings.bounds.checked(one.series))
                is_new = True
            elif one.device not in known:
                raise ValueError(f"values of {one.device!r} without their series")
            shown, layout = expected.layouts[one.device] = known[one.device]
            blocks[shown] = Block(layout, one.values, min(one.time, now))
        if is_new:
            self._check_size()
        return Collected(
            blocks, absences, batch.duration, events, batch.occupants, batch.log_errors, batch.resume, batch.audit,
            batch.collector, began=min(batch.began, now),
        )  # fmt: skip

    def _check_size(self) -> None:
        """See that the last batches of all collectors together are not too large.

        Raises:
            ValueError: they are.
        """
        sizes = [len(layout.series) for one in self._expected.values() for _, layout in one.layouts.values()]
        if sum(sizes) > self._settings.bounds.most_series or len(sizes) > MOST_DEVICES:
            raise ValueError(f"{sum(sizes)} series of {len(sizes)} devices")

    # --- the end ---

    def give_up(self) -> None:
        """Close the connection and leave the process alone: it ends by itself when its call returns."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    async def stop(self, deadline: float, patience: float = STARVED_PATIENCE_SECONDS) -> bool:
        """Ask the process to let go of everything and end; False where it has not ended in time."""
        self._write(_ORDERS.encode(Order("")))
        ended = await self.ended_within(deadline, patience)
        self.give_up()
        return ended

    async def ended_within(self, seconds: float, patience: float = STARVED_PATIENCE_SECONDS) -> bool:
        """Wait for the end of the process; False where it is still there. One that is starved gets more time."""
        end, since = time.monotonic() + seconds, self._sample()
        latest = end + patience
        while self.process.poll() is None:
            now = time.monotonic()
            if now >= end:
                if now >= latest or not self._was_starved(since, seconds):
                    return False
                end, since = now + seconds, self._sample()
            await asyncio.sleep(0.01)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The process closed its end, or we did."""
        self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.touched = self._mark.get()
            self._mark.close()
        self._end_with(None)

    def _end_with(self, reason: Hung | None) -> None:
        if not self.over.done():
            self.over.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()


def _word(text: str) -> str:
    """A name that becomes a label value, as it may be shown."""
    return shortened(text, LONGEST_LABEL)
