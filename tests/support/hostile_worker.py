"""A worker process that is none: the other end of its connection says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from commwatch.node.run import Collected
from commwatch.node.starvation import Starvation
from commwatch.workers.reader import ReaderSettings
from commwatch.workers.wire import Bounds, Order, ProgressMark, WorkerPlan, frame
from commwatch.workers.worker import Worker


class GivenUpError(Exception):
    """The daemon has given the worker up."""


class Hostile:
    """The other end of a worker's connection, which says what the test wants."""

    def __init__(
        self,
        bounds: Bounds,
        *,
        deadline: float = 60.0,
        start_deadline: float | None = None,
        starvation: Starvation | None = None,
        mark: ProgressMark | None = None,
    ) -> None:
        """Args:
        start_deadline: by default as the deadline.
        mark: by default an ordinary one.
        """
        self._settings = ReaderSettings(
            WorkerPlan("", ()), deadline, deadline if start_deadline is None else start_deadline, bounds=bounds
        )
        self._starvation = starvation
        self.mark = ProgressMark.create() if mark is None else mark
        self.taken: list[Collected] = []
        self.starving: list[str] = []
        self.worker: Worker
        self.process: subprocess.Popen[bytes]
        self.socket: socket.socket

    async def start(self) -> None:
        """As ``Worker.start``, but the process does nothing; its order is to run one collector each second."""
        ours, self.socket = socket.socketpair()
        self.socket.setblocking(False)
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # noqa: ASYNC220 - no other clients here
        self.worker = Worker(
            self.process, self.mark, self._settings, self.taken.append, self.starving.append, self._starvation
        )
        await self.worker.connect(ours)
        self.worker.send(WorkerPlan("", ()))
        self.worker.order(Order("run", 1.0, now=True))

    async def stop(self) -> None:
        self.worker.give_up()
        self.socket.close()
        self.process.communicate()
        await asyncio.sleep(0)

    async def say(self, message: bytes) -> None:
        """Send bytes, for as long as anyone takes them."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await asyncio.get_running_loop().sock_sendall(self.socket, message)

    async def gave(self, **batch: Any) -> Collected:
        """Have the daemon take a batch with these fields, which was ordered.

        Raises:
            GivenUpError: it did not take it.
        """
        self.worker.order(Order("run", 1.0, now=True))
        self.taken.clear()
        await self.say(encoded(**batch))
        while not self.taken:
            if self.worker.over.done():
                raise GivenUpError
            await asyncio.sleep(0)
        return self.taken[0]


def encoded(collector: str = "run", readings: Any = (), **fields: Any) -> bytes:
    """A frame with a batch; what is not said is empty."""
    given = {
        "collector": collector, "readings": readings, "absences": (), "events": (), "unavailable": None, "aliases": {},
        "began": 0.0, "duration": 0.0, "occupants": None, "log_errors": (), "resume": None, "audit": None,
        **fields,
    }  # fmt: skip
    return frame(msgspec.msgpack.encode(list(given.values())))


@asynccontextmanager
async def hostile(bounds: Bounds, **arguments: Any) -> AsyncIterator[Hostile]:
    one = Hostile(bounds, **arguments)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()
