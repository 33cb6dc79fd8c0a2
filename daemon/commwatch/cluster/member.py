"""One member of a check, from the first look at its node to the verdict; no process, no file, no socket outlives it."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from commwatch.cluster.channel import Channel, ChannelError, Gone, NotSealed, OtherFormat, Stranger, join, small_packets
from commwatch.cluster.check_report import CheckReport, report_of_unreached, report_of_verdict
from commwatch.cluster.connections import (
    Listeners,
    bound,
    connect,
    listening_sockets,
    port_owner,
    port_range,
    try_all,
    within,
)
from commwatch.cluster.environment import BrokenRun, Place, partners
from commwatch.cluster.facts import addresses_of, read_facts
from commwatch.cluster.interfaces import leads_nowhere
from commwatch.cluster.messages import (
    Contact,
    Facts,
    Failure,
    Join,
    Outcome,
    Ping,
    Pong,
    Prober,
    Refused,
    Report,
    Roster,
    Verdict,
    word_of,
)
from commwatch.cluster.reachability import busy_port, firewall_line
from commwatch.cluster.store import DEADLINES, CheckStore, Deadlines, Store
from commwatch.cluster.verdict import judge
from commwatch.errors import ExitCode
from commwatch.jobs.settings.variables import known_variables

PORTS_TRIED = 4
"""The store takes the first free one of so many from the meeting port on."""
QUIET_SECONDS = 2.0
"""Progress is said of what takes longer."""

_FACTS_SECONDS = 15.0
_AGAIN_SECONDS = 0.3
_PINGS = 3
_GRACE_SECONDS = 15.0
_ROSTER_BYTES = 2**21
_VERDICT_BYTES = 2**24

Result = TypeVar("Result")


class Unreached(BrokenRun):
    """A member did not get to the store; what keeps it away is named."""

    exit_code = ExitCode.FOUND

    def __init__(self, failure: Failure) -> None:
        from commwatch.cluster.verdict import line_of

        super().__init__(line_of(failure))
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Run:
    """What a member is started with."""

    place: Place
    key: bytes
    variables: Mapping[str, str]
    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    interface: str = ""
    deadlines: Deadlines = DEADLINES


class Progress:
    """Says what a member waits for, once that takes longer than 2 s."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun = time.monotonic()

    @asynccontextmanager
    async def step(self, words: Callable[[], str]) -> AsyncIterator[None]:
        """A step; what it waits for is said after 2 s, then every 10 s."""
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


TakeCheck: TypeAlias = Callable[[CheckReport], None]
"""Told what a check says of this node."""


def _nobody(report: CheckReport) -> None:
    """Where nobody wants the report."""


async def check(run: Run, progress: Progress, take: TakeCheck = _nobody) -> Verdict:
    """Take part in a check, and host its store as member 0.

    Args:
        run: as the member was started.
        progress: says what is waited for.
        take: told what the check says of this node, where it says something.

    Raises:
        Unreached: the store was not reached.
        BrokenRun: the run cannot begin, or the store was lost.
    """
    begun = time.monotonic()
    if run.interface and run.interface not in {name for _, name in socket.if_nameindex()}:
        raise BrokenRun(f"cluster: no interface {run.interface!r} on {socket.gethostname()}")
    known = known_variables()
    async with progress.step(lambda: "reads versions, names and interfaces of this node"):
        facts = await within(
            lambda: read_facts(run.sysfs, run.procfs, run.variables, known, run.place.host, interface=run.interface),
            _FACTS_SECONDS,
        )
    if facts is None:
        raise BrokenRun(f"cluster: this node could not be read in {_FACTS_SECONDS:g} s")
    addresses = _reachable_addresses(facts)
    span = port_range(run.procfs)
    sockets, ports = listening_sockets(addresses, span)
    contact = Contact(
        rank=run.place.rank,
        name=contact_name(run, facts.own_name),
        token=secrets.token_hex(8),
        addresses=addresses,
        ports=ports,
        low=span[0],
        high=span[1],
    )
    listeners = Listeners(contact.token)
    try:
        await listeners.open(sockets)
        if run.place.rank:
            verdict = await _take_part(run, facts, contact, progress, [])
        else:
            verdict = await _host_check(run, facts, contact, progress)
        if verdict.outcome != "too_few":
            take(report_of_verdict(verdict, run.place.rank, time.time()))
        return msgspec.structs.replace(verdict, seconds=round(time.monotonic() - begun, 3))
    except Unreached as error:
        take(report_of_unreached(error.failure, run.place.rank, time.time()))
        raise
    finally:
        await listeners.close()
        for sock in sockets:
            sock.close()


def _reachable_addresses(facts: Facts) -> tuple[str, ...]:
    """NCCL's, and gloo's where that is another; only those from which other nodes can be reached at all."""
    suited = [one.address for one in (facts.nccl, facts.gloo) if not leads_nowhere(one)]
    return tuple(dict.fromkeys(suited))


# --- member 0 ---


async def _host_check(run: Run, facts: Facts, contact: Contact, progress: Progress) -> Verdict:
    """Take part like the others, and say what the store's judge says."""
    place = run.place
    store = CheckStore(
        run.key, place.size, lambda contacts, reports: judge(contacts, reports, place.size, place.names), run.deadlines
    )

    async def take_part(here: Run, taken: list[Outcome]) -> Verdict:
        return await _take_part(here, facts, contact, progress, taken, store.here)

    own = {one.address for one in facts.interfaces}
    verdict = await host(run, contact.name, own, facts.master_addresses, store, take_part)
    return msgspec.structs.replace(verdict, strangers=strangers_of(store))


async def host(
    run: Run,
    name: str,
    own: Collection[str],
    masters: Sequence[str],
    store: Store[Result],
    take_part: Callable[[Run, list[Outcome]], Awaitable[object]],
) -> Result:
    """Bind the store, take part like the others, and say what the store says.

    Args:
        run: as member 0 was started.
        name: of this node.
        own: its addresses.
        masters: those of the meeting place.
        store: of the run.
        take_part: what every member does, told of where the store is, and of the ports that it could not take.

    Raises:
        Unreached: no port is free.
        BrokenRun: member 0 cannot take part.
    """
    place = run.place
    _allow_sockets(place.size)
    # Where the meeting place is no address of an interface here, members may come by any: the key keeps strangers out.
    address = next((one for one in (place.host, *masters) if one in own), "0.0.0.0")  # noqa: S104
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
        raise Unreached(busy_port(name, place.port, taken[0].detail))
    here = replace(place, host="127.0.0.1" if address == "0.0.0.0" else address)  # noqa: S104
    serving = asyncio.ensure_future(store.serve(sock))
    taking = asyncio.ensure_future(take_part(replace(run, place=here), taken))
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


def strangers_of(store: Store[Result]) -> tuple[str, ...]:
    """Who was turned away, and how."""
    return tuple(f"{who}{f', {count} times' if count > 1 else ''}" for who, count in store.strangers.items())


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


async def _take_part(
    run: Run, facts: Facts, contact: Contact, progress: Progress, outcomes: list[Outcome],
    here: Callable[[], int] = lambda: 0,
) -> Verdict:  # fmt: skip
    deadlines, size = run.deadlines, run.place.size
    async with progress.step(lambda: waiting(run.place, here())):
        channel, tries = await joined(run, contact)
        try:
            answer = await answer_of(channel, Roster | Refused, deadlines.join + _GRACE_SECONDS, _ROSTER_BYTES)
        except BaseException:
            channel.close()
            raise
    try:
        if isinstance(answer, Refused):
            raise BrokenRun(f"cluster: {answer.reason}")
        assert isinstance(answer, Roster)  # noqa: S101 - by the type that was asked for
        contacts = {one.rank: one for one in answer.contacts if one.rank < size}
        clock, error = await _clock(channel)
        whom = [contacts[rank] for rank in partners(contact.rank, sorted(contacts))]
        async with progress.step(lambda: f"tries the ports of {len(whom)} members"):
            found = await try_all(whom, run.place.names, run.deadlines.step)
        report = Report(
            facts=facts, outcomes=(*outcomes, *tries, *found), clock_seconds=clock, clock_error_seconds=error
        )
        await channel.send(report)
        async with progress.step(lambda: "waits for what the others have found"):
            verdict = await answer_of(channel, Verdict, deadlines.report + _GRACE_SECONDS, _VERDICT_BYTES)
        assert isinstance(verdict, Verdict)  # noqa: S101 - by the type that was asked for
        return verdict
    except Gone as error_:
        raise BrokenRun("cluster: the store was lost: member 0 has ended; the run says nothing") from error_
    except ChannelError as error_:
        raise BrokenRun(f"cluster: the store: {error_}") from error_
    finally:
        channel.close()


def waiting(place: Place, here: int) -> str:
    """What a member waits for before the run begins."""
    if place.rank:
        return f"waits for member 0 at {place.host}:{_store_ports(place)[0]}, and for the others"
    return f"{here} of {place.size} members have come"


async def answer_of(channel: Channel, kind: object, seconds: float, most: int) -> object:
    """The store's next message.

    Raises:
        BrokenRun: there is none.
    """
    try:
        return await asyncio.wait_for(channel.receive(kind, most), seconds)  # type: ignore[arg-type]
    except asyncio.TimeoutError:
        raise BrokenRun(f"cluster: the store gave no answer in {seconds:g} s") from None
    except NotSealed:
        raise BrokenRun("cluster: the run key does not match that of member 0: give all members the same") from None
    except Gone:
        raise BrokenRun("cluster: the store was lost: member 0 has ended; the run says nothing") from None


async def _clock(channel: Channel) -> tuple[float, float]:
    """By how much the own clock is ahead of the store's, and the error of that: of several round trips the shortest."""
    best = (0.0, float("inf"))
    for _ in range(_PINGS):
        sent, begun = time.time(), time.monotonic()
        await channel.send(Ping())
        answer = await answer_of(channel, Pong, _GRACE_SECONDS, 1024)
        assert isinstance(answer, Pong)  # noqa: S101 - by the type that was asked for
        half = (time.monotonic() - begun) / 2
        best = min(best, (sent + half - answer.now, half), key=lambda one: one[1])
    return best


async def joined(run: Run, contact: Contact, prober: Prober | None = None) -> tuple[Channel, list[Outcome]]:
    """A sealed connection to the store, and what kept us from it on the way.

    Raises:
        Unreached: there is none by the end of the window.
    """
    place, ports = run.place, _store_ports(run.place)
    last: dict[int, Outcome] = {}
    end = time.monotonic() + run.deadlines.join
    while True:
        addresses = await within(lambda: addresses_of(place.host), 5.0) or ()
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
    """What kept a member from the store, by its tries of the first port; the others only where they say more."""
    place, port = run.place, _store_ports(run.place)[0]
    who, where, own = contact.name, f"{place.host}", (place.rank,)
    if not addresses:
        return Failure(cause="name", who=who, whom=where, direction="out", port=str(port),
                       detail=f"{place.host} does not resolve",
                       cure=f"echo 'ADDRESS {place.host}' >> /etc/hosts", ranks=own)  # fmt: skip
    if place.host in ("localhost", *addresses) and ipaddress.ip_address(addresses[0]).is_loopback:
        detail = f"the meeting place is {place.host}, and member 0 is not on this node"
        return Failure(cause="name", who=who, whom=where, direction="out", port=str(port), detail=detail,
                       cure="export MASTER_ADDR=ADDRESS before the launcher, one that others reach",
                       ranks=own)  # fmt: skip
    if all(ipaddress.ip_address(one).is_loopback for one in addresses):
        return Failure(cause="name", who=who, whom=where, direction="out", port=str(port),
                       detail=f"{place.host} resolves to {addresses[0]}: it takes itself for host",
                       cure=f"echo 'ADDRESS {place.host}' >> /etc/hosts, and no 127.x line with that name",
                       ranks=own)  # fmt: skip
    result = last[port].result if port in last else "filtered"
    if result == "stranger":
        failure = busy_port(where, port, "")
        return msgspec.structs.replace(failure, whom=who)
    reached = contact.addresses or ("ADDRESS",)
    cures = {
        "refused": f"is rank 0 there? ss -ltn 'sport = :{port}'; else {firewall_line(reached[:1], str(port), 'in')}",
        "filtered": firewall_line(reached[:1], str(port), "in"),
    }
    if result in cures:
        seen = {"refused": "nothing listens at the meeting place", "filtered": "no answer from the meeting place"}
        return Failure(cause="refused" if result == "refused" else "filtered", who=where, whom=who, port=str(port),
                       direction="in", detail=seen[result], cure=cures[result], ranks=(0,))  # fmt: skip
    return Failure(cause="no_route", who=who, whom=where, port=str(port), direction="out",
                   detail=f"no way leads to the meeting place ({addresses[0]})",
                   cure=f"ip route get {addresses[0]}; ip route add {addresses[0]} via GATEWAY", ranks=own)  # fmt: skip


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
