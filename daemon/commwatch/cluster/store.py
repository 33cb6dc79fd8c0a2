"""Where members meet: a socket that we bind ourselves, on which each sealed message has a deadline and a limit.

The store gathers the members. Its task, a check or a probe, then sends requests to each of them, and the result last.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from commwatch import __version__
from commwatch.cluster.channel import Channel, ChannelError, Gone, NotSealed, accept
from commwatch.cluster.messages import Contact, Join, Prober, Refused, has_addresses

_HELLO_SECONDS = 5.0
_LAST_WORD_SECONDS = 2.0
_MOST_STRANGERS = 16
_LEFT = "left before the end"

Purpose: TypeAlias = Literal["check", "probe"]
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


class Attendee(NamedTuple):
    contact: Contact
    prober: Prober | None
    """None: it joined for a check."""
    channel: Channel
    address: str


class Store:
    """One run. A member that is missing, hangs or dies is left out; the others continue after the deadlines."""

    def __init__(self, key: bytes, size: int, purpose: Purpose, deadlines: Deadlines = DEADLINES) -> None:
        """Nothing listens yet.

        Args:
            size: members that are expected.
        """
        self.size, self.purpose, self.deadlines = size, purpose, deadlines
        self.members: dict[int, Attendee] = {}
        """The members that have joined, by rank."""
        self.lost: dict[int, str] = {}
        """Members that left, did not answer in time or broke the protocol, with the reason."""
        self._key = key
        self._strangers: Counter[str] = Counter()
        self._complete = asyncio.Event()
        self._is_over = False
        """No further member is admitted."""
        self._arrivals: set[asyncio.Task[None]] = set()
        """Connections that have sent no sealed message yet."""

    @property
    def strangers(self) -> tuple[str, ...]:
        """Connections that were refused, with the reason."""
        return tuple(f"{who}{f', {count} times' if count > 1 else ''}" for who, count in self._strangers.items())

    async def serve(self, sock: socket.socket, work: Callable[[Store], Awaitable[Result]]) -> Result:
        """Gather the members of one run, then run its task.

        Args:
            sock: listens, and is closed at the end.
            work: the task. It exchanges messages with the members, and sends each the result.
        """
        server = await asyncio.start_server(self._connected, sock=sock, limit=2**16, backlog=self.size + 64)
        try:
            await within(self._complete.wait(), self.deadlines.join)
            self._is_over = True
            result = await work(self)
            await within(asyncio.gather(*(one.channel.closed() for one in self.members.values())), _LAST_WORD_SECONDS)
            return result
        finally:
            server.close()
            for task in self._arrivals:
                task.cancel()
            await asyncio.gather(*self._arrivals, return_exceptions=True)
            for one in self.members.values():
                one.channel.abort()

    async def request(self, rank: int, answer: Awaitable[Result], seconds: float) -> Result | None:
        """The answer of a member; None if the member is lost because it left, was late or broke the protocol.

        Args:
            answer: the exchange of messages with it.
            seconds: for all of it.
        """
        try:
            return await asyncio.wait_for(answer, seconds)
        except asyncio.TimeoutError:
            self.lost.setdefault(rank, f"gave no answer within {seconds:.0f} s")
        except ChannelError as error:
            self.lost.setdefault(rank, _LEFT)
            if not isinstance(error, Gone):
                self._turn_away(self.members[rank].address, str(error))
            self.members[rank].channel.close()
        return None

    async def send(self, messages: Mapping[int, msgspec.Struct]) -> None:
        """Send messages, by rank, that need no answer. A member that does not receive its message is lost."""
        await asyncio.gather(*(
            self.request(rank, self.members[rank].channel.send(message), _LAST_WORD_SECONDS)
            for rank, message in messages.items()
        ))  # fmt: skip

    def is_connected(self, rank: int) -> bool:
        """Whether a member that has joined still takes part."""
        if self.members[rank].channel.is_gone:
            self.lost.setdefault(rank, _LEFT)
        return rank not in self.lost

    # --- joining ---

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._arrivals) > self.size + 64:
            writer.transport.abort()
            self._turn_away(_address(writer), "one of too many connections")
            return
        task = asyncio.ensure_future(self._arrive(reader, writer))
        self._arrivals.add(task)
        task.add_done_callback(self._arrivals.discard)

    async def _arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, is_member = _address(writer), False
        try:
            is_member = await asyncio.wait_for(self._admit(reader, writer, address), _HELLO_SECONDS)
        except (ChannelError, asyncio.TimeoutError) as error:
            self._turn_away(address, str(error) or "came and said nothing")
        finally:
            if not is_member:
                writer.transport.abort()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> bool:
        """Admit a connection as a member, or refuse it with the reason; whether it is admitted."""
        channel = await accept(reader, writer, self._key)
        try:
            request = await channel.receive(Join)
        except NotSealed:
            await channel.refuse_key()
            raise
        if not has_addresses(request, None):
            raise ChannelError("a member with what is no address")
        if (reason := self._why_not(request)) is not None:
            self._turn_away(address, reason)
            await channel.send(Refused(reason=reason))
            await channel.closed()
            return False
        self.members[request.contact.rank] = Attendee(request.contact, request.prober, channel, address)
        if len(self.members) == self.size:
            self._is_over = True
            self._complete.set()
        return True

    def _why_not(self, request: Join) -> str | None:
        rank, prober = request.contact.rank, request.prober
        if (purpose := "check" if prober is None else "probe") != self.purpose:
            return f"rank {rank} came for a {purpose}, rank 0 for a {self.purpose}"
        if prober is not None and prober.version != __version__:
            return f"rank {rank} runs commwatch {prober.version}, rank 0 {__version__}"
        if request.size != self.size:
            return f"rank {rank} expects {request.size} members, rank 0 expects {self.size}"
        if rank >= self.size:
            return f"rank {rank} of {self.size} members"
        if rank in self.members:
            return f"rank {rank} is here already, as {self.members[rank].contact.name}"
        if self._is_over:
            return f"rank {rank} came after the window of {self.deadlines.join:g} s"
        return None

    def _turn_away(self, address: str, how: str) -> None:
        who = f"{address}: {how}"
        if who in self._strangers or len(self._strangers) < _MOST_STRANGERS:
            self._strangers[who] += 1


def _address(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else "unknown"


async def within(waited: Awaitable[object], seconds: float) -> None:
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(waited, seconds)
