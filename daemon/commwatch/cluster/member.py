"""One member of a run, from its start to the result of the store. No process, file or socket outlives it.

The two tasks of a run, check and probe, are in ``check`` and ``probing``.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from commwatch.cluster.channel import Channel, ChannelError, Gone, NotSealed, OtherFormat, Stranger, join, small_packets
from commwatch.cluster.connections import bound, connect, in_thread, port_owner
from commwatch.cluster.environment import BrokenRun, Place
from commwatch.cluster.facts import addresses_of
from commwatch.cluster.messages import Cause, Contact, Failure, Join, Outcome, Prober, Refused, word_of
from commwatch.cluster.store import DEADLINES, Deadlines, Store
from commwatch.cluster.verdict import busy_port, firewall_line
from commwatch.errors import ExitCode

PORTS_TRIED = 4
"""The store takes the first free port among this number of ports, from the meeting port on."""
QUIET_SECONDS = 2.0
"""A step that takes longer prints its progress; seconds."""

GRACE_SECONDS = 15.0
"""For the store's answer beyond the deadline of what it waits for."""
ADDRESSES_SECONDS = 5.0
"""For the addresses of the meeting place."""
_READ_SECONDS = 15.0
_AGAIN_SECONDS = 0.3

Result = TypeVar("Result")
Answer = TypeVar("Answer")
Message = TypeVar("Message", bound=msgspec.Struct)


class Unreached(BrokenRun):
    """A member did not get to the store; what keeps it away is named."""

    exit_code = ExitCode.FOUND

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.line)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Run:
    place: Place
    key: bytes
    variables: Mapping[str, str]
    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    interface: str = ""
    deadlines: Deadlines = DEADLINES


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """The address of the store, as a member uses it."""

    run: Run
    taken: Sequence[Outcome] = ()
    """Ports that member 0 could not bind."""
    store: Store | None = None
    """The store, if this member hosts it."""

    def waiting(self) -> str:
        """The reason for waiting before the run begins, in words."""
        place = self.run.place
        if self.store is None:
            return f"waits for member 0 at {place.host}:{_store_ports(place)[0]}, and for the others"
        return f"{len(self.store.members)} of {place.size} members have come"


class Progress:
    """Says what a member waits for, once that takes longer than 2 s."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun = time.monotonic()

    @asynccontextmanager
    async def step(self, words: Callable[[], str]) -> AsyncIterator[None]:
        """A step; prints what it waits for after 2 s, then every 10 s."""
        task = asyncio.ensure_future(self._remind(words))
        try:
            yield
        finally:
            task.cancel()

    async def _remind(self, words: Callable[[], str]) -> None:
        pause = QUIET_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = 5 * QUIET_SECONDS
            self._say(f"commwatch cluster: {time.monotonic() - self._begun:.0f} s: {words()}")


async def read_node(run: Run, progress: Progress, words: str, read: Callable[[], Result]) -> Result:
    """Read the facts about the local node that a member needs before it joins.

    Args:
        words: names what is read, for the progress line.
        read: may block, as a name server or the firmware of an adapter may.

    Raises:
        BrokenRun: the interface that was asked for is not there, or the node cannot be read in time.
    """
    if run.interface and run.interface not in {name for _, name in socket.if_nameindex()}:
        raise BrokenRun(f"cluster: no interface {run.interface!r} on {socket.gethostname()}")
    async with progress.step(lambda: words):
        found = await in_thread(read, _READ_SECONDS)
    if found is None:
        raise BrokenRun(f"cluster: this node could not be read in {_READ_SECONDS:g} s")
    return found


# --- member 0 ---


class NodeAddresses(NamedTuple):
    name: str
    addresses: Collection[str]
    masters: Sequence[str]
    """Addresses of the meeting place."""


async def run_member(
    run: Run,
    node: NodeAddresses,
    store: Store,
    work: Callable[[Store], Awaitable[Result]],
    take_part: Callable[[MeetingPlace], Awaitable[Answer]],
) -> Result | Answer:
    """Take part in a run. Member 0 also hosts the store, and returns the result of the store.

    Args:
        store: of the run; member 0 binds it.

    Raises:
        Unreached: no port is free, or the store was not reached.
        BrokenRun: the member cannot take part.
    """
    place = run.place
    if place.rank:
        return await take_part(MeetingPlace(run))
    _allow_sockets(place.size)
    # Where the meeting place is no address of an interface here, members may come by any: the key keeps strangers out.
    address = next((one for one in (place.host, *node.masters) if one in node.addresses), "0.0.0.0")  # noqa: S104 - members reach it by any
    taken: list[Outcome] = []
    sock: socket.socket | None = None
    for port in _store_ports(place):
        try:
            sock = bound(address, port)
            small_packets(sock)  # inherited by its connections
            break
        except OSError as error:
            owner = port_owner(run.procfs, port) or (error.strerror or "")
            taken.append(Outcome(whom=0, result="busy_port", kind="rendezvous", port=port, detail=owner[:256]))
    if sock is None:
        raise Unreached(busy_port(node.name, place.port, taken[0].detail))
    host = "127.0.0.1" if address == "0.0.0.0" else address  # noqa: S104 - compared alone
    meeting = MeetingPlace(replace(run, place=replace(place, host=host)), taken, store)
    serving = asyncio.ensure_future(store.serve(sock, work))
    taking = asyncio.ensure_future(take_part(meeting))
    try:
        await asyncio.wait((serving, taking), return_when=asyncio.FIRST_EXCEPTION)
        if taking.done() and (failed := taking.exception()) is not None:
            raise failed
        return await serving
    finally:
        for task in (serving, taking):
            task.cancel()
        await asyncio.gather(serving, taking, return_exceptions=True)
        sock.close()


def _allow_sockets(size: int) -> None:
    """Let this process have a connection to each member; the usual limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = size + 1024
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _store_ports(place: Place) -> range:
    first = place.port + place.taken
    return range(first, first + PORTS_TRIED)


# --- every member ---


@asynccontextmanager
async def joined(
    meeting: MeetingPlace, contact: Contact, progress: Progress, prober: Prober | None = None
) -> AsyncIterator[tuple[Channel, list[Outcome]]]:
    """A sealed connection to the store, and the failed tries before it.

    Raises:
        Unreached: there is none by the end of the window.
        BrokenRun: the store was lost, or breaks the protocol.
    """
    async with progress.step(meeting.waiting):
        channel, tries = await _joined(meeting.run, contact, prober)
    try:
        yield channel, tries
    except NotSealed:
        raise BrokenRun("cluster: the run key does not match that of member 0: give all members the same") from None
    except Gone:
        raise BrokenRun("cluster: the store was lost: member 0 has ended; the run says nothing") from None
    except ChannelError as error:
        raise BrokenRun(f"cluster: the store: {error}") from error
    finally:
        channel.close()


async def answer_of(channel: Channel, *kinds: type[Message], seconds: float, most: int) -> Message:
    """The store's next message.

    Args:
        kinds: which message it may be.
        most: bytes of it.

    Raises:
        BrokenRun: there is none, or the store refuses the member.
        ChannelError: the store is lost, or breaks the protocol.
    """
    try:
        answer: msgspec.Struct = await asyncio.wait_for(channel.receive(*kinds, Refused, most=most), seconds)
    except asyncio.TimeoutError:
        raise BrokenRun(f"cluster: the store gave no answer in {seconds:g} s") from None
    if isinstance(answer, kinds):
        return answer
    assert isinstance(answer, Refused)  # noqa: S101 - by the types that were asked for
    raise BrokenRun(f"cluster: {answer.reason}")


async def _joined(run: Run, contact: Contact, prober: Prober | None) -> tuple[Channel, list[Outcome]]:
    place, ports = run.place, _store_ports(run.place)
    last: dict[int, Outcome] = {}
    end = time.monotonic() + run.deadlines.join
    while True:
        addresses = await in_thread(lambda: addresses_of(place.host), ADDRESSES_SECONDS) or ()
        for port in ports:
            for address in addresses:
                if time.monotonic() > end and last:
                    raise Unreached(_why_not(run, contact, addresses, last))
                channel = await _try_join(run, address, port, last)
                if channel is not None:
                    await channel.send(Join(contact=contact, size=place.size, prober=prober))
                    # Ports before the one where the store is: it did not take them, or we did not get there.
                    return channel, [one for at, one in last.items() if at < port]
        if time.monotonic() > end:
            raise Unreached(_why_not(run, contact, addresses, last))
        await asyncio.sleep(_AGAIN_SECONDS)


async def _try_join(run: Run, address: str, port: int, last: dict[int, Outcome]) -> Channel | None:
    opened = await connect(address, port, run.deadlines.step)
    if isinstance(opened, str):
        last[port] = Outcome(whom=0, result=opened, kind="rendezvous", address=address, port=port)
        return None
    reader, writer = opened
    small_packets(writer.get_extra_info("socket"))
    try:
        return await asyncio.wait_for(join(reader, writer, run.key), run.deadlines.step)
    except (Stranger, Gone, asyncio.TimeoutError):
        writer.transport.abort()
        last[port] = Outcome(whom=0, result="stranger", kind="rendezvous", address=address, port=port)
        return None
    except OtherFormat:
        writer.transport.abort()
        raise Unreached(Failure(
            cause="version", who=contact_name(run), whom=run.place.host, port=str(port), direction="out",
            detail="member 0 runs a commwatch with another format of messages",
            cure="pip install commwatch==VERSION, the same on all nodes", ranks=(run.place.rank,),
        )) from None  # fmt: skip
    except BaseException:
        writer.transport.abort()
        raise


def contact_name(run: Run, own: str = "") -> str:
    """How the member is called: by its launcher, else as its node calls itself."""
    place = run.place
    return place.names[place.rank] if place.rank < len(place.names) else own or word_of(socket.gethostname())


def _why_not(run: Run, contact: Contact, addresses: tuple[str, ...], last: Mapping[int, Outcome]) -> Failure:
    """The reason why a member did not reach the store, by its tries of the first port; other ports only if they show
    more."""
    host, port = run.place.host, _store_ports(run.place)[0]

    def own(cause: Cause, detail: str, cure: str) -> Failure:
        """A failure that is cured on the node of this member."""
        return Failure(cause=cause, who=contact.name, whom=host, port=str(port), direction="out", detail=detail,
                       cure=cure, ranks=(run.place.rank,))  # fmt: skip

    def of_host(cause: Cause, detail: str, cure: str) -> Failure:
        """A failure that is cured on the node of member 0."""
        return Failure(cause=cause, who=host, whom=contact.name, port=str(port), direction="in", detail=detail,
                       cure=cure, ranks=(0,))  # fmt: skip

    if not addresses:
        return own("name", f"{host} does not resolve", f"echo 'ADDRESS {host}' >> /etc/hosts")
    loopback = [ipaddress.ip_address(one).is_loopback for one in addresses]
    if host in ("localhost", *addresses) and loopback[0]:
        return own("name", f"the meeting place is {host}, and member 0 is not on this node",
                   "export MASTER_ADDR=ADDRESS before the launcher, one that others reach")  # fmt: skip
    if all(loopback):
        return own("name", f"{host} resolves to {addresses[0]}: it takes itself for host",
                   f"echo 'ADDRESS {host}' >> /etc/hosts, and no 127.x line with that name")  # fmt: skip
    result = last[port].result if port in last else "filtered"
    opened = firewall_line((contact.addresses or ("ADDRESS",))[:1], str(port), "in")
    if result == "stranger":
        return msgspec.structs.replace(busy_port(host, port, ""), whom=contact.name)
    if result == "refused":
        return of_host("refused", "nothing listens at the meeting place",
                       f"is rank 0 there? ss -ltn 'sport = :{port}'; else {opened}")  # fmt: skip
    if result == "filtered":
        return of_host("filtered", "no answer from the meeting place", opened)
    return own("no_route", f"no way leads to the meeting place ({addresses[0]})",
               f"ip route get {addresses[0]}; ip route add {addresses[0]} via GATEWAY")  # fmt: skip


async def until_term(work: asyncio.Future[Result]) -> Result:
    """Wait for a run; TERM and INT end it at once.

    Raises:
        BrokenRun: it was ended.
    """
    import signal

    loop, ended = asyncio.get_running_loop(), []

    def end(number: signal.Signals) -> None:
        ended.append(number)
        work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not ended:
            raise
        raise BrokenRun(f"cluster: ended by {ended[0].name}") from None
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError):
                loop.remove_signal_handler(number)
