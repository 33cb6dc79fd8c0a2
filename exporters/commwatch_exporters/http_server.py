"""The HTTP server: listens, routes, keeps the number of clients bounded, and stops in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias, TypeVar

from commwatch_exporters.http_connection import COMMON_HEADERS, Connection
from commwatch_exporters.http_messages import Limits, Request, Response, short_response
from commwatch_exporters.listen import BACKLOG, EndpointError, bind, name_of

Handler: TypeAlias = "Callable[[Request], Response]"
"""Answers a request; runs in the event loop and so must not block."""

Verdict: TypeAlias = "Response | asyncio.Future[Response | None] | None"
"""Why a request is not let in, or who will say; None if it is."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_log = logging.getLogger("commwatch.web")

_ACCEPT_AT_ONCE = 16  # new clients for whom those who are here wait
_RECEIVE_BYTES = 16384
_STOP_SECONDS = 1.0  # for answers under way
_ABORT_SECONDS = 0.5  # for aborted connections to be gone
_PLACES_OF_KNOWN = 8  # of a client that has shown who it is; they count for nothing when others want room
_CLIENTS_KNOWN = 1024


@dataclass(frozen=True, slots=True)
class Access:
    """How clients come in; the default is over plain HTTP, whoever they are."""

    wrap: Callable[[Connection, memoryview], asyncio.BaseProtocol] | None = None
    """Puts TLS beneath a connection, which reads into a buffer that all share."""
    admit: Callable[[Request, Connection], Verdict] | None = None
    """Judges a request; must not block."""
    identifies: bool = False
    """Whether a client that is let in has shown who it is, by a password or a certificate."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of every answer, in place of ours of the same name; an empty one takes ours away."""


def _first_to_go(held: list[Connection]) -> Connection:
    """Which of a client's connections loses its place; the one longest unused comes first in the list.

    First those that have earned none, but for the newest; then one that takes long for its answer, then an idle one.
    """
    unearned = [one for one in held if not one.served][:-1]
    slow = (one for one in held if one.is_slow)
    idle = (one for one in held if one.served and not one.sending)
    return next(iter((*unearned[:1], *slow, *idle)), held[0])


def _move_to_end(ordered: dict[_Key, _Value], key: _Key) -> None:
    ordered[key] = ordered.pop(key)


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
        self._places: dict[str, dict[Connection, None]] = {}
        """By client its connections, the one longest unused first; who has done nothing for longest is first."""
        self._known: dict[str, None] = {}
        """Clients that were answered what earns a place, the one longest unseen first."""
        self._all_closed = asyncio.Event()
        self._reported: set[tuple[str, type[Exception]]] = set()

    @property
    def paths(self) -> frozenset[str]:
        """All that is served."""
        return frozenset(self._routes)

    @property
    def connections(self) -> list[Connection]:
        """All that are open."""
        return [connection for places in self._places.values() for connection in places]

    def let_in(self, access: Access) -> None:
        """Have clients come in otherwise: new ones as to TLS, all as to the rest, from their next request on."""
        if access.identifies != self._access.identifies:
            self._known.clear()
        self._access = access
        changed = {name.lower() for name in access.headers}
        self.headers = [
            *((name, value) for name, value in COMMON_HEADERS if name.lower() not in changed),
            *((name, value) for name, value in access.headers.items() if value),
        ]

    def hang_up(self) -> None:
        """Close all connections; answers under way get to their end."""
        for connection in self.connections:
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
        for connection in self.connections:
            connection.abort()
        await self._wait_until_closed(_ABORT_SECONDS)

    async def _wait_until_closed(self, seconds: float) -> None:
        self._all_closed.clear()
        if self._places:
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
        """Count a connection in; at the limit the client that holds most places loses one, and never the newest."""
        is_full = sum(map(len, self._places.values())) >= self.limits.connections
        holds_most = max(self._places, key=self._excess) if is_full else None
        self._places.setdefault(connection.client, {})[connection] = None
        _move_to_end(self._places, connection.client)
        if holds_most is not None:
            leaving = _first_to_go(list(self._places[holds_most]))
            self._take_out(leaving)
            leaving.abort()

    def _excess(self, client: str) -> int:
        """How many places of a client can be taken."""
        held = len(self._places[client])
        if client not in self._known:
            return held
        # Where nobody is asked who it is, anybody is answered: then two connections weigh no more than one.
        return held - _PLACES_OF_KNOWN if self._access.identifies else max(1, held - 1)

    def used(self, request: Request, connection: Connection) -> None:
        """A request is answered: it earns its client a place, unless everybody may ask it or nothing is there."""
        if request.path in self._open_paths or request.path not in self._routes:
            return
        client = connection.client
        connection.served = True
        if (places := self._places.get(client)) is not None and connection in places:
            _move_to_end(places, connection)
            _move_to_end(self._places, client)
        self._known[client] = None
        _move_to_end(self._known, client)
        if len(self._known) > _CLIENTS_KNOWN:
            del self._known[next(iter(self._known))]

    def closed(self, connection: Connection) -> None:
        """Count a connection out."""
        self._take_out(connection)
        if not self._places:
            self._all_closed.set()

    def _take_out(self, connection: Connection) -> None:
        places = self._places.get(connection.client, {})
        places.pop(connection, None)
        if not places:
            self._places.pop(connection.client, None)

    def failed(self, where: str, error: Exception) -> None:
        """Log a failure, once for each place and kind: a client must not be able to fill the log."""
        kind = (where, type(error))
        if kind not in self._reported:
            self._reported.add(kind)
            _log.error("answering %s failed; further failures of this kind are not logged", where, exc_info=error)
