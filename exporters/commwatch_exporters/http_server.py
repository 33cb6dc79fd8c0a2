"""The HTTP/1.1 server: h11 parses; each connection is a task over its socket, bounded in bytes, time and number.

To throw a client out is to cancel its task. TLS is the standard library's ``ssl`` on the same sockets: asyncio's own
keeps 256 KiB for each client, says nothing of clients in the middle of a handshake, and drops the alert that says why a
handshake has failed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TypeAlias, TypeVar, cast

import h11

from commwatch_exporters.listen import BACKLOG, EndpointError, Peer, bind, name_of, peer_of
from commwatch_exporters.shares import Places, Turns, client_of
from commwatch_exporters.tls_context import TlsEntry

_Result = TypeVar("_Result")

_log = logging.getLogger("commwatch.web")

_LOOSE = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line that ends without CR, or goes on in the next (RFC 9112 2.2, 5.2): h11 takes both, and a proxy may not."""
_ACCEPT_AT_ONCE = 16  # new clients for whom those who are here wait
_RECEIVE_BYTES = 16384
_WRITE_BYTES = 65536  # handed to the kernel at a time
_SLOW_SECONDS = 1.0  # for an answer, after which a client keeps its place only while there is room
_LINGER_SECONDS = 1.0  # for the client to read the last answer; closing on unread bytes would destroy it
_STOP_SECONDS = 1.0  # for answers under way
_ABORT_SECONDS = 0.5  # for aborted connections to be gone
_NO_DESCRIPTOR_SECONDS = 1.0  # until another client is let in, where the process has no descriptor left

COMMON_HEADERS = (
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)
"""Headers of every response, unless the server is configured otherwise."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on a client's requests."""

    head_bytes: int = 16384
    """Request line and headers together."""
    body_bytes: int = 0
    head_seconds: float = 5.0
    """From the connection, or the first byte of a later request, to the end of the request."""
    idle_seconds: float = 60.0
    """Between an answer and the first byte of the next request."""
    write_seconds: float = 10.0
    """From the start of an answer until the kernel has taken all of it."""
    connections: int = 512
    tls_connections: int = 64
    """Of those, how many may have begun to speak TLS."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request; of a server that takes no other method, GET or HEAD."""

    path: str
    """Path of the target, without query, as it was sent."""
    headers: Mapping[str, str]
    """Values by lower-case name; values of a repeated header are joined by a comma."""
    query: str = ""
    """The part of the target after the first ``?``, as sent."""
    client: str = ""
    """Who asks: of ``client_of``, or a user of this node."""
    method: str = "GET"
    body: bytes = b""
    peer: Peer | None = None
    """Over a unix socket."""


@dataclass(frozen=True, slots=True)
class Response:
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Handler: TypeAlias = "Callable[[Request], Response]"
"""Answers a request; runs in the event loop and so must not block."""


@dataclass(frozen=True, slots=True)
class Access:
    """How clients come in; the default is over plain HTTP, whoever they are."""

    tls: TlsEntry | None = None
    admit: Callable[[Request], Awaitable[Response | None]] | None = None
    """Why a request is not let in; None if it is."""
    identifies: bool = False
    """Whether a client that is let in has shown who it is, by a password or a certificate."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of every answer, in place of ours of the same name; an empty one takes ours away."""


def short_response(status: HTTPStatus, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A status in one line of text."""
    return Response(status, f"{status.value} {status.phrase}\n".encode(), headers=headers)


_HTTPS_ONLY = Response(HTTPStatus.BAD_REQUEST, b"400 Bad Request: this port speaks HTTPS only.\n")


def _refusal(event: h11.Request, head: bytes, limits: Limits, methods: Sequence[str]) -> Response | None:
    """Why a request that h11 takes is not served, given its head as it came; None if it is."""
    size = len(event.method) + len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
    lengths = [value for name, value in event.headers if name == b"content-length"]
    status: HTTPStatus | None = None
    if _LOOSE.search(head):
        status = HTTPStatus.BAD_REQUEST
    elif size > limits.head_bytes:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    elif event.http_version not in (b"1.0", b"1.1"):
        status = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
    elif event.method.decode("latin-1") not in methods:
        return short_response(HTTPStatus.METHOD_NOT_ALLOWED, (("Allow", ", ".join(methods)),))
    elif any(name == b"transfer-encoding" for name, _ in event.headers):
        status = HTTPStatus.BAD_REQUEST
    elif any(int(length) > limits.body_bytes for length in lengths):
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return None if status is None else short_response(status)


def _request_of(event: h11.Request, body: bytes, client: str, peer: Peer | None) -> Request:
    headers: dict[str, str] = {}
    for raw_name, raw_value in event.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    target, _, query = event.target.decode("latin-1").partition("?")
    return Request(_path(target), headers, query, client, event.method.decode("latin-1"), body, peer)


def _path(target: str) -> str:
    """The path of a request target without its query, also of one in absolute form."""
    scheme, separator, rest = target.partition("://")
    if separator and scheme.lower() in ("http", "https"):
        return "/" + rest.partition("/")[2]
    return target


class Connection:
    """One client, from its acceptance to its end; see ``HttpServer.take_in``."""

    def __init__(self, server: HttpServer, sock: socket.socket, client: str, peer: Peer | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.sock = sock
        self.client = client
        self.served = False
        """Whether a request was answered that earns a place."""
        self.over_tls = False
        """Whether it has begun to speak TLS, which takes memory."""
        self.sending = False
        """Whether an answer is under way."""
        self.until = loop.time() + server.limits.head_seconds
        """When what the connection is at must be over, by the clock of the loop."""
        self._server = server
        self._peer = peer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=server.limits.head_bytes)
        self._refused: Response | None = None
        """The answer to whatever is asked."""
        self._is_idle = False  # it has been answered, and has not begun another request
        self._is_head = False
        self._is_last = False
        self._sending_since = 0.0
        self.task = loop.create_task(self._live())
        self.task.add_done_callback(self._end)

    @property
    def is_slow(self) -> bool:
        """Whether the client has been taking an answer for long."""
        return self.sending and asyncio.get_running_loop().time() > self._sending_since + _SLOW_SECONDS

    def finish(self) -> None:
        """Close as soon as no answer is under way."""
        if self.sending:
            self._is_last = True
        else:
            self.abort()

    def abort(self) -> None:
        """Close now."""
        self.task.cancel()

    async def _live(self) -> None:
        try:
            if self._server.access.tls is not None:
                await self._begin_tls(self._server.access.tls)
            while True:
                await self._send(await self._next_answer())
                if self._is_last or self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    break
                await self._await_another()
            await self._say_goodbye()
        except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # the client has gone, is too slow, or is thrown out; an exception that is kept keeps the connection
        except Exception as error:
            self._server.failed("connection", error)

    def _end(self, _: object) -> None:
        self.sock.close()
        self._server.closed(self)

    # --- the socket ---

    async def _step(self, call: Callable[[], _Result], *, writes: bool = False) -> _Result:
        """Do what the socket may not be ready for.

        Raises:
            asyncio.TimeoutError: it is not ready in the time that is left.
            OSError: the client is gone.
        """
        while True:
            try:
                return call()
            except BlockingIOError:
                to_write = writes
            except ssl.SSLWantReadError:
                to_write = False
            except ssl.SSLWantWriteError:
                to_write = True
            await self._ready(to_write=to_write)

    async def _ready(self, *, to_write: bool) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
        descriptor = self.sock.fileno()  # of the socket itself the selector makes words, with two system calls
        add(descriptor, _set, ready, None)
        timer = loop.call_at(self.until, _set, ready, asyncio.TimeoutError())
        try:
            await ready
        finally:
            timer.cancel()
            remove(descriptor)
            del ready  # its exception keeps this frame, and this frame the connection

    def _allow(self, seconds: float) -> None:
        self.until = asyncio.get_running_loop().time() + seconds

    async def _begin_tls(self, entry: TlsEntry) -> None:
        """Shake hands, in the time of the first request; a client that speaks plain HTTP gets an answer that says so.

        Raises:
            OSError: it comes to nothing.
        """
        # Who says nothing costs a socket, and nothing of OpenSSL's. A method begins with a letter, and TLS does not.
        first = await self._step(partial(self.sock.recv, 1, socket.MSG_PEEK))
        if first.isalpha():
            self._refused = _HTTPS_ONLY
            return
        handshakes = self._server.handshakes
        # One begins each time the loop comes round: it takes a millisecond.
        turn = handshakes.ask(self.client, partial(asyncio.sleep, 0))
        await asyncio.wait_for(turn, self.until - asyncio.get_running_loop().time())
        handshakes.failed(self.client)  # until a request for a path that exists is answered
        self._server.places.begin_tls(self, self._server.limits.tls_connections)
        self.sock = sock = entry.wrap(self.sock)
        try:
            await self._step(sock.do_handshake)
            entry.check_name(sock)
        except asyncio.TimeoutError:
            raise
        except OSError as error:
            _log.debug("%s: TLS handshake failed: %s", self.client, error)
            await self._say_goodbye()  # so that the client reads the alert that says why
            raise

    # --- requests ---

    async def _next_answer(self) -> Response:
        """The response to the next request.

        Raises:
            asyncio.TimeoutError: none has begun in time.
            OSError: the client is gone.
        """
        self._is_head = False
        try:
            event, head = await self._event()
            if isinstance(event, h11.ConnectionClosed):
                await self._say_goodbye()
                raise ConnectionAbortedError
            return await self._answer(cast(h11.Request, event), head)
        except h11.RemoteProtocolError as error:
            error.__traceback__ = None  # its frame in h11 refers to it: both would wait for the garbage collector
            status = HTTPStatus(error.error_status_hint)
        except asyncio.TimeoutError:
            if not self._http.trailing_data[0]:
                raise
            status = HTTPStatus.REQUEST_TIMEOUT
        self._is_last = True
        return short_response(status)

    async def _event(self) -> tuple[h11.Event, bytes]:
        """The next event of the connection, and the bytes it was parsed from."""
        while True:
            unread, _ = self._http.trailing_data
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                left, _ = self._http.trailing_data
                return cast(h11.Event, event), unread[: len(unread) - len(left)]
            data = await self._step(partial(self.sock.recv, _RECEIVE_BYTES))
            if data and self._is_idle:
                self._is_idle = False
                self._allow(self._server.limits.head_seconds)
            self._http.receive_data(data)

    async def _answer(self, event: h11.Request, head: bytes) -> Response:
        self._is_head = event.method == b"HEAD"
        refused = self._refused or _refusal(event, head, self._server.limits, self._server.methods)
        if refused is not None:
            self._is_last = True
            return refused
        body = bytearray()
        while isinstance(part := (await self._event())[0], h11.Data):
            body += part.data
        request = _request_of(event, bytes(body), self.client, self._peer)
        refused = await self._refused_entry(request)
        if refused is not None:
            return refused
        if self._peer is not None and _has_left(self.sock):
            raise ConnectionAbortedError
        self._server.used(request, self)
        return await self._server.respond(request)

    async def _refused_entry(self, request: Request) -> Response | None:
        """Why a request is not let in; None if it is."""
        judge = self._server.access.admit
        if judge is None or request.path in self._server.open_paths:
            return None
        decision = asyncio.ensure_future(judge(request))
        try:
            await asyncio.wait([decision], timeout=self._server.limits.write_seconds)
            return decision.result() if decision.done() else short_response(HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception as error:
            self._server.failed("admission", error)
            return short_response(HTTPStatus.INTERNAL_SERVER_ERROR)
        finally:
            decision.cancel()

    async def _await_another(self) -> None:
        self._http.start_next_cycle()
        unread, has_ended = self._http.trailing_data
        self._is_idle = not unread and not has_ended
        self._allow(self._server.limits.idle_seconds if self._is_idle else self._server.limits.head_seconds)
        await asyncio.sleep(0)  # other clients come between two requests of one, also where the next is always there

    # --- answers ---

    async def _send(self, response: Response) -> None:
        headers = [
            ("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),  # English: nothing sets a locale
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *self._server.headers,
            *response.headers,
        ]
        if self._is_last:
            headers.append(("Connection", "close"))
        body = b"" if self._is_head else response.body
        answer = h11.Response(status_code=response.status, headers=headers, reason=response.status.phrase)
        head = self._http.send(answer) or b""
        self._http.send(h11.Data(data=body))
        self._http.send(h11.EndOfMessage())
        self.sending, self._sending_since = True, asyncio.get_running_loop().time()
        self._allow(self._server.limits.write_seconds)
        for part in (head + body[:_WRITE_BYTES], memoryview(body)[_WRITE_BYTES:]):
            left = memoryview(part)
            while left:
                left = left[await self._step(partial(self.sock.send, left[:_WRITE_BYTES]), writes=True) :]
        self.sending = False

    async def _say_goodbye(self) -> None:
        """Say that nothing follows, and read away what still comes, in turns with the other clients.

        Raises:
            asyncio.TimeoutError: it does not end.
        """
        self._allow(_LINGER_SECONDS)
        if isinstance(self.sock, ssl.SSLSocket):
            with suppress(OSError, ValueError):  # it would wait for the client's own goodbye
                self.sock.unwrap()
        self.sock.shutdown(socket.SHUT_WR)
        while await self._step(partial(self.sock.recv, _RECEIVE_BYTES)):
            if asyncio.get_running_loop().time() > self.until:
                raise asyncio.TimeoutError
            await asyncio.sleep(0)  # from who sends without a pause there is always more to read


def _has_left(sock: socket.socket) -> bool:
    """Whether the other side of a unix socket has closed it; one that only writes no more may still read."""
    poll = select.poll()
    poll.register(sock, 0)
    return any(what & select.POLLHUP for _, what in poll.poll(0))


def _set(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class HttpServer:
    """Serves GET and HEAD of a few fixed paths over HTTP/1.1; another one may take further methods.

    Args:
        routes: The handler of each path.
        open_paths: Paths for which no request is judged, and that earn no place.
    """

    methods: Sequence[str] = ("GET", "HEAD")

    def __init__(
        self, routes: Mapping[str, Handler], limits: Limits | None = None, open_paths: Sequence[str] = ()
    ) -> None:
        self.limits = limits or Limits()
        self.headers: Sequence[tuple[str, str]] = COMMON_HEADERS
        self.access = Access()
        self.open_paths = frozenset(open_paths)
        self.handshakes: Turns[str, None] = Turns()
        self.places = Places(self.handshakes)
        self.connections: set[Connection] = set()
        self._routes = dict(routes)
        self._listening: list[socket.socket] = []
        self._reported: set[tuple[str, type[Exception]]] = set()

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._routes)

    def let_in(self, access: Access) -> None:
        """Change the access control: TLS for new connections, everything else for all clients from their next request
        on."""
        if access.identifies != self.access.identifies:
            self.handshakes.forget()
        self.places.identifies = access.identifies
        self.access = access
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
            sockets: Already listening; they belong to the server from now on.

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
        for one in listening:
            one.setblocking(False)
            one.listen(BACKLOG)
            self._listening.append(one)
            self._await_clients(one)
        return [name_of(one) for one in listening]

    def _await_clients(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Take in some who have come; more have their turn when the loop comes round again.

        One alone would wait for all who are here before each of those who came earlier: for seconds, in a crowd.
        """
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self.failed("a new connection", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_NO_DESCRIPTOR_SECONDS, self._await_clients, listening)
                return
            sock.setblocking(False)
            if sock.family == socket.AF_UNIX:
                user = peer_of(sock)
                self.take_in(sock, f"user {user.uid}", user)
                continue
            with suppress(OSError):  # with Nagle's algorithm answers wait 40 ms for an ACK
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.take_in(sock, client_of(address))

    def take_in(self, sock: socket.socket, client: str, peer: Peer | None = None) -> Connection:
        """Serve a client; at the limit the one that holds most places loses one, and never this newest.

        Args:
            sock: Non-blocking; the server's from now on.
            client: Whose share of places and comparisons it takes.
            peer: Who that is, over a unix socket.
        """
        connection = Connection(self, sock, client, peer)
        self.connections.add(connection)
        self.places.open(connection, self.limits.connections)
        return connection

    async def stop(self) -> None:
        """Stop listening and close all connections; answers under way get a second to be finished."""
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._listening.clear()
        self.hang_up()
        if tasks := [one.task for one in self.connections]:
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for connection in self.connections:
            connection.abort()
        if tasks := [one.task for one in self.connections]:
            await asyncio.wait(tasks, timeout=_ABORT_SECONDS)

    # --- what a connection calls ---

    async def respond(self, request: Request) -> Response:
        """The answer to a request; never raises."""
        return self.answer(request)

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

    def used(self, request: Request, connection: Connection) -> None:
        """A request is answered: it earns its client a place, unless everybody may ask it or nothing is there."""
        if request.path not in self._routes:
            return
        if request.path in self.open_paths:
            self.handshakes.completed(connection.client)
        else:
            self.places.earn(connection)

    def closed(self, connection: Connection) -> None:
        """A connection has come to its end."""
        self.connections.discard(connection)
        self.places.close(connection)

    def failed(self, where: str, error: Exception) -> None:
        """Log a failure, once for each place and kind: a client must not be able to fill the log."""
        kind = (where, type(error))
        if kind not in self._reported:
            self._reported.add(kind)
            _log.error("answering %s failed; further failures of this kind are not logged", where, exc_info=error)
