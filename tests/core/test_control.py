"""The control socket: questions, answers, and what goes wrong between a command and its daemon."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
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
from commwatch.state.client import DaemonAbsent, ask_daemon, hand_to_daemon, of_the_only_daemon
from commwatch.state.control import ControlServer, Question
from commwatch.state.directory import SOCKET_NAME
from commwatch_exporters.http_server import Limits
from commwatch_exporters.listen import Peer
from support.core import in_loop
from support.state_files import SPECIAL_FILES, special_file
from support.waiting import comes


def greet() -> dict[str, Any]:
    return {"hello": [1, None, "ä"]}


def refuse() -> dict[str, Any]:
    raise CommwatchError("no, because")


OPERATIONS: Mapping[str, Question] = {"greet": greet, "refuse": refuse}


@asynccontextmanager
async def serving(state: Path, operations: Mapping[str, Question] = OPERATIONS) -> AsyncIterator[ControlServer]:
    server = ControlServer(state, operations)
    await server.listen()
    try:
        yield server
    finally:
        await server.stop()


async def ask(state: Path, operation: str, timeout: float = 5.0) -> dict[str, Any]:
    return await asyncio.to_thread(ask_daemon, state, operation, timeout)


async def say(state: Path, request: bytes) -> tuple[int, bytes]:
    """Write raw bytes to the socket: the status and the body of the answer, and the end of the connection."""
    reader, writer = await asyncio.open_unix_connection(state / SOCKET_NAME)
    with suppress(ConnectionError):
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


def request(method: bytes, operation: bytes, document: bytes = b"") -> bytes:
    """As bytes; the last of its connection."""
    return b"%s /api/v1/%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
        method, operation, len(document), document,
    )  # fmt: skip


def test_an_answer_may_be_large(tmp_path: Path) -> None:
    """A snapshot of a large node is half a megabyte, and is a record of its own kind."""

    class Large(msgspec.Struct):
        series: list[str]

    def large() -> Large:
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


@pytest.mark.parametrize(
    ("operation", "words"), [("dance", "unknown operation dance; known: greet, refuse"), ("refuse", "no, because")]
)
def test_an_error_of_the_daemon_is_one_of_the_command(tmp_path: Path, operation: str, words: str) -> None:
    """In its words; a newer command gets the list of the operations that an older daemon knows."""

    async def body() -> None:
        async with serving(tmp_path):
            with pytest.raises(CommwatchError, match=f"the daemon says: {words}"):
                await ask(tmp_path, operation)

    in_loop(body)


def test_what_changes_something_is_not_asked_for(tmp_path: Path) -> None:
    """It is posted: a look changes nothing. A document reaches who takes it, with who hands it in."""
    done: list[str] = []

    async def act() -> dict[str, Any]:
        done.append("act")
        return {"done": True}

    async def take(document: bytes, peer: Peer) -> dict[str, Any]:
        done.append(f"{document.decode()} of {peer.uid}")
        return {"taken": True}

    async def body() -> None:
        server = ControlServer(tmp_path, OPERATIONS, {"take": take}, {"act": act})
        await server.listen()
        try:
            for name in ("act", "take"):
                with pytest.raises(CommwatchError, match=f"unknown operation {name}; known: greet, refuse, take, act"):
                    await ask(tmp_path, name)
            assert await asyncio.to_thread(hand_to_daemon, tmp_path, "act") == {"done": True}
            assert await asyncio.to_thread(hand_to_daemon, tmp_path, "take", Paths()) == {"taken": True}
            with pytest.raises(CommwatchError, match="unknown operation greet"):
                await asyncio.to_thread(hand_to_daemon, tmp_path, "greet")
        finally:
            await server.stop()

    in_loop(body)
    document = msgspec.json.encode(Paths()).decode()
    assert done == ["act", f"{document} of {os.geteuid()}"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\n\n\n", 400),
        (b"\xff\xfe\n\r\n\r\n", 400),
        (b"GET /api/v1/greet HTTP/1.1\r\n\r\n", 400),
        (b"DELETE /api/v1/greet HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (request(b"POST", b"greet", b"x" * 65_537), 413),
        (b"POST /api/v1/greet HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n", 413),
        (b"x" * 2**18, 431),
        (request(b"GET", b"greet"), 200),
    ],
)
def test_what_makes_no_sense_is_answered_and_does_no_harm(tmp_path: Path, sent: bytes, status: int) -> None:
    """Whoever speaks another language, or too long, has its status, and the next question is answered."""

    async def body() -> None:
        async with serving(tmp_path):
            assert (await say(tmp_path, sent))[0] == status
            assert await ask(tmp_path, "greet")

    in_loop(body)


def test_an_operation_with_a_defect(tmp_path: Path) -> None:
    """The command gets an answer that says where to look, and the next question is answered."""

    def fail() -> dict[str, Any]:
        raise RuntimeError("secret")

    async def body() -> None:
        async with serving(tmp_path, {"fail": fail, **OPERATIONS}):
            with pytest.raises(CommwatchError, match="the daemon says: the daemon failed; its log says why"):
                await ask(tmp_path, "fail")
            assert await ask(tmp_path, "greet")

    in_loop(body)


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

    async def take(document: bytes, peer: Peer) -> dict[str, Any]:
        peers.append(peer)
        return {}

    async def body() -> None:
        server = ControlServer(tmp_path, {}, {"take": take})
        await server.listen()
        try:
            await say(tmp_path, request(b"POST", b"take", b"1"))
        finally:
            await server.stop()

    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: struct.pack("=3I", 1, high, high))
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
    with pytest.raises(DaemonAbsent, match=r"no commwatch daemon runs .*; see systemctl status .*--simulate NODE"):
        ask_daemon(tmp_path / folder, "greet")


def test_a_daemon_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    """The command says how long it has waited."""

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / SOCKET_NAME))
        silent.listen()
        with pytest.raises(CommwatchError, match=r"did not answer within 0\.05 s"):
            ask_daemon(tmp_path, "greet", 0.05)


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


def test_a_user_who_takes_all_his_places_takes_none_of_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's questions are answered while another user holds all places and comes again and again."""
    users = iter([1000] * 100 + [0, 1000] * 5)
    monkeypatch.setattr("commwatch_exporters.http_server.peer_of", lambda sock: Peer(1, next(users), 0))

    async def body() -> None:
        async with serving(tmp_path) as server:
            held = [await asyncio.open_unix_connection(tmp_path / SOCKET_NAME) for _ in range(100)]
            await comes(lambda: len(server.connections) == 64)
            for _ in range(5):
                assert await ask(tmp_path, "greet") == {"hello": [1, None, "ä"]}
                held.append(await asyncio.open_unix_connection(tmp_path / SOCKET_NAME))
            for _, writer in held:
                writer.transport.abort()

    in_loop(body)


def test_what_was_begun_comes_to_its_end(tmp_path: Path) -> None:
    """Though who asked loses his place to his other connections, or the daemon stops: no pause stays half done."""
    done: list[str] = []

    async def body() -> None:
        may_go_on = asyncio.Event()

        async def act() -> dict[str, Any]:
            done.append("begun")
            await may_go_on.wait()
            done.append("ended")
            return {}

        server = ControlServer(tmp_path, OPERATIONS, acts={"act": act})
        await server.listen()
        _, asks = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        asks.write(request(b"POST", b"act"))
        await comes(lambda: done == ["begun"])
        (asked,) = server.connections
        others = [await asyncio.open_unix_connection(tmp_path / SOCKET_NAME) for _ in range(64)]
        await comes(lambda: asked not in server.connections)
        _, asks_again = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        asks_again.write(request(b"POST", b"act"))
        await comes(lambda: done == ["begun"] * 2)
        await server.stop()
        may_go_on.set()
        await comes(lambda: done == ["begun"] * 2 + ["ended"] * 2)
        for writer in (asks, asks_again, *(writer for _, writer in others)):
            writer.transport.abort()

    in_loop(body)


def test_what_a_user_has_begun_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it outlives his connections: beyond that he gets 503, and another user is answered."""
    user = 1000
    monkeypatch.setattr("commwatch_exporters.http_server.peer_of", lambda sock: Peer(1, user, 0))
    begun: list[str] = []

    async def body() -> None:
        nonlocal user
        never = asyncio.Event()

        async def act() -> dict[str, Any]:
            begun.append("act")
            await never.wait()
            return {}

        server = ControlServer(tmp_path, OPERATIONS, acts={"act": act})
        await server.listen()
        for _ in range(64):
            begun.clear()
            _, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
            writer.write(request(b"POST", b"act"))
            await comes(lambda: begun == ["act"])
            for connection in server.connections:
                connection.abort()
            writer.transport.abort()
        status, said = await say(tmp_path, request(b"POST", b"act"))
        assert (status, b"try again" in said, begun) == (503, True, ["act"])
        user = 0
        assert await ask(tmp_path, "greet")
        await server.stop()

    in_loop(body)


def test_who_does_not_read_an_answer_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else his answer would stay in the daemon's memory for as long as he likes."""
    monkeypatch.setattr(control, "_LIMITS", Limits(body_bytes=2**16, write_seconds=0.05))

    def large() -> dict[str, Any]:
        return {"x": "x" * 2**23}

    async def body() -> None:
        async with serving(tmp_path, {"large": large}) as server:
            reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME, limit=2**10)
            writer.write(request(b"GET", b"large"))
            await comes(lambda: bool(server.connections))
            await comes(lambda: not server.connections)
            with suppress(ConnectionError):
                assert len(await reader.read()) < 2**23
            writer.close()

    in_loop(body)


def test_no_answer_is_made_for_who_has_left(tmp_path: Path) -> None:
    """Who has only ended his own side still reads."""
    made = []

    def make() -> dict[str, Any]:
        made.append(1)
        return {}

    async def body() -> None:
        async with serving(tmp_path, {"make": make, **OPERATIONS}):
            for _ in range(10):
                with socket.socket(socket.AF_UNIX) as gone:
                    gone.connect(str(tmp_path / SOCKET_NAME))
                    gone.sendall(request(b"GET", b"make"))
            assert await ask(tmp_path, "greet")
            assert not made
            reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
            writer.write(request(b"GET", b"make"))
            writer.write_eof()
            assert (await reader.read()).endswith(b"\r\n\r\n{}")
            writer.close()

    in_loop(body)


def test_a_flood_of_requests_is_none_of_the_log(tmp_path: Path) -> None:
    """Whoever sends what makes no sense reads so himself."""

    async def body() -> None:
        async with serving(tmp_path):
            for _ in range(5):
                await say(tmp_path, b"x" * 70_000)

    with capture_logs() as events:
        in_loop(body)
    assert events == []
