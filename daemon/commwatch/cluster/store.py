"""Where members meet: a socket that we bind ourselves, on which each sealed message has a deadline and a limit."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from commwatch.cluster.channel import Channel, ChannelError, Gone, Malformed, NotSealed, TooLong, accept
from commwatch.cluster.messages import Contact, Join, Ping, Pong, Refused, Report, Roster, Verdict, has_addresses

_HELLO_SECONDS = 5.0
_MOST_PINGS = 8
_MOST_STRANGERS = 16

Judge = Callable[[Mapping[int, Contact], Mapping[int, Report]], Verdict]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each step may take, in seconds."""

    join: float = 60.0
    report: float = 45.0
    """From the roster to the last report: names, connections and large packets."""
    step: float = 3.0
    """Of a connection: the kernel asks again after 1 s, and what has not answered the second time is filtered."""


DEADLINES = Deadlines()


@dataclass
class Store:
    """One run. Whoever does not come, stops answering or dies is left out; the others are answered by the deadlines."""

    key: bytes
    size: int
    judge: Judge
    deadlines: Deadlines = DEADLINES
    clock: Callable[[], float] = time.time
    strangers: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._members: dict[int, Contact] = {}
        self._reports: dict[int, Report] = {}
        self._busy: set[int] = set()
        """Members that are here and have not reported."""
        self._complete, self._reported = asyncio.Event(), asyncio.Event()
        self._fixed = False
        self._verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._connections: set[asyncio.Task[None]] = set()
        self._unknown = 0
        """Connections that have sent no sealed message yet."""

    def here(self) -> int:
        """How many have come."""
        return len(self._members)

    async def serve(self, sock: socket.socket) -> Verdict:
        """Serve one run on a listening socket, which is closed at the end."""
        server = await asyncio.start_server(self._connected, sock=sock, limit=2**16, backlog=self.size + 64)
        try:
            await _within(self._complete.wait(), self.deadlines.join)
            self._fixed = True
            self._complete.set()
            self._look()
            await _within(self._reported.wait(), self.deadlines.report)
            verdict = self.judge(self._members, self._reports)
            self._verdict.set_result(verdict)
            if here := [one for one in self._connections if not one.done()]:
                await asyncio.wait(here, timeout=2.0)
            return verdict
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _look(self) -> None:
        """Go on where there is nobody left to wait for."""
        if len(self._members) == self.size:
            self._complete.set()
            self._fixed = True
        if self._fixed and not self._busy:
            self._reported.set()

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
            await self._member(channel, request.contact)
        except (ChannelError, asyncio.TimeoutError) as error:
            # A member that leaves, or does what it may not, is out of the run; the others go on.
            if not (rank is not None and isinstance(error, Gone)):
                self._turned_away(writer, _words(error))
        finally:
            if rank is not None:
                self._busy.discard(rank)
                self._look()
            writer.transport.abort() if rank is None else writer.close()

    async def _hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Channel, Join]:
        channel = await accept(reader, writer, self.key)
        try:
            request = await channel.receive(Join)
            if not has_addresses(request.contact, None):
                raise Malformed("a member with what is no address")
            return channel, request
        except NotSealed:
            await channel.refuse_key()
            await asyncio.sleep(0.05)  # an abort would overtake it
            raise

    def _why_not(self, request: Join) -> str | None:
        rank = request.contact.rank
        if request.size != self.size:
            return f"rank {rank} expects {request.size} members, rank 0 expects {self.size}"
        if rank >= self.size:
            return f"rank {rank} of {self.size} members"
        if rank in self._members:
            return f"rank {rank} is here already, as {self._members[rank].name}"
        if self._fixed:
            return f"rank {rank} came after the window of {self.deadlines.join:g} s"
        return None

    async def _member(self, channel: Channel, contact: Contact) -> None:
        self._members[contact.rank] = contact
        self._busy.add(contact.rank)
        self._look()
        await self._complete.wait()
        await channel.send(Roster(contacts=tuple(self._members[rank] for rank in sorted(self._members))))
        for _ in range(_MOST_PINGS + 1):
            request = await asyncio.wait_for(channel.receive(Ping | Report), self.deadlines.report)  # type: ignore[arg-type]
            if isinstance(request, Report):
                if not has_addresses(None, request.facts):
                    raise Malformed("a report with what is no address")
                break
            await channel.send(Pong(now=self.clock()))
        else:
            raise Malformed("more questions for the clock than a member has")
        if self._reported.is_set():
            return
        self._reports[contact.rank] = request
        self._busy.discard(contact.rank)
        self._look()
        await channel.send(await asyncio.shield(self._verdict))

    def _turned_away(self, writer: asyncio.StreamWriter, how: str) -> None:
        peer = writer.get_extra_info("peername")
        who = f"{peer[0] if peer else 'unknown'}: {how}"
        if who in self.strangers or len(self.strangers) < _MOST_STRANGERS:
            self.strangers[who] += 1


def _words(error: BaseException) -> str:
    if isinstance(error, NotSealed):
        return "not sealed with the key of this run"
    if isinstance(error, TooLong | Malformed):
        return str(error)
    return "came and said nothing" if isinstance(error, asyncio.TimeoutError) else "left without a word"


async def _within(waited: object, seconds: float) -> None:
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(waited, seconds)  # type: ignore[arg-type]
