"""The control socket: questions, answers, and what goes wrong between a command and its daemon."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import struct
from asyncio.trsock import TransportSocket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import Config, Paths, Simulation
from commwatch.errors import CommwatchError
from commwatch.state.control import (
    SOCKET_NAME,
    ControlServer,
    DaemonAbsent,
    Handler,
    Peer,
    ask_daemon,
    of_the_only_daemon,
)
from support.core import in_loop


async def greet() -> dict[str, Any]:
    return {"hello": [1, None, "ä"]}


async def refuse() -> dict[str, Any]:
    raise CommwatchError("no, because")


OPERATIONS: Mapping[str, Handler] = {"greet": greet, "refuse": refuse}


@asynccontextmanager
async def serving(state: Path, operations: Mapping[str, Handler] = OPERATIONS) -> AsyncIterator[ControlServer]:
    server = ControlServer(state, operations)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(state: Path, operation: str, timeout: float = 5.0) -> dict[str, Any]:
    return await asyncio.to_thread(ask_daemon, state, operation, timeout)


async def say(state: Path, line: bytes) -> bytes:
    """Write raw bytes to the socket and read to the end."""
    reader, writer = await asyncio.open_unix_connection(state / SOCKET_NAME)
    writer.write(line)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_an_answer_may_be_large(tmp_path: Path) -> None:
    """A snapshot of a large node is half a megabyte, and is a record of its own kind."""

    class Large(msgspec.Struct):
        series: list[str]

    async def large() -> Large:
        return Large(["commwatch_nvlink_link_state"] * 100_000)

    async def body() -> None:
        async with serving(tmp_path, {"large": large}):
            assert len((await ask(tmp_path, "large"))["series"]) == 100_000

    in_loop(body)


def test_a_question_has_its_answer(tmp_path: Path) -> None:
    """One JSON line in, one out, and the next question too."""

    async def body() -> None:
        async with serving(tmp_path):
            assert await ask(tmp_path, "greet") == {"hello": [1, None, "ä"]}
            assert await ask(tmp_path, "greet") == {"hello": [1, None, "ä"]}

    in_loop(body)


def test_an_unknown_operation_is_told_the_known_ones(tmp_path: Path) -> None:
    """A newer command with an older daemon says what is wrong."""

    async def body() -> None:
        async with serving(tmp_path):
            with pytest.raises(CommwatchError, match="the daemon says: unknown operation dance; known: greet, refuse"):
                await ask(tmp_path, "dance")

    in_loop(body)


def test_an_operation_that_fails_says_why(tmp_path: Path) -> None:
    """An error of the daemon is an error of the command, in its words."""

    async def body() -> None:
        async with serving(tmp_path):
            with pytest.raises(CommwatchError, match="the daemon says: no, because"):
                await ask(tmp_path, "refuse")

    in_loop(body)


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", b"\n", b"17\n", b'{"greet": 1}\n', b"\xff\xfe\n"])
def test_a_line_that_makes_no_sense_is_answered_and_does_no_harm(tmp_path: Path, line: bytes) -> None:
    """Whoever speaks another language is told so, and the next question is answered."""

    async def body() -> None:
        async with serving(tmp_path):
            assert "expected the name of an operation" in json.loads(await say(tmp_path, line))["error"]
            assert await ask(tmp_path, "greet")

    in_loop(body)


def test_a_line_without_end_is_given_up(tmp_path: Path) -> None:
    """A line longer than 64 KiB costs a bounded amount of memory, and the answer says so."""

    async def body() -> None:
        async with serving(tmp_path):
            reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
            writer.write(b"x" * 2**18)
            assert "at most 65536 bytes" in json.loads(await reader.readline())["error"]
            writer.transport.abort()
            assert await ask(tmp_path, "greet")

    with capture_logs() as events:
        in_loop(body)
    assert [event["event"] for event in events] == ["a control request was not answered"]


def test_a_deep_state_directory_is_no_obstacle(tmp_path: Path) -> None:
    """The path may be longer than the 108 bytes that a socket address holds."""
    state = tmp_path / ("d" * 100) / ("e" * 100)
    state.mkdir(parents=True)

    async def body() -> None:
        async with serving(state):
            assert (state / SOCKET_NAME).is_socket()
            assert await ask(state, "greet") == {"hello": [1, None, "ä"]}
        assert not (state / SOCKET_NAME).exists()

    in_loop(body)


def test_the_group_may_ask_and_others_may_not(tmp_path: Path) -> None:
    """The socket's mode is 0660, whatever the umask."""

    async def body() -> None:
        async with serving(tmp_path):
            assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o660

    in_loop(body)


def test_a_user_of_a_high_number_is_the_one_that_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directory services and user namespaces give numbers above 2^31."""
    high = 3_000_000_000
    peers: list[Peer] = []

    def credentials(self: TransportSocket, *_: int) -> bytes:
        return struct.pack("=3I", 1, high, high)

    async def take(document: bytes, peer: Peer) -> dict[str, Any]:
        peers.append(peer)
        return {}

    async def body() -> None:
        server = ControlServer(tmp_path, {}, {"take": take})
        await server.start()
        try:
            await say(tmp_path, b'{"operation":"take","document":1}\n')
        finally:
            await server.stop()

    monkeypatch.setattr(TransportSocket, "getsockopt", credentials)
    in_loop(body)

    assert peers == [Peer(1, high, high)]


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    """A daemon that was killed leaves its socket: nobody answers there, until the next daemon takes the place."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET_NAME))
    with pytest.raises(DaemonAbsent, match=f"no commwatch daemon runs with the state directory {tmp_path}"):
        ask_daemon(tmp_path, "greet")

    async def body() -> None:
        async with serving(tmp_path):
            assert await ask(tmp_path, "greet")

    in_loop(body)


@pytest.mark.parametrize("folder", [".", "never/made"])
def test_no_daemon_is_said_in_one_line(tmp_path: Path, folder: str) -> None:
    """Neither an empty state directory nor a missing one has a daemon; that of a simulated node is elsewhere."""
    with pytest.raises(DaemonAbsent, match=r"no commwatch daemon runs with the state directory .*--simulate NODE"):
        ask_daemon(tmp_path / folder, "greet")


def test_a_daemon_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    """The command says how long it has waited."""

    async def body() -> None:
        late = asyncio.Event()

        async def think() -> dict[str, Any]:
            await late.wait()
            return {}

        async with serving(tmp_path, {"think": think}):
            with pytest.raises(CommwatchError, match=r"did not answer within 0\.05 s"):
                await ask(tmp_path, "think", timeout=0.05)
            late.set()

    in_loop(body)


def test_after_the_stop_nobody_answers(tmp_path: Path) -> None:
    """The socket goes with the daemon, and a second stop is no error."""

    async def body() -> None:
        async with serving(tmp_path) as server:
            await server.stop()
            with pytest.raises(DaemonAbsent):
                await ask(tmp_path, "greet")

    in_loop(body)


def test_the_only_daemon_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing was named and one simulated node is served, a look goes there, and standard error says so."""
    real = Config(paths=Paths(state=str(tmp_path)))
    demo = Config(paths=Paths(state=str(tmp_path)), simulation=Simulation(preset="h100x8"))

    async def found(config: Config) -> Config:
        return await asyncio.to_thread(of_the_only_daemon, config)

    async def body() -> None:
        for name in ("simulated-h100x8", "simulated-b200x8", "simulated-gone"):
            (tmp_path / name).mkdir()
        assert await found(real) == real
        async with serving(tmp_path / "simulated-h100x8"):
            assert await found(real) == demo
            assert "simulated node h100x8 answers: none of it is real" in capsys.readouterr().err
            async with serving(tmp_path / "simulated-b200x8"):
                assert await found(real) == real
            async with serving(tmp_path):
                assert await found(real) == real
            other = Config(paths=Paths(state=str(tmp_path)), simulation=Simulation(preset="b200x8"))
            assert await found(other) == other
        assert capsys.readouterr().err == ""

    in_loop(body)
