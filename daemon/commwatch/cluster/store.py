"""Where members meet: a socket that we bind ourselves, on which each sealed message has a deadline and a limit."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from commwatch.cluster.channel import Channel, ChannelError, Gone, Malformed, NotSealed, TooLong, accept
from commwatch.cluster.messages import Contact, Join, Ping, Pong, Refused, Report, Roster, Verdict, has_addresses

_HELLO_SECONDS = 5.0
_MOST_PINGS = 8
_MOST_STRANGERS = 16

Judge = Callable[[Mapping[int, Contact], Mapping[int, Report]], Verdict]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each step may take, in seconds."""

    join: float = 60.0
    report: float = 45.0
    """From the roster to the last report: names, connections and large packets."""
    step: float = 3.0
    """Of a connection: the kernel asks again after 1 s, and what has not answered the second time is filtered."""


DEADLINES = Deadlines()


class Store(Generic[Result]):
    """One run. Whoever does not come, stops answering or dies is left out; the others go on by the deadlines."""

    purpose = "check"

    def __init__(self, key: bytes, size: int, deadlines: Deadlines = DEADLINES) -> None:
        """Nothing listens yet.

        Args:
            key: of the run.
            size: members that are expected.
            deadlines: of joining and reporting.
        """
        self.size, self.deadlines = size, deadlines
        self.strangers: Counter[str] = Counter()
        self._key = key
        self._members: dict[int, Contact] = {}
        self._complete = asyncio.Event()
        """All have come, or the window is over."""
        self._fixed = False
        self._connections: set[asyncio.Task[None]] = set()
        self._unknown = 0
        """Connections that have sent no sealed message yet."""

    def here(self) -> int:
        """How many have come."""
        return len(self._members)

    async def serve(self, sock: socket.socket) -> Result:
        """Serve one run on a listening socket, which is closed at the end."""
        server = await asyncio.start_server(self._connected, sock=sock, limit=2**16, backlog=self.size + 64)
        try:
            await within(self._complete.wait(), self.deadlines.join)
            self._fixed = True
            self._complete.set()
            result = await self._work()
            if here := [one for one in self._connections if not one.done()]:
                await asyncio.wait(here, timeout=2.0)
            return result
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _work(self) -> Result:
        """What the members are for, once their number is fixed."""
        raise NotImplementedError

    async def _member(self, channel: Channel, request: Join) -> None:
        """Serve a member from its coming to its leave."""
        raise NotImplementedError

    def _left(self, rank: int) -> None:
        """A member's connection has ended."""

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._unknown > self.size + 64:
            writer.transport.abort()
            self._turned_away(writer, "one of too many connections")
            return
        task = asyncio.ensure_future(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank: int | None = None
        try:
            self._unknown += 1
            try:
                channel, request = await asyncio.wait_for(self._hello(reader, writer), _HELLO_SECONDS)
            finally:
                self._unknown -= 1
            if (reason := self._why_not(request)) is not None:
                self._turned_away(writer, reason)
                await channel.send(Refused(reason=reason))
                return
            rank = request.contact.rank
            self._members[rank] = request.contact
            if len(self._members) == self.size:
                self._complete.set()
                self._fixed = True
            await self._member(channel, request)
        except (ChannelError, asyncio.TimeoutError) as error:
            # A member that leaves, or does what it may not, is out of the run; the others go on.
            if not (rank is not None and isinstance(error, Gone)):
                self._turned_away(writer, _words(error))
        finally:
            if rank is not None:
                self._left(rank)
            writer.transport.abort() if rank is None else writer.close()

    async def _hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Channel, Join]:
        channel = await accept(reader, writer, self._key)
        try:
            request = await channel.receive(Join)
            if not has_addresses(request, None):
                raise Malformed("a member with what is no address")
            return channel, request
        except NotSealed:
            await channel.refuse_key()
            await asyncio.sleep(0.05)  # an abort would overtake it
            raise

    def _why_not(self, request: Join) -> str | None:
        rank = request.contact.rank
        if (purpose := "check" if request.prober is None else "probe") != self.purpose:
            return f"rank {rank} came for a {purpose}, rank 0 for a {self.purpose}"
        if request.size != self.size:
            return f"rank {rank} expects {request.size} members, rank 0 expects {self.size}"
        if rank >= self.size:
            return f"rank {rank} of {self.size} members"
        if rank in self._members:
            return f"rank {rank} is here already, as {self._members[rank].name}"
        if self._fixed:
            return f"rank {rank} came after the window of {self.deadlines.join:g} s"
        return None

    def _turned_away(self, writer: asyncio.StreamWriter, how: str) -> None:
        peer = writer.get_extra_info("peername")
        who = f"{peer[0] if peer else 'unknown'}: {how}"
        if who in self.strangers or len(self.strangers) < _MOST_STRANGERS:
            self.strangers[who] += 1


class CheckStore(Store[Verdict]):
    """The members of a check: each gets the roster, reports, and gets the verdict."""

    def __init__(
        self, key: bytes, size: int, judge: Judge, deadlines: Deadlines = DEADLINES,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        super().__init__(key, size, deadlines)
        self._judge, self._clock = judge, clock
        self._reports: dict[int, Report] = {}
        self._busy: set[int] = set()
        """Members that are here and have not reported."""
        self._reported = asyncio.Event()
        self._verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    async def _work(self) -> Verdict:
        self._look()
        await within(self._reported.wait(), self.deadlines.report)
        verdict = self._judge(self._members, self._reports)
        self._verdict.set_result(verdict)
        return verdict

    def _look(self) -> None:
        """Go on where there is nobody left to wait for."""
        if self._fixed and not self._busy:
            self._reported.set()

    def _left(self, rank: int) -> None:
        self._busy.discard(rank)
        self._look()

    async def _member(self, channel: Channel, request: Join) -> None:
        rank = request.contact.rank
        self._busy.add(rank)
        await self._complete.wait()
        await channel.send(Roster(contacts=tuple(self._members[one] for one in sorted(self._members))))
        for _ in range(_MOST_PINGS + 1):
            report = await asyncio.wait_for(channel.receive(Ping | Report), self.deadlines.report)  # type: ignore[arg-type]
            if isinstance(report, Report):
                if not has_addresses(None, report.facts):
                    raise Malformed("a report with what is no address")
                break
            await channel.send(Pong(now=self._clock()))
        else:
            raise Malformed("more questions for the clock than a member has")
        if self._reported.is_set():
            return
        self._reports[rank] = report
        self._left(rank)
        await channel.send(await asyncio.shield(self._verdict))


def _words(error: BaseException) -> str:
    if isinstance(error, NotSealed):
        return "not sealed with the key of this run"
    if isinstance(error, TooLong | Malformed):
        return str(error)
    return "came and said nothing" if isinstance(error, asyncio.TimeoutError) else "left without a word"


async def within(waited: Awaitable[object], seconds: float) -> None:
    """Wait, and no longer than that."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(waited, seconds)
