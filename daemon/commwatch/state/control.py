"""The control socket in the state directory: HTTP for commands of users whom the file system lets in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import msgspec
import structlog

from commwatch.errors import CommwatchError
from commwatch.state.directory import API, SOCKET_NAME
from commwatch_exporters.http_server import HttpServer, Limits, Request, Response
from commwatch_exporters.listen import Peer

log = structlog.get_logger("commwatch.control")

_LIMITS = Limits(body_bytes=2**16, idle_seconds=5.0, write_seconds=5.0, connections=64)

_TOO_MANY = "as many requests of this user as there may be are being answered; try again"

Answer: TypeAlias = "dict[str, Any] | msgspec.Struct"
"""A JSON object."""
Question: TypeAlias = Callable[[], Answer]
Handler: TypeAlias = Callable[[], Awaitable[Answer]]
Taker: TypeAlias = Callable[[bytes, Peer], Awaitable[Answer]]
"""Takes a JSON document of a process."""


@contextlib.contextmanager
def _short_path(state: Path) -> Iterator[str]:
    """A path to the socket that fits the 108 bytes of a socket address, however deep the directory lies."""
    descriptor = os.open(state, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


class ControlServer(HttpServer):
    """Answers below ``/api/v1/``: with GET what is asked, with POST what changes something.

    All who may write the state directory may ask; the file system decides. Whether a document is taken of a process
    decides who takes it. No user takes the places of another: who holds most connections loses one.

    Args:
        operations: By name what is asked.
        takers: By name what takes a document.
        acts: By name what changes something without one.
    """

    methods = ("GET", "HEAD", "POST")

    def __init__(
        self, state: Path, operations: Mapping[str, Question], takers: Mapping[str, Taker] = MappingProxyType({}),
        acts: Mapping[str, Handler] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        super().__init__({}, _LIMITS)
        self._state = state
        self._operations = operations
        self._takers = takers
        self._acts = acts
        self._under_way: defaultdict[str, set[asyncio.Task[Response]]] = defaultdict(set)
        """By user what was begun; a connection that goes does not end it."""

    async def listen(self) -> None:
        """Listen; a socket left behind by an earlier daemon is replaced (the state directory is locked).

        Whatever else is in its place is set aside. If the path cannot be used, that is logged, and the daemon runs
        without a control socket.
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
        await self.start((), [listening])

    async def stop(self) -> None:
        listened = bool(self._listening)
        await super().stop()
        if listened:
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

    async def respond(self, request: Request) -> Response:
        """The JSON object that an operation gives; an object with ``error`` where it gives none.

        An operation always completes, even if its client is thrown out or leaves: half a pause is none.
        """
        begun = self._under_way[request.client]
        if len(begun) >= self.limits.connections:
            return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": _TOO_MANY})
        work = asyncio.get_running_loop().create_task(self._respond(request))
        begun.add(work)  # the loop alone would not keep it
        work.add_done_callback(begun.discard)
        return await asyncio.shield(work)

    async def _respond(self, request: Request) -> Response:
        name = request.path.removeprefix(API)
        try:
            return _json(HTTPStatus.OK, await self._given(name, request))
        except CommwatchError as error:
            return _json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except Exception as error:
            self.failed(name, error)
            return _json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the daemon failed; its log says why"})

    async def _given(self, name: str, request: Request) -> Answer:
        if request.method != "POST":
            if operation := self._operations.get(name):
                return operation()
        elif taker := self._takers.get(name):
            return await taker(request.body, cast(Peer, request.peer))
        elif act := self._acts.get(name):
            return await act()
        raise CommwatchError(
            f"unknown operation {name}; known: {', '.join((*self._operations, *self._takers, *self._acts))}"
        )


def _json(status: HTTPStatus, answer: Answer) -> Response:
    return Response(status, msgspec.json.encode(answer), "application/json")
