"""The control socket: questions, answers, and what goes wrong between a command and its daemon."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import stat
import struct
from asyncio.trsock import TransportSocket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import Config, Paths, Simulation
from commwatch.errors import CommwatchError
from commwatch.state import control
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
from support.state_files import SPECIAL_FILES, special_file
from support.waiting import comes


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


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_what_is_in_the_place_of_the_socket_is_set_aside(tmp_path: Path, kind: str) -> None:
    """With a warning and its content; a socket that nobody listens at any more is replaced in silence."""

    async def body() -> None:
        async with serving(tmp_path):
            assert await ask(tmp_path, "greet")

    with special_file(tmp_path / SOCKET_NAME, kind), capture_logs() as events:
        in_loop(body)
    aside = list(tmp_path.glob("control.aside-*"))
    assert len(aside) == len(events) == (kind != "socket")
    assert all((one / "inside").is_dir() for one in aside if kind == "folder")


def test_a_place_that_cannot_be_had_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon has other work than to answer commands."""

    def refuse(path: Path, target: Path) -> Path:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / SOCKET_NAME).mkdir()
    monkeypatch.setattr(Path, "rename", refuse)

    async def body() -> None:
        async with serving(tmp_path):
            pass

    with capture_logs() as events:
        in_loop(body)
    assert [event["event"] for event in events] == ["no command can reach this daemon"]


def _uid_of(numbers: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are of these users, by their order; the others of root."""
    order = itertools.count()

    def credentials(self: TransportSocket, *_: int) -> bytes:
        return struct.pack("=3I", 1, numbers.get(next(order), 0), 0)

    monkeypatch.setattr(TransportSocket, "getsockopt", credentials)


def test_a_user_who_takes_all_his_places_takes_none_of_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ninth connection at a time of a user is refused in words, root's next one is served, one who left has a
    place again."""
    _uid_of(dict.fromkeys([*range(9), 10], 1000), monkeypatch)

    async def body() -> None:
        async with serving(tmp_path):
            held = [await asyncio.open_unix_connection(tmp_path / SOCKET_NAME) for _ in range(8)]
            assert "try again" in json.loads(await say(tmp_path, b""))["error"]
            assert json.loads(await say(tmp_path, b'"greet"\n')) == {"hello": [1, None, "ä"]}
            reader, writer = held[0]
            writer.write(b'"greet"\n')
            assert await reader.read()
            assert json.loads(await say(tmp_path, b'"greet"\n')) == {"hello": [1, None, "ä"]}
            for _, writer in held:
                writer.close()
                await writer.wait_closed()

    with capture_logs() as events:
        in_loop(body)
    assert [event["error"] for event in events] == ["user 1000 has too many connections"]


def test_who_is_refused_a_place_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the daemon closes the connection without reading what was asked."""
    _uid_of(dict.fromkeys(range(9), 1000), monkeypatch)

    async def body() -> None:
        async with serving(tmp_path):
            held = [await asyncio.open_unix_connection(tmp_path / SOCKET_NAME) for _ in range(8)]
            with pytest.raises(CommwatchError, match="as many connections of this user as there may be"):
                await ask(tmp_path, "greet")
            for _, writer in held:
                writer.close()
                await writer.wait_closed()

    in_loop(body)


def test_who_does_not_read_an_answer_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else his answer would stay in the daemon's memory for as long as he likes."""
    monkeypatch.setattr(control, "_SECONDS", 0.05)

    async def large() -> dict[str, Any]:
        return {"x": "x" * 2**23}

    async def body() -> None:
        async with serving(tmp_path, {"large": large}):
            reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME, limit=2**10)
            writer.write(b'"large"\n')
            await comes(lambda: bool(events))
            with suppress(ConnectionError):
                assert len(await reader.read()) < 2**23
            writer.close()

    with capture_logs() as events:
        in_loop(body)
    assert [event["error"] for event in events] == ["TimeoutError()"]


def test_no_answer_is_made_for_who_has_left(tmp_path: Path) -> None:
    """Who has only ended his own side still reads."""
    made = []

    async def make() -> dict[str, Any]:
        made.append(1)
        return {}

    async def body() -> None:
        async with serving(tmp_path, {"make": make, **OPERATIONS}):
            for _ in range(10):
                with socket.socket(socket.AF_UNIX) as gone:
                    gone.connect(str(tmp_path / SOCKET_NAME))
                    gone.sendall(b'"make"\n')
            assert await ask(tmp_path, "greet")
            assert not made
            reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
            writer.write(b'"make"\n')
            writer.write_eof()
            assert json.loads(await reader.read()) == {}
            writer.close()

    in_loop(body)


def test_a_flood_of_requests_is_none_of_the_log(tmp_path: Path) -> None:
    """One line a minute, which counts."""

    async def body() -> None:
        async with serving(tmp_path):
            for _ in range(5):
                await say(tmp_path, b"x" * 70_000)

    with capture_logs() as events:
        in_loop(body)
    assert len(events) == 1
