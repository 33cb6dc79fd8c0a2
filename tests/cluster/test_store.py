"""The store among members, strangers and hostile members: each gets a clear outcome, and the others go on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from commwatch.cluster import channel as wire
from commwatch.cluster.channel import MOST_BYTES, Channel, ChannelError, Gone, NotSealed, join
from commwatch.cluster.check import serve_check
from commwatch.cluster.connections import bound
from commwatch.cluster.messages import (
    Choice,
    Contact,
    Facts,
    Join,
    Outcome,
    Ping,
    Pong,
    Refused,
    Report,
    Roster,
    Verdict,
)
from commwatch.cluster.store import Deadlines, Store
from commwatch.cluster.verdict import judge
from support.passes import in_one_pass

KEY = b"the key of this run"
NO_FACTS = Facts(versions={}, settings={}, parts={}, interfaces=(), nccl=Choice(), gloo=Choice(), own_name="n",
                 own_addresses=("10.0.0.1",))  # fmt: skip


def contact(rank: int, name: str = "") -> Contact:
    return Contact(rank=rank, name=name or f"node{rank}", token="0" * 16, addresses=(), ports=(), low=1, high=2)


class Stage:
    """A store on the loopback, and connections to it."""

    def __init__(self, size: int, deadlines: Deadlines) -> None:
        self.judged: list[list[int]] = []
        self.channels: list[Channel] = []

        def judging(contacts: object, reports: object) -> Verdict:
            self.judged.append(sorted(reports))  # type: ignore[call-overload]
            return judge(contacts, reports, size)  # type: ignore[arg-type]

        self.store = Store(KEY, size, "check", deadlines)
        self.socket = bound("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.served = asyncio.ensure_future(self.store.serve(self.socket, partial(serve_check, judge=judging)))

    async def opened(self, key: bytes = KEY) -> Channel:
        """A connection that is ready for messages."""
        own = await join(*await asyncio.open_connection("127.0.0.1", self.port), key)
        self.channels.append(own)
        return own

    async def member(self, rank: int, size: int) -> Verdict:
        """A member that does what it should."""
        own = await self.opened()
        await own.send(Join(contact=contact(rank), size=size))
        await own.receive(Roster, most=2**20)
        await own.send(Ping())
        await own.receive(Pong)
        await own.send(Report(facts=NO_FACTS, outcomes=()))
        verdict = await own.receive(Verdict, most=2**20)
        own.close()
        return verdict


def play(scene: Callable[[Stage], Awaitable[None]], size: int = 2, join: float = 30.0, report: float = 30.0) -> Stage:
    """Run a scene; whatever it does, the store ends and leaves no task behind."""

    async def whole() -> Stage:
        stage = Stage(size, Deadlines(join=join, report=report))
        await scene(stage)
        await asyncio.wait_for(stage.served, 60)
        for own in stage.channels:
            own.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return stage

    stage = asyncio.run(whole())
    assert stage.socket.fileno() == -1
    return stage


async def both(stage: Stage) -> None:
    await asyncio.gather(stage.member(0, 2), stage.member(1, 2))


def raw(content: bytes) -> Callable[[Stage], Awaitable[None]]:
    """A stranger that sends bytes, and reads to the end."""

    async def scene(stage: Stage) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(content)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    return scene


async def other_key(stage: Stage) -> None:
    own = await stage.opened(b"another run's key")
    await own.send(Join(contact=contact(1, "evil"), size=2))
    with pytest.raises(NotSealed, match="another run key"):
        await own.receive(Roster)


async def replayed(stage: Stage) -> None:
    """What a member sent is recorded, and sent again in a connection of one's own."""
    recorded = bytearray()
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    own = await join(reader, writer, KEY)
    text = msgspec.json.encode(Join(contact=contact(1), size=2))
    mac = own._mac(b"m", 0, text)
    recorded += (len(mac) + len(text)).to_bytes(4, "big") + mac + text
    writer.transport.abort()
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(b"n" * 32 + recorded)
    assert (await reader.read())[-4:] == bytes(4)
    writer.close()


def member_that_says(message: msgspec.Struct) -> Callable[[Stage], Awaitable[None]]:
    """One with the key of the run, whose connection ends for what it says."""

    async def scene(stage: Stage) -> None:
        own = await stage.opened()
        await own.send(message)
        with pytest.raises(ChannelError):
            await own.receive(Roster)

    return scene


def of_name(name: str) -> Join:
    return Join(contact=contact(0, name), size=2)


NO_ADDRESS = Join(contact=msgspec.structs.replace(contact(0), addresses=("node0",)), size=2)


@in_one_pass(
    "scene, how",
    [
        (raw(b"GET / HTTP/1.1\r\nHost: node0\r\n\r\n" + b" " * 64), "a message of"),
        (raw(b"n" * 32 + b"\x00\x00\x00\x04abcd"), "not sealed with the key of this run"),
        (raw(b"n" * 32 + b"\xff\xff\xff\xff"), "a message of 4294967295 bytes"),
        (other_key, "not sealed with the key of this run"),
        (replayed, "not sealed with the key of this run"),
        (member_that_says(of_name("x" * (MOST_BYTES + 1))), "a message of"),
        (member_that_says(Outcome(whom=1, result="open")), "a message that is no"),
        (member_that_says(of_name("x" * 1000)), "a message that is no"),
        # What stands in a cure is copied into a shell.
        (member_that_says(of_name("x'; reboot; '")), "a message that is no"),
        (member_that_says(NO_ADDRESS), "a member with what is no address"),
    ],
)
def test_who_is_not_of_the_run_is_turned_away_and_the_run_goes_on(
    scene: Callable[[Stage], Awaitable[None]], how: str
) -> None:
    """The verdict says who came and why not; both members are checked."""

    async def whole(stage: Stage) -> None:
        await scene(stage)
        await both(stage)

    stage = play(whole)

    assert stage.judged == [[0, 1]]
    assert any(one.startswith(f"127.0.0.1: {how}") for one in stage.store.strangers)


def test_a_message_does_not_count_twice_in_its_own_connection() -> None:
    """Its number is in the seal."""

    async def whole(stage: Stage) -> None:
        own = await stage.opened()
        await own.send(Join(contact=contact(0), size=2))
        own._sent = 0
        await own.send(Join(contact=contact(0), size=2))
        other = await stage.opened()
        await other.send(Join(contact=contact(1), size=2))
        await own.receive(Roster)
        with pytest.raises(ChannelError):
            await own.receive(Pong)
        other.close()

    assert play(whole).judged == [[]]


@in_one_pass(
    "asked, reason",
    [
        (Join(contact=contact(0), size=2), "rank 0 is here already, as node0"),
        (Join(contact=contact(2), size=2), "rank 2 of 2 members"),
        (Join(contact=contact(1), size=3), "rank 1 expects 3 members, rank 0 expects 2"),
    ],
)
def test_a_member_that_cannot_be_is_refused_with_the_reason(asked: Join, reason: str) -> None:
    """One with the key that claims another's rank gets nowhere."""

    async def whole(stage: Stage) -> None:
        first = asyncio.ensure_future(stage.member(0, 2))
        while not stage.store.members:
            await asyncio.sleep(0)
        own = await stage.opened()
        await own.send(asked)
        assert (await own.receive(Refused)).reason == reason
        await asyncio.gather(first, stage.member(1, 2))

    assert play(whole).judged == [[0, 1]]


async def leaves(own: Channel) -> None:
    own.close()


async def hangs(own: Channel) -> None:
    await own.receive(Roster, most=2**20)


async def asks_for_ever(own: Channel) -> None:
    await own.receive(Roster, most=2**20)
    for _ in range(100):
        await own.send(Ping())


async def lies(own: Channel) -> None:
    await own.receive(Roster, most=2**20)
    facts = msgspec.structs.replace(NO_FACTS, own_addresses=("nowhere",))
    await own.send(Report(facts=facts, outcomes=()))


@in_one_pass("does", [(lies,), (leaves,), (hangs,), (asks_for_ever,)])
def test_a_member_that_leaves_or_hangs_is_lost_and_the_others_are_judged(
    does: tuple[Callable[[Channel], Awaitable[None]]],
) -> None:
    """By the deadline of the reports at the latest."""
    verdicts: list[Verdict] = []

    async def whole(stage: Stage) -> None:
        own = await stage.opened()
        await own.send(Join(contact=contact(2), size=3))
        others = asyncio.gather(stage.member(0, 3), stage.member(1, 3))
        with suppress(Gone):
            await does[0](own)
        verdicts.extend(await others)
        own.close()

    stage = play(whole, size=3, report=0.3)

    assert stage.judged == [[0, 1]]
    assert {tuple(member.state for member in one.members) for one in verdicts} == {("checked", "checked", "lost")}


def test_nobody_comes() -> None:
    """The store ends by itself."""

    async def whole(stage: Stage) -> None:
        pass

    assert play(whole, join=0.05).judged == [[]]


def test_many_silent_connections_keep_no_member_away() -> None:
    """They are limited, and end with the run."""

    async def whole(stage: Stage) -> None:
        silent = [socket.create_connection(("127.0.0.1", stage.port)) for _ in range(50)]
        await both(stage)
        for one in silent:
            one.close()

    assert play(whole).judged == [[0, 1]]


def test_nothing_from_the_network_is_unpickled_or_evaluated() -> None:
    """The room imports nothing that could."""
    for module in Path(wire.__file__).parent.glob("*.py"):
        text = module.read_text(encoding="utf-8")
        assert not any(word in text for word in ("import pickle", "import marshal", "import torch", "eval(", "exec("))
    assert wire.MOST_BYTES == 64 * 1024
