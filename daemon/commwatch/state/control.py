"""The control socket in the state directory: how a command on this node asks its daemon for something."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import select
import socket
import stat
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import structlog

from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, ExitCode
from commwatch.regular_file import open_folder
from commwatch.state.answer import MOST_BYTES, decode_answer
from commwatch.state.directory import state_path

log = structlog.get_logger("commwatch.control")

SOCKET_NAME = "control.sock"
_SECONDS = 5.0
"""For a request to arrive, and for an answer to be taken."""
_PLACES, _PLACES_OF_ROOT = 8, 64
"""Connections at a time: of each user, and of root, whose schedulers ask."""
_TOO_MANY = "as many connections of this user as there may be are being answered; try again"
_MOST_WAITING = 16
"""Connections that are let in at once; more wait in the kernel, or try again."""
_COMPLAINT_SECONDS = 60.0
_LONGEST_LINE = 2**16
_MOST_READ_AWAY = 2**24
_TOO_LONG = f"a request has at most {_LONGEST_LINE} bytes"
_CONNECT_PAUSE = 0.01
_LOOK_SECONDS = 5.0
"""For all simulated nodes together."""
_SHORTEST_LOOK = 0.05
_MOST_NODES = 64
"""Simulated nodes that are looked at in one state directory."""
_NODE = re.compile(r"simulated-[A-Za-z0-9._-]{1,64}(?<!\.yaml)(?<!\.yml)")

Handler = Callable[[], Awaitable[dict[str, Any] | msgspec.Struct]]
"""Gives what is answered as a JSON object."""


class Peer(NamedTuple):
    """The process at the other end, as the kernel knows it."""

    pid: int
    uid: int
    gid: int


Taker = Callable[[bytes, Peer], Awaitable[dict[str, Any] | msgspec.Struct]]
"""Takes a JSON document of a process; gives what is answered."""


class _Handed(msgspec.Struct, forbid_unknown_fields=True):
    """A document that is handed to the daemon."""

    operation: str
    document: msgspec.Raw


class DaemonAbsent(CommwatchError):
    """No daemon answers in this state directory."""

    exit_code = ExitCode.NO_DAEMON


@contextlib.contextmanager
def _short_path(state: Path) -> Iterator[str]:
    """A path to the socket that fits the 108 bytes of a socket address, however deep the directory lies."""
    descriptor = os.open(state, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


class ControlServer:
    """Answers one request a connection: a JSON line with the operation's name in, a JSON line out.

    All who may write the state directory may ask; the file system decides. A document is handed in as an object with
    ``operation`` and ``document``; whether it is taken of this process decides who takes it.
    """

    def __init__(
        self, state: Path, operations: Mapping[str, Handler], takers: Mapping[str, Taker] = MappingProxyType({})
    ) -> None:  # fmt: skip
        self._state = state
        self._operations = operations
        self._takers = takers
        self._server: asyncio.Server | None = None
        self._served: Counter[int] = Counter()
        """Connections by user."""
        self._unanswered = 0
        self._complained_at = float("-inf")

    async def start(self) -> None:
        """Listen; a socket left behind by an earlier daemon is replaced (the state directory is locked).

        Whatever else is in its place is set aside. Where the place cannot be had, that is logged, and nobody listens:
        the daemon has other work.
        """
        listening = socket.socket(socket.AF_UNIX)
        try:
            self._make_room()
            with _short_path(self._state) as path:
                listening.bind(path)
            self._let_the_group_in()
        except OSError as error:
            listening.close()
            log.error("no command can reach this daemon", socket=str(self._state / SOCKET_NAME), error=error.strerror)
            return
        self._server = await asyncio.start_unix_server(
            self._admit, sock=listening, limit=_LONGEST_LINE, backlog=_MOST_WAITING
        )

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                (self._state / SOCKET_NAME).unlink()

    def _make_room(self) -> None:
        place = self._state / SOCKET_NAME
        try:
            mode = place.lstat().st_mode
        except FileNotFoundError:
            return
        if stat.S_ISSOCK(mode):
            place.unlink()
            return
        aside = place.with_suffix(f".aside-{time.time_ns()}")
        place.rename(aside)
        log.warning("what is no socket is in the place of the control socket and set aside", aside=str(aside))

    def _let_the_group_in(self) -> None:
        """Not by the name, where meanwhile a link could lead to another file."""
        place = os.open(self._state / SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.chmod(f"/proc/self/fd/{place}", 0o660)
        finally:
            os.close(place)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection, if its user has a place left: no user takes those of another, none takes root's."""
        peer = _peer_of(writer.get_extra_info("socket"))
        if self._served[peer.uid] >= (_PLACES_OF_ROOT if peer.uid == 0 else _PLACES):
            self._complain(f"user {peer.uid} has too many connections")
            writer.write(msgspec.json.encode({"error": _TOO_MANY}) + b"\n")
            writer.close()
            return
        self._served[peer.uid] += 1
        try:
            await self._serve(reader, writer, peer)
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            self._complain(repr(error))
            writer.transport.abort()
        finally:
            self._served[peer.uid] -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer) -> None:
        """Answer one request.

        Raises:
            OSError: the connection broke.
            ValueError: the answer is none that can be written.
            asyncio.TimeoutError: the other side did not write or read in time.
        """
        writer.transport.set_write_buffer_limits(0)  # so that drain waits for all of an answer
        try:
            line = await asyncio.wait_for(reader.readline(), _SECONDS)
        except ValueError as error:
            # What is still on its way is read, as a close before would take the answer from the other side.
            self._complain(repr(error))
            writer.write(msgspec.json.encode({"error": _TOO_LONG}) + b"\n")
            writer.write_eof()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(_read_away(reader), 1)
            return
        if not _is_gone(writer):
            writer.write(msgspec.json.encode(await self._answer(line, peer)) + b"\n")
            await asyncio.wait_for(writer.drain(), _SECONDS)

    def _complain(self, why: str) -> None:
        """Say that a request was not answered, but not each time: a flood of requests must not be one of the log."""
        self._unanswered += 1
        now = time.monotonic()
        if now - self._complained_at >= _COMPLAINT_SECONDS:
            log.warning("a control request was not answered", error=why, not_answered=self._unanswered)
            self._complained_at = now

    async def _answer(self, line: bytes, peer: Peer) -> dict[str, Any] | msgspec.Struct:
        try:
            asked = msgspec.json.decode(line, type=str | _Handed)
        except (ValueError, RecursionError):
            return {"error": "expected the name of an operation as a JSON string"}
        try:
            if isinstance(asked, _Handed):
                if taker := self._takers.get(asked.operation):
                    return await taker(bytes(asked.document), peer)
            elif operation := self._operations.get(asked):
                return await operation()
        except CommwatchError as error:
            return {"error": str(error)}
        name = asked.operation if isinstance(asked, _Handed) else asked
        return {"error": f"unknown operation {name}; known: {', '.join((*self._operations, *self._takers))}"}


_UCRED = struct.Struct("iII")
"""struct ucred of unix(7): users and groups have no sign."""


def _peer_of(sock: socket.socket) -> Peer:
    return Peer(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def _is_gone(writer: asyncio.StreamWriter) -> bool:
    """Whether the other side has closed the connection; that it writes no more does not mean that it reads none."""
    if writer.is_closing():
        return True
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    return any(what & select.POLLHUP for _, what in poll.poll(0))


async def _read_away(reader: asyncio.StreamReader) -> None:
    """Read to the end, up to a limit."""
    left = _MOST_READ_AWAY
    while left > 0 and (part := await reader.read(_LONGEST_LINE)):
        left -= len(part)


def ask_daemon(state: Path, operation: str, timeout: float = 5.0) -> dict[str, Any]:
    """Ask the daemon of a state directory.

    Args:
        state: the directory.
        operation: its name.
        timeout: seconds for the whole answer.

    Raises:
        DaemonAbsent: none answers there.
        CommwatchError: it answers with an error, or we may not ask.
    """
    return _asked(state, msgspec.json.encode(operation), timeout)


def hand_to_daemon(state: Path, operation: str, document: msgspec.Struct, timeout: float = 5.0) -> dict[str, Any]:
    """Hand a document to the daemon of a state directory.

    Args:
        state: the directory.
        operation: that takes it.
        document: at most 64 KiB as JSON.
        timeout: seconds for the whole answer.

    Raises:
        DaemonAbsent: none answers there.
        CommwatchError: it does not take it, or we may not ask.
    """
    return _asked(state, msgspec.json.encode({"operation": operation, "document": document}), timeout)


def _asked(state: Path, request: bytes, timeout: float) -> dict[str, Any]:
    until = time.monotonic() + timeout
    try:
        with _connected(state, until) as connection:
            with contextlib.suppress(BrokenPipeError):  # who refuses us may have said why
                connection.sendall(request + b"\n")
            content = _received(connection, until)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        hint = "if the node is simulated, give --simulate NODE and its daemon's --path.state"
        raise DaemonAbsent(f"no commwatch daemon runs with the state directory {state}; {hint}") from error
    except PermissionError as error:
        raise CommwatchError(
            f"{state / SOCKET_NAME}: {error.strerror}; run this as root or as the daemon's user"
        ) from error
    except TimeoutError as error:
        raise CommwatchError(f"the daemon of {state} did not answer within {timeout:.3g} s") from error
    except OSError as error:
        raise CommwatchError(f"the daemon of {state} closed the connection: {error.strerror}") from error
    if not content:
        raise CommwatchError(f"the daemon of {state} closed the connection without an answer")
    try:
        answer = decode_answer(content)
    except (ValueError, RecursionError) as error:
        raise CommwatchError(f"the answer of the daemon of {state} cannot be used: {error}") from error
    if "error" in answer:
        raise CommwatchError(f"the daemon says: {answer['error']}")
    return answer


@contextlib.contextmanager
def _connected(state: Path, until: float) -> Iterator[socket.socket]:
    """A connection to the daemon of a state directory; each call of it ends by that time, monotonic seconds.

    Whoever may write the directory can put anything there. Only a socket is taken, not a link to that of another
    program, and only one at which root, the directory's owner or this user listens.

    Raises:
        OSError: there is none, it is not ours to use, or time is up.
        CommwatchError: another user listens.
    """
    folder = open_folder(state, os.O_PATH)
    try:
        place = os.open(SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISSOCK(os.fstat(place).st_mode):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "it is no socket")
            with socket.socket(socket.AF_UNIX) as connection:
                _connect(connection, f"/proc/self/fd/{place}", until)
                if (peer := _peer_of(connection)).uid not in (0, os.geteuid(), os.fstat(folder).st_uid):
                    raise CommwatchError(
                        f"{state / SOCKET_NAME}: user {peer.uid} listens there, who is neither root nor the owner of "
                        "the state directory; nothing is asked"
                    )
                yield connection
        finally:
            os.close(place)
    finally:
        os.close(folder)


def _connect(connection: socket.socket, path: str, until: float) -> None:
    while True:
        connection.settimeout(_left(until))
        try:
            return connection.connect(path)
        except BlockingIOError:  # others wait to be let in, as many as the kernel keeps
            time.sleep(min(_CONNECT_PAUSE, _left(until)))


def _received(connection: socket.socket, until: float) -> bytes:
    """What comes until the other side closes the connection, or a byte more than an answer may have.

    Raises:
        TimeoutError: it is still open at that time, monotonic seconds.
    """
    content = bytearray()
    while len(content) <= MOST_BYTES:
        connection.settimeout(_left(until))
        try:
            part = connection.recv(_LONGEST_LINE)
        except ConnectionResetError:
            if not content:
                raise
            break  # the daemon has refused us without reading what we asked, and said why
        if not part:
            break
        content += part
    return bytes(content)


def _left(until: float) -> float:
    """Seconds until a time, monotonic seconds.

    Raises:
        TimeoutError: it has come.
    """
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def of_the_only_daemon(config: Config) -> Config:
    """The configuration of the simulated node whose daemon is the only one here, where no node was named.

    For commands that only look: what acts on a node must not act on another one. Standard error says which it is.
    """
    state = state_path(config)
    if config.simulation.preset or _is_served(state, time.monotonic() + _LOOK_SECONDS):
        return config
    # Whoever owns the directory chooses the names in it.
    found = islice((path for path in state.glob("simulated-*") if _NODE.fullmatch(path.name)), _MOST_NODES)
    until = time.monotonic() + _LOOK_SECONDS
    served = [path.name.removeprefix("simulated-") for path in found if _is_served(path, until)]
    if len(served) != 1:
        return config
    print(
        f"No daemon of this node runs; that of the simulated node {served[0]} answers: none of it is real.",
        file=sys.stderr,
    )
    return msgspec.structs.replace(config, simulation=msgspec.structs.replace(config.simulation, preset=served[0]))


def _is_served(state: Path, until: float) -> bool:
    """Whether a daemon answers there until a time, monotonic seconds, as far as we may know."""
    try:
        ask_daemon(state, "inventory", max(_SHORTEST_LOOK, until - time.monotonic()))
    except DaemonAbsent:
        return False
    except CommwatchError:
        return True  # what is wrong with it is for the question itself to say
    return True
