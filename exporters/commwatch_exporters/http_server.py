"""The HTTP server: listens, routes, keeps the number of clients bounded, and stops in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TypeAlias

from commwatch_exporters.http_connection import Connection
from commwatch_exporters.http_messages import Limits, Request, Response, short_response
from commwatch_exporters.listen import EndpointError, bind, name_of

Handler: TypeAlias = "Callable[[Request], Response]"
"""Answers a request; runs in the event loop and so must not block."""

_log = logging.getLogger("commwatch.web")

_RECEIVE_BYTES = 16384
_STOP_SECONDS = 1.0  # for answers under way
_ABORT_SECONDS = 0.5  # for aborted connections to be gone


class HttpServer:
    """Serves GET and HEAD of a few fixed paths over HTTP/1.1.

    Args:
        routes: The handler of each path.
        limits: What a client may use.
    """

    def __init__(self, routes: Mapping[str, Handler], limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._routes = dict(routes)
        self._servers: list[asyncio.Server] = []
        self._connections: dict[Connection, None] = {}  # the one longest unused comes first
        self._all_closed = asyncio.Event()
        self._reported: set[tuple[str, type[Exception]]] = set()

    async def start(self, addresses: Sequence[str]) -> list[str]:
        """Listen on each address: ``HOST:PORT``, ``[IPV6]:PORT``, or ``:PORT`` for all; port 0 means any free one.

        Returns:
            The addresses taken, with the port that was given for 0.

        Raises:
            EndpointError: an address cannot be taken; then none is.
        """
        sockets = []
        try:
            for address in addresses:
                sockets.extend(bind(address))
        except EndpointError:
            for one in sockets:
                one.close()
            raise
        loop = asyncio.get_running_loop()
        for one in sockets:
            self._servers.append(await loop.create_server(lambda: Connection(self), sock=one))
        return [name_of(one) for one in sockets]

    async def stop(self) -> None:
        """Stop listening and close all connections; answers under way get a second to be finished."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self._connections):
            connection.finish()
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
        """Count a client in; above the limit close the one longest unused, those that never sent a request first."""
        if len(self._connections) >= self.limits.connections:
            idle = [one for one in self._connections if not one.sending]
            leaving = min(idle, key=lambda one: one.served, default=connection)
            self._connections.pop(leaving, None)
            leaving.abort()
            if leaving is connection:
                return
        self._connections[connection] = None

    def used(self, connection: Connection) -> None:
        """A request has been answered: the connection is the last to be closed for room."""
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
