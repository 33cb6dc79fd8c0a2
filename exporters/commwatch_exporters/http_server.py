"""The HTTP server: listens, routes, keeps the number of clients bounded, and stops in time."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias

from commwatch_exporters.http_connection import COMMON_HEADERS, Connection
from commwatch_exporters.http_messages import Limits, Request, Response, short_response
from commwatch_exporters.listen import BACKLOG, EndpointError, bind, name_of

Handler: TypeAlias = "Callable[[Request], Response]"
"""Answers a request; runs in the event loop and so must not block."""

Verdict: TypeAlias = "Response | asyncio.Future[Response | None] | None"
"""Why a request is not let in, or who will say; None if it is."""

_log = logging.getLogger("commwatch.web")

_ACCEPT_AT_ONCE = 16  # new clients for whom those who are here wait
_RECEIVE_BYTES = 16384
_STOP_SECONDS = 1.0  # for answers under way
_ABORT_SECONDS = 0.5  # for aborted connections to be gone


@dataclass(frozen=True, slots=True)
class Access:
    """How clients come in; the default is over plain HTTP, whoever they are."""

    wrap: Callable[[Connection, memoryview], asyncio.BaseProtocol] | None = None
    """Puts TLS beneath a connection, which reads into a buffer that all share."""
    admit: Callable[[Request, Connection], Verdict] | None = None
    """Judges a request; must not block."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of every answer, in place of ours of the same name; an empty one takes ours away."""


class _Claim(enum.IntEnum):
    """What a client has done for its place."""

    NEVER_LET_IN = enum.auto()
    SLOW = enum.auto()
    IDLE = enum.auto()
    ANSWER_UNDER_WAY = enum.auto()


def _claim(connection: Connection) -> _Claim:
    if not connection.served:
        return _Claim.NEVER_LET_IN
    if connection.is_slow:
        return _Claim.SLOW
    return _Claim.ANSWER_UNDER_WAY if connection.sending else _Claim.IDLE


class HttpServer:
    """Serves GET and HEAD of a few fixed paths over HTTP/1.1.

    Args:
        routes: The handler of each path.
        limits: What a client may use.
        open_paths: Paths for which no request is judged.
    """

    def __init__(
        self, routes: Mapping[str, Handler], limits: Limits | None = None, open_paths: Sequence[str] = ()
    ) -> None:
        self.limits = limits or Limits()
        self.headers: Sequence[tuple[str, str]] = COMMON_HEADERS
        self._access = Access()
        self._open_paths = frozenset(open_paths)
        self.receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._routes = dict(routes)
        self._servers: list[asyncio.Server] = []
        self._connections: dict[Connection, None] = {}  # the one longest unused comes first
        self._all_closed = asyncio.Event()
        self._reported: set[tuple[str, type[Exception]]] = set()

    @property
    def paths(self) -> frozenset[str]:
        """All that is served."""
        return frozenset(self._routes)

    def let_in(self, access: Access) -> None:
        """Have clients come in otherwise: new ones as to TLS, all as to the rest, from their next request on."""
        self._access = access
        changed = {name.lower() for name in access.headers}
        self.headers = [
            *((name, value) for name, value in COMMON_HEADERS if name.lower() not in changed),
            *((name, value) for name, value in access.headers.items() if value),
        ]

    def hang_up(self) -> None:
        """Close all connections; answers under way get to their end."""
        for connection in list(self._connections):
            connection.finish()

    async def start(self, addresses: Sequence[str], sockets: Sequence[socket.socket] = ()) -> list[str]:
        """Listen on each address: ``HOST:PORT``, ``[IPV6]:PORT``, or ``:PORT`` for all; port 0 means any free one.

        Args:
            addresses: What to listen on.
            sockets: What listens already; they are the server's from now on.

        Returns:
            The addresses taken, with the port that was given for 0.

        Raises:
            EndpointError: an address cannot be taken; then none is.
        """
        listening = list(sockets)
        try:
            for address in addresses:
                listening.extend(bind(address))
        except EndpointError:
            for one in listening:
                one.close()
            raise
        loop = asyncio.get_running_loop()
        for one in listening:
            self._servers.append(await loop.create_server(self._protocol, sock=one, backlog=_ACCEPT_AT_ONCE))
            one.listen(BACKLOG)  # asyncio takes one number for the kernel's queue and for what it accepts at once
        return [name_of(one) for one in listening]

    def _protocol(self) -> asyncio.BaseProtocol:
        connection = Connection(self)
        wrap = self._access.wrap
        return connection if wrap is None else wrap(connection, self.receive_buffer)

    async def stop(self) -> None:
        """Stop listening and close all connections; answers under way get a second to be finished."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self.hang_up()
        await self._wait_until_closed(_STOP_SECONDS)
        for connection in list(self._connections):
            connection.abort()
        await self._wait_until_closed(_ABORT_SECONDS)

    async def _wait_until_closed(self, seconds: float) -> None:
        self._all_closed.clear()
        if self._connections:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), seconds)

    # --- what a connection calls ---

    def admit(self, request: Request, connection: Connection) -> Verdict:
        """Why a request is not let in, at once or later; None if it is."""
        judge = self._access.admit
        if judge is None or request.path in self._open_paths:
            return None
        try:
            return judge(request, connection)
        except Exception as error:
            self.failed("admission", error)
            return short_response(HTTPStatus.INTERNAL_SERVER_ERROR)

    def answer(self, request: Request) -> Response:
        """The answer of the path's handler; 404 where there is none, 500 where it raises."""
        handler = self._routes.get(request.path)
        if handler is None:
            return short_response(HTTPStatus.NOT_FOUND)
        try:
            return handler(request)
        except Exception as error:
            self.failed(request.path, error)
            return short_response(HTTPStatus.INTERNAL_SERVER_ERROR)

    def opened(self, connection: Connection) -> None:
        """Count a client in; above the limit close the one with the least claim, of several the one longest unused."""
        if len(self._connections) >= self.limits.connections:
            leaving = min(self._connections, key=_claim)
            if _claim(leaving) is _Claim.ANSWER_UNDER_WAY:
                leaving = connection
            self._connections.pop(leaving, None)
            leaving.abort()
            if leaving is connection:
                return
        self._connections[connection] = None

    def used(self, request: Request, connection: Connection) -> None:
        """A request is answered: the connection is the last to be closed for room, unless everybody may ask that."""
        if self._access.admit is not None and request.path in self._open_paths:
            return
        connection.served = True
        self._connections.pop(connection, None)
        self._connections[connection] = None

    def closed(self, connection: Connection) -> None:
        """Count a client out."""
        self._connections.pop(connection, None)
        if not self._connections:
            self._all_closed.set()

    def failed(self, where: str, error: Exception) -> None:
        """Log a failure, once for each place and kind: a client must not be able to fill the log."""
        kind = (where, type(error))
        if kind not in self._reported:
            self._reported.add(kind)
            _log.error("answering %s failed; further failures of this kind are not logged", where, exc_info=error)
