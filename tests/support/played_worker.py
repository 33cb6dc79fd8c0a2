"""Worker processes that the test plays: a reader starts them, and the test says what each of them gives."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from commwatch.node.run import Collected, Keeper
from commwatch.readings import Absence
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.wire import Order, ProgressMark, WireBatch, WireReadings, WorkerPlan, frame, take_frames

SHORT, LONG = 0.05, 600.0
"""Deadlines in seconds: one that is to be missed, and one that is not."""
NUMBER = (("commwatch_counters_state", ("rdma", "symbol_error")),)


class PlayedWorker:
    """One worker process."""

    def __init__(self, connection: int, mark: int) -> None:
        self.pid = 2**22 + 1  # of no process
        self.mark = ProgressMark(os.dup(mark))
        self._socket = socket.socket(fileno=os.dup(connection))
        self._socket.setblocking(False)
        self._come = bytearray()
        self._messages: list[bytes] = []
        self._ended = False

    @property
    def ordered(self) -> list[str]:
        """The collectors that it has orders for."""
        self._read()
        return [msgspec.msgpack.decode(one, type=Order).collector for one in self._messages[1:]]

    def gives(self, collector: str, *devices: str, began: float | None = None, **batch: Any) -> None:
        """Give one run; by default it began now."""
        now = time.monotonic()
        readings = [WireReadings(device, now, NUMBER, [1]) for device in devices]
        fields = {"began": now if began is None else began, "absences": [], "events": [], "unavailable": None}
        given = WireBatch(collector, readings, aliases={}, duration=0.0, **{**fields, **batch})
        self._socket.send(frame(msgspec.msgpack.encode(given)))

    def end(self) -> None:
        """End as a process that crashes, or whose call has returned."""
        self._ended = True
        self._socket.close()

    def _read(self) -> None:
        if self._ended:
            return
        try:
            self._come += self._socket.recv(2**16)
        except BlockingIOError:
            return
        self._messages += take_frames(self._come)

    def poll(self) -> int | None:
        """See ``Process``. It ends when it is asked to."""
        self._read()
        return 0 if self._ended or "" in self.ordered else None

    def send_signal(self, sig: int) -> None:
        """See ``Process``."""


class PlayedReader(Keeper):
    """A reader of some driver whose worker processes the test plays."""

    def __init__(self) -> None:
        self.ahead = 0.0
        """Seconds by which the reader's clock is ahead."""
        self.own_deadline = LONG
        """Start deadline of the process that a suspect gets."""
        self.workers: list[PlayedWorker] = []
        self.kept: list[Collected] = []
        self.lost: list[tuple[str, str, str]] = []
        self.settings = ReaderSettings(
            WorkerPlan("nvml", ("nvml",), rest_when_unavailable=True), LONG, LONG, launch=self._launch
        )
        self.reader = Reader(self.settings, self, lambda: time.monotonic() + self.ahead)

    def _launch(self, connection: int, mark: int, kernel_log: int | None = None) -> PlayedWorker:
        self.workers.append(PlayedWorker(connection, mark))
        return self.workers[-1]

    def keep(self, collected: Collected) -> None:
        """See ``Keeper``."""
        self.kept.append(collected)

    def lose(self, collector: str, absence: Absence) -> None:
        """See ``Keeper``."""
        self.lost.append((collector, absence.device, absence.reason))

    async def until(self, enough: Callable[[], bool]) -> None:
        """Wait for something; the test's time limit bounds it."""
        while not enough():
            await asyncio.sleep(0.001)

    async def started(self, number: int) -> PlayedWorker:
        """The process of this number, from 1, once it has its plan; its reader does not wait until it looks again."""
        while len(self.workers) < number:
            self.reader.tend()
            self.reader.hasten(next(iter(self.reader._every)))
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        return self.workers[number - 1]

    async def next_run(self) -> Collected:
        """The next run that is kept."""
        seen = len(self.kept)
        await self.until(lambda: len(self.kept) > seen)
        return self.kept[seen]

    async def with_suspect(self, device: str) -> tuple[PlayedWorker, PlayedWorker]:
        """Have a device hang and come back, while at least one collector is ordered.

        Returns:
            the process of the others, and that of the device.
        """
        self.reader.settings = replace(self.settings, start_deadline=SHORT)
        hangs = await self.started(1)
        hangs.mark.set(device)
        self.reader.settings = self.settings
        main = await self.started(2)
        self.reader.settings = replace(self.settings, start_deadline=self.own_deadline)
        hangs.end()
        own = await self.started(3)
        self.kept.clear()
        return main, own


@asynccontextmanager
async def played_reader() -> AsyncIterator[PlayedReader]:
    """A reader that is stopped in the end."""
    one = PlayedReader()
    try:
        yield one
    finally:
        for worker in one.workers:
            worker.end()
        await one.reader.stop()
