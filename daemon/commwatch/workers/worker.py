"""One worker process as the daemon sees it: started, asked with a deadline, given up on, stopped."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec
import structlog

from commwatch.node.run import Collected
from commwatch.node.starvation import Sample, Starvation
from commwatch.readings import Absence, SourceUnavailable
from commwatch.state.records import LONGEST_LABEL
from commwatch.workers.bounds import LONGEST_DETAIL, MOST_DEVICES, MOST_WAITING, Bounds, shortened
from commwatch.workers.start import Launch, Process, start_python
from commwatch.workers.wire import ProgressMark, Reply, Request, WorkerPlan, frame, on_grid, take_frames
from commwatch_exporters.snapshot import Block, Layout, Series

log = structlog.get_logger("commwatch.workers")

Layouts: TypeAlias = "dict[tuple[str, str], Layout]"
"""The layout of the last block by collector and device."""

LATE_SECONDS = 0.5
"""What a process runs by itself is missed so long after it was due."""
_LOOKS = 4
_PART_BYTES = 64 * 2**10
_SEND_BYTES = 2**20
"""What a process may have sent and nobody has taken, as far as the kernel allows: 72 GPUs give 0.4 MB in 5 s."""
STARVED_PATIENCE_SECONDS = 30.0
"""So long at most a starved process is waited for that has been asked to end."""
_REPLIES = msgspec.msgpack.Decoder(Reply)


class WorkerHung(Exception):
    """The worker did not answer in time; ``suspect`` is the device that it was touching, empty where unknown."""

    def __init__(self, suspect: str) -> None:
        super().__init__(f"no answer in time while touching {suspect or 'no particular device'}")
        self.suspect = suspect


class WorkerStarved(Exception):
    """The worker did not answer in time, and the node gave it too little CPU or memory: it is waited for."""


class WorkerEnded(Exception):
    """The worker process ended without being asked to."""


class _Order:
    """A collector that the process runs by itself."""

    __slots__ = ("_replies", "_since", "due", "every")

    def __init__(self, every: float) -> None:
        """Args:
        every: seconds between two runs.
        """
        self.every = every
        self._since = time.monotonic()
        self._replies = 0
        self.due = on_grid(self._since + every, every)
        """Monotonic time of the next run."""

    def count(self, waiting: int) -> None:
        """Count a reply.

        Args:
            waiting: replies that were not taken yet.

        Raises:
            ValueError: there are more than could have been ordered.
        """
        now = time.monotonic()
        self._replies += 1
        self.due = on_grid(now + self.every, self.every)
        ordered = (now - self._since) / self.every
        if waiting >= MOST_WAITING or self._replies > MOST_WAITING + 2 * ordered:
            raise ValueError(f"{self._replies} replies where {ordered:.0f} were ordered")


@dataclass(slots=True)
class _Asked:
    """A request that is not answered yet."""

    number: int
    collector: str
    every: float
    deadline: float
    each_device: bool
    answer: asyncio.Future[Collected]


class Worker(asyncio.BufferedProtocol):
    """A worker process and the connection to it; requests of one moment go together, answered one after another."""

    def __init__(
        self,
        process: Process,
        mark: ProgressMark,
        layouts: Layouts,
        bounds: Bounds | None = None,
        starvation: Starvation | None = None,
    ) -> None:
        self.process = process
        self._starvation = starvation
        self._since: Sample | None = None
        """The process when the deadline began that runs now."""
        self._bounds = bounds or Bounds()
        self._series = 0
        """Of all layouts."""
        self.opened: set[str] = set()
        """Collectors that answered at least once."""
        self.aliases: dict[str, str] = {}
        """Keys of devices by what they are called before their key is known."""
        self.touched = ""
        """The device that the process was touching when its connection ended."""
        self._mark = mark
        self._part = bytearray(_PART_BYTES)
        """Received into again and again: a new one each time is mapped and unmapped by the allocator."""
        self._buffer = bytearray()
        self._layouts: Layouts = {}
        self._earlier_layouts = layouts
        self._number = 0
        self._asked: deque[_Asked] = deque()
        """The first is the one that the process works on."""
        self._unsent: list[bytes] = []
        """Requests of this moment."""
        self._timer: asyncio.TimerHandle | None = None
        """Of the first."""
        self._transport: asyncio.Transport | None = None
        self.ended = False
        self._socket: socket.socket | None = None
        self._orders: dict[str, _Order] = {}
        """By collector."""
        self._samples: dict[str, list[Collected]] = {}
        """What it gave so and was not taken yet."""
        self._on_samples: Callable[[], None] | None = None

    @classmethod
    async def start(
        cls,
        plan: WorkerPlan,
        *,
        launch: Launch | None = None,
        layouts: Layouts | None = None,
        bounds: Bounds | None = None,
        starvation: Starvation | None = None,
    ) -> Worker:
        """Start a process for a plan; it opens its sources at the first request.

        Args:
            plan: what it is to do.
            layouts: of the blocks of the workers before, and of this one from now on: where the series are the same,
                so is the layout, and rates go on over the replacement.
            launch: starts the process; by default with an interpreter of its own.
            bounds: of its metrics; all are taken by default.
            starvation: knows whether a deadline is missed for want of CPU or memory; by default that is not asked.

        Raises:
            OSError: no process can be started.
        """
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        mark = ProgressMark.create()
        try:
            process = (launch or start_python)(theirs.fileno(), mark.descriptor)
        except OSError:
            mark.close()
            ours.close()
            raise
        finally:
            theirs.close()
        worker = cls(process, mark, {} if layouts is None else layouts, bounds, starvation)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: worker, sock=ours)
        worker.connected(transport, ours)
        transport.write(frame(msgspec.msgpack.encode(plan)))
        return worker

    def connected(self, transport: asyncio.Transport, connection: socket.socket) -> None:
        """Take the connection to the process, and the socket beneath it."""
        self._transport, self._socket = transport, connection

    async def collect(
        self, collector: str, deadline: float, *, each_device: bool = False, every: float = 0.0
    ) -> Collected:
        """Run a collector.

        Args:
            collector: as its source calls it.
            deadline: seconds from the moment at which the worker is free for this request.
            each_device: the deadline begins again when another device is touched; for opening a driver, whose time
                grows with the devices. It is so too while the worker may be at something that it runs by itself.
            every: seconds after which it is to be run again and again, for ``take``; 0: only now.

        Raises:
            WorkerHung: no answer in time.
            WorkerStarved: no answer in time, for want of CPU or memory. The next call for the same takes the answer
                that is still to come.
            WorkerEnded: the process is gone.
            SourceUnavailable: the source cannot be read at all.
        """
        return await self._ask(collector, deadline, each_device, every)

    def _take(self, message: bytes) -> None:
        """Take one message.

        Raises:
            ValueError: no worker of ours would have sent it.
        """
        reply = _REPLIES.decode(message)
        if not reply.number:
            self._take_unasked(reply)
        elif self._asked and reply.number == self._asked[0].number:
            self._take_answer(self._asked[0], reply)
        else:
            raise ValueError(f"an answer to request {reply.number}, which does not wait for one")

    def _take_answer(self, asked: _Asked, reply: Reply) -> None:
        """At once, and also where nobody waits for it any more: its series are sent only once."""
        collected = self._collected(asked.collector, reply)
        collected.earlier.extend(self._samples.pop(asked.collector, ()))
        if asked.every and reply.is_clean:
            self._orders[asked.collector] = _Order(asked.every)
        else:
            self._orders.pop(asked.collector, None)
        self._asked.popleft()
        if not asked.answer.done():
            if reply.unavailable is None:
                asked.answer.set_result(collected)
            else:
                reason, detail = reply.unavailable
                asked.answer.set_exception(SourceUnavailable(reason, shortened(detail, LONGEST_DETAIL)))
        elif reply.unavailable is None:
            # It came after it was waited for: what happened is told only once.
            self._samples[asked.collector] = [*collected.earlier, replace(collected, earlier=[])]
        self._time_first()
        self._hear()

    def _collected(self, collector: str, reply: Reply) -> Collected:
        for device in reply.gone:
            self._drop_layout((collector, _word(device)))
        if reply.unavailable is not None:
            return Collected({}, [], reply.duration)
        self.opened.add(collector)
        if reply.aliases:
            self.aliases = {_word(alias): _word(device) for alias, device in reply.aliases.items()}
        blocks = {}
        now = time.monotonic()
        for one in reply.readings:
            key = (collector, _word(one.device))
            if one.series is not None:
                self._keep_layout(key, one.series)
            elif key not in self._layouts:
                raise ValueError(f"values of {one.device!r} without their series")
            blocks[key[1]] = Block(self._layouts[key], one.values, min(one.time, now))
        absences = [
            Absence(_word(one.device), one.reason, shortened(one.detail, LONGEST_DETAIL)) for one in reply.absences
        ]
        events = [replace(one, device=_word(one.device), code=_word(one.code)) for one in reply.events]
        return Collected(
            blocks, absences, reply.duration, events, reply.occupants, reply.log_errors, reply.resume, reply.audit
        )  # fmt: skip

    def _keep_layout(self, key: tuple[str, str], series: tuple[Series, ...]) -> None:
        known = self._layouts.get(key)
        self._series += len(series) - (0 if known is None else len(known.series))
        if self._series > self._bounds.most_series or len(self._layouts) + (known is None) > MOST_DEVICES:
            raise ValueError(f"{self._series} series of {len(self._layouts)} devices")
        self._layouts[key] = self._layout(key, self._bounds.checked(series))

    def _drop_layout(self, key: tuple[str, str]) -> None:
        known = self._layouts.pop(key, None)
        self._series -= 0 if known is None else len(known.series)
        self._earlier_layouts.pop(key, None)

    def take(self) -> dict[str, list[Collected]]:
        """What the process gave unasked since the last time, by collector, the oldest first; waits for nothing.

        Of a collector in which something was wrong that is not given, nor is it run any more.
        """
        if self._orders and self._on_samples is None and not self._asked:
            self._receive()
        taken, self._samples = self._samples, {}
        return taken

    def runs(self, collector: str, every: float) -> bool:
        """Whether the process repeats a collector unasked, each so many seconds, and gave what was due."""
        order = self._orders.get(collector)
        return order is not None and order.every == every and time.monotonic() <= order.due + LATE_SECONDS

    def listen(self, on_samples: Callable[[], None] | None) -> None:
        """Call this for each reply that nobody asked for; None: they wait for ``take``, and wake nobody."""
        self._on_samples = on_samples
        self._hear()

    def _hear(self) -> None:
        """Be woken by what comes while something was asked, or somebody listens."""
        if self._transport is None or self.ended:
            return
        if self._asked or self._on_samples is not None or not self._orders:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _receive(self) -> None:
        """Take what lies in the socket, as the event loop would if it were woken by it."""
        while self._socket is not None and not self.ended:
            try:
                received = self._socket.recv_into(self._part)
            except OSError:  # nothing more
                return
            if not received:
                self._orders.clear()
                self._hear()  # the event loop finds the end by itself
                return
            self.buffer_updated(received)

    def _take_unasked(self, reply: Reply) -> None:
        order = self._orders.get(reply.collector)
        if order is None:
            raise ValueError(f"a reply of {reply.collector!r}, which was not ordered")
        collected = self._collected(reply.collector, reply)  # also what is dropped, as above
        waiting = self._samples.setdefault(reply.collector, [])
        if reply.is_clean:
            order.count(len(waiting))
            waiting.append(collected)
            return
        self._orders.pop(reply.collector)  # its next request says what is wrong
        self._hear()

    def _layout(self, key: tuple[str, str], series: tuple[Series, ...]) -> Layout:
        earlier = self._earlier_layouts.get(key)
        layout = earlier if earlier is not None and earlier.series == series else Layout(_shared(series))
        if len(self._earlier_layouts) > 2 * MOST_DEVICES:  # of processes before this one
            self._earlier_layouts.clear()
        self._earlier_layouts[key] = layout
        return layout

    def _ask(self, collector: str, deadline: float, each_device: bool, every: float) -> asyncio.Future[Collected]:
        if self.ended or self._transport is None:
            raise WorkerEnded
        answer: asyncio.Future[Collected] = asyncio.get_running_loop().create_future()
        for asked in self._asked:
            if asked.answer.done() and (asked.collector, asked.every) == (collector, every):
                asked.answer = answer  # nobody waits any more for what is still to come
                return answer
        self._number += 1
        by_device = each_device or bool(self._orders)
        self._asked.append(_Asked(self._number, collector, every, deadline, by_device, answer))
        self._unsent.append(frame(msgspec.msgpack.encode(Request(self._number, collector, every))))
        if len(self._unsent) == 1:  # what is due together wakes the process once
            asyncio.get_running_loop().call_soon(self._send)
        self._hear()
        if len(self._asked) == 1:
            self._time_first()
        return answer

    def _send(self) -> None:
        if self._transport is not None and not self.ended:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _time_first(self) -> None:
        """Give the request that the process works on now its deadline."""
        if self._timer is not None:
            self._timer.cancel()
        first = self._asked[0] if self._asked else None
        if first is None:
            self._timer = None
        elif first.each_device:
            self._look(first, None, 0)
        else:
            self._since = self._sample()
            # A plain timer: wait_for would cost a task for each request.
            self._timer = asyncio.get_running_loop().call_later(first.deadline, self._miss, first.deadline)

    def _miss(self, deadline: float) -> None:
        waiting = [asked.answer for asked in self._asked if not asked.answer.done()]
        if self._was_starved(self._since, deadline):
            for answer in waiting:
                answer.set_exception(WorkerStarved())
            self._time_first()
        elif waiting:
            waiting[0].set_exception(WorkerHung(self._mark.get()))
        else:
            self._time_first()  # who asks next is told

    def _sample(self) -> Sample | None:
        return None if self._starvation is None else self._starvation.sample(self.process.pid)

    def _was_starved(self, since: Sample | None, deadline: float) -> bool:
        if self._starvation is None or since is None:
            return False
        return self._starvation.excuses(self.process.pid, since, deadline)

    def _look(self, first: _Asked, seen: str | None, still: int) -> None:
        """Look four times in a deadline whether the worker still touches the device that it was seen at."""
        touched = self._mark.get()
        still = still + 1 if touched == seen else 0
        if not still:
            self._since = self._sample()
        if still == _LOOKS:
            self._miss(first.deadline)
        else:
            self._timer = asyncio.get_running_loop().call_later(
                first.deadline / _LOOKS, self._look, first, touched, still
            )

    def give_up(self) -> None:
        """Close the connection and leave the process alone: it ends by itself when its call returns."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    async def stop(self, deadline: float, patience: float = STARVED_PATIENCE_SECONDS) -> bool:
        """Ask the process to let go of everything and end; False where it has not ended in time."""
        if self._transport is not None and not self.ended:
            self.listen(lambda: None)  # one that waits for us to read gets to its order
            self._transport.write(frame(msgspec.msgpack.encode(Request(0, ""))))
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

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next part of what the worker sends goes."""
        return self._part

    def buffer_updated(self, nbytes: int) -> None:
        """Take what the worker sent; one that sends what makes no sense is given up, as if it had ended."""
        self._buffer += memoryview(self._part)[:nbytes]
        try:
            for message in take_frames(self._buffer, self._bounds.largest_frame):
                self._take(message)
        except (ValueError, KeyError, RecursionError) as error:
            log.error("a worker sent what makes no sense and is given up", pid=self.process.pid,
                      error=shortened(str(error), LONGEST_DETAIL))  # fmt: skip
            self.give_up()
            return
        if self._samples and self._on_samples is not None:
            self._on_samples()

    def connection_lost(self, exc: Exception | None) -> None:
        """The process closed its end, or we did."""
        self._end()

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self.touched = self._mark.get()
            self._mark.close()
        if self._timer is not None:
            self._timer.cancel()
        while self._asked:
            answer = self._asked.popleft().answer
            if not answer.done():
                answer.set_exception(WorkerEnded())


def _word(text: str) -> str:
    """A name that becomes a label value, as it may be shown."""
    return shortened(text, LONGEST_LABEL)


def _shared(series: tuple[Series, ...]) -> tuple[Series, ...]:
    """The same series with each name, label value and set of labels once: a message repeats them for each metric.

    That saves 0.4 MiB on h100x8.
    """
    words: dict[str, str] = {}
    label_sets: dict[tuple[str, ...], tuple[str, ...]] = {}
    shared = []
    for name, labels in series:
        known = label_sets.get(labels)
        if known is None:
            known = label_sets[labels] = tuple([words.setdefault(value, value) for value in labels])
        shared.append((words.setdefault(name, name), known))
    return tuple(shared)
