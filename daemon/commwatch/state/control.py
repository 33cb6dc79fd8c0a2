"""The control socket in the state directory: how a command on this node asks its daemon for something."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog

from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, ExitCode
from commwatch.state.directory import state_path

log = structlog.get_logger("commwatch.control")

SOCKET_NAME = "control.sock"
_LONGEST_LINE = 2**16
_MOST_READ_AWAY = 2**24
_TOO_LONG = f"a request has at most {_LONGEST_LINE} bytes"
_Document = TypeVar("_Document", bound=msgspec.Struct)

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

    async def start(self) -> None:
        """Listen; a socket left behind by an earlier daemon is replaced (the state directory is locked)."""
        (self._state / SOCKET_NAME).unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        with _short_path(self._state) as path:
            listening.bind(path)
        (self._state / SOCKET_NAME).chmod(0o660)
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=_LONGEST_LINE)

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            (self._state / SOCKET_NAME).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                line = await asyncio.wait_for(reader.readline(), 5)
            except ValueError as error:
                # What is still on its way is read, as a close before would take the answer from the other side.
                log.warning("a control request was not answered", error=repr(error))
                writer.write(msgspec.json.encode({"error": _TOO_LONG}) + b"\n")
                writer.write_eof()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_read_away(reader), 1)
                return
            writer.write(msgspec.json.encode(await self._answer(line, _peer_of(writer))) + b"\n")
            await writer.drain()
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            log.warning("a control request was not answered", error=repr(error))
        finally:
            writer.close()

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


def _peer_of(writer: asyncio.StreamWriter) -> Peer:
    sock = writer.get_extra_info("socket")
    return Peer(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


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
    try:
        with _short_path(state) as path, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(request + b"\n")
            line = b"".join(_received(connection, time.monotonic() + timeout))
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
    try:
        answer = msgspec.json.decode(line, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise CommwatchError(f"the daemon of {state} closed the connection without an answer") from error
    if "error" in answer:
        raise CommwatchError(f"the daemon says: {answer['error']}")
    return answer


def of_the_only_daemon(config: Config) -> Config:
    """The configuration of the simulated node whose daemon is the only one here, where no node was named.

    For commands that only look: what acts on a node must not act on another one. Standard error says which it is.
    """
    state = state_path(config)
    if config.simulation.preset or _is_served(state):
        return config
    served = [path.name.removeprefix("simulated-") for path in state.glob("simulated-*") if _is_served(path)]
    if len(served) != 1:
        return config
    print(
        f"No daemon of this node runs; that of the simulated node {served[0]} answers: none of it is real.",
        file=sys.stderr,
    )
    return msgspec.structs.replace(config, simulation=msgspec.structs.replace(config.simulation, preset=served[0]))


def _is_served(state: Path) -> bool:
    """Whether a daemon answers there, as far as we may know."""
    try:
        ask_daemon(state, "inventory")
    except DaemonAbsent:
        return False
    except CommwatchError:
        return True  # what is wrong with it is for the question itself to say
    return True


def document_of(answer: dict[str, Any], kind: type[_Document]) -> _Document:
    """An answer of ``ask_daemon`` as the document that it is meant to be.

    Raises:
        CommwatchError: it is none: the daemon is of another version.
    """
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise CommwatchError(f"the daemon is of another version than this command: {error}") from error


def _received(connection: socket.socket, until: float) -> Iterator[bytes]:
    """What comes until the other side closes the connection.

    Raises:
        TimeoutError: it is still open at that time, monotonic seconds.
    """
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(_LONGEST_LINE)
        if not part:
            return
        yield part
