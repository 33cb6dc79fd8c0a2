"""One HTTP/1.1 connection: h11 parses, deadlines and sizes are bounded, no client can hold up another."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Protocol, cast

import h11

from commwatch_exporters.clients import client_of
from commwatch_exporters.http_messages import Limits, Request, Response, refusal, request_of, short_response

_WRITE_BYTES = 65536  # handed to the transport at a time, and so the most that it keeps for a slow reader
_SLOW_SECONDS = 1.0  # for an answer, after which a client keeps its place only while there is room
_LINGER_SECONDS = 1.0  # for the client to read the last answer; closing on unread bytes would destroy it

COMMON_HEADERS = (
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)
"""What every answer carries, unless the server is set otherwise."""


class Host(Protocol):
    """What a connection needs of the server that accepted it."""

    limits: Limits
    receive_buffer: memoryview
    """Shared by all connections: the loop fills it and hands it over in one step."""
    headers: Sequence[tuple[str, str]]
    """Of every answer."""

    def admit(self, request: Request, connection: Connection) -> Response | asyncio.Future[Response | None] | None:
        """Why a request is not let in, at once or later; None if it is."""

    def answer(self, request: Request) -> Response:
        """The answer to a request; never raises."""

    def opened(self, connection: Connection) -> None:
        """A client has connected."""

    def used(self, request: Request, connection: Connection) -> None:
        """A request is answered with what it asked for."""

    def closed(self, connection: Connection) -> None:
        """The connection is gone."""

    def failed(self, where: str, error: Exception) -> None:
        """Something raised that should not."""


class _State(enum.Enum):
    CONNECTED = enum.auto()  # nothing has been said
    WAITING = enum.auto()  # for the first byte of a later request
    READING = enum.auto()  # a request has begun
    DECIDING = enum.auto()  # whether a request is let in is being found out
    SENDING = enum.auto()  # an answer is not yet with the kernel
    CLOSING = enum.auto()  # the last answer is sent; whatever still comes is dropped


_BEFORE_REQUEST = (_State.CONNECTED, _State.WAITING, _State.READING)


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, host: Host) -> None:
        self.client = ""
        """Whose share of places and comparisons it takes, from ``client_of``."""
        self.served = False
        """Whether a request was answered that earns a place."""
        self._host = host
        self._limits = host.limits
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=host.limits.head_bytes)
        self._state = _State.CONNECTED
        self._deadline: asyncio.TimerHandle | None = None
        """At ``_due`` or before."""
        self._due = 0.0
        """When what the connection is at must be over, by the clock of the loop."""
        self._unsent = memoryview(b"")
        self._write_paused = False
        self._last_answer = False
        self._sending_since = 0.0
        self._decision: asyncio.Future[Response | None] | None = None

    @property
    def sending(self) -> bool:
        """Whether an answer is under way."""
        return self._state is _State.SENDING

    @property
    def is_slow(self) -> bool:
        """Whether the client has been taking an answer for long."""
        return self.sending and self._loop.time() > self._sending_since + _SLOW_SECONDS

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for a request."""
        self._transport = cast(asyncio.Transport, transport)
        self.client = client_of(transport.get_extra_info("peername"))
        self._transport.set_write_buffer_limits(high=0)  # then a pause says: the kernel has not taken it all
        self._enter(_State.CONNECTED, self._limits.head_seconds)
        self._host.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop is to put what arrives."""
        return self._host.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take in what has arrived."""
        self.received(bytes(self._host.receive_buffer[:nbytes]))

    def received(self, data: bytes) -> None:
        """Take in some bytes."""
        if self._state is not _State.CLOSING:
            self._receive(data)

    def eof_received(self) -> bool:
        """The client sends no more; True keeps the connection for answers that are due."""
        if self._state is not _State.CLOSING:
            self._receive(b"")
        # A request of which only a part has come is given up by now; one that is still to be read is whole.
        return self._state in (_State.READING, _State.DECIDING, _State.SENDING)

    def pause_writing(self) -> None:
        """The kernel takes no more for now."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """The kernel has taken all that was handed over."""
        self._write_paused = False
        if self.sending:
            self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._decision is not None:
            self._decision.cancel()
        self._unsent = memoryview(b"")
        self._state = _State.CLOSING
        self._host.closed(self)

    # --- what the server calls ---

    def finish(self) -> None:
        """Close as soon as no answer is under way."""
        if self.sending:
            self._last_answer = True
        else:
            self.abort()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    # --- requests ---

    def _receive(self, data: bytes) -> None:
        if self._state is _State.CONNECTED and data:
            self._state = _State.READING  # the deadline runs since the connection
        elif self._state is _State.WAITING and data:
            self._enter(_State.READING, self._limits.head_seconds)
        self._http.receive_data(data)
        self._proceed()

    def _proceed(self) -> None:
        """Answer one request, if a whole one has arrived."""
        if self._state not in _BEFORE_REQUEST or self._transport.is_closing():
            return
        unread, _ = self._http.trailing_data
        try:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                left, _ = self._http.trailing_data
                self._handle(event, unread[: len(unread) - len(left)])
            elif isinstance(event, h11.ConnectionClosed):
                self._transport.close()
            else:
                self._transport.resume_reading()
        except h11.RemoteProtocolError as error:
            error.__traceback__ = None  # its frame in h11 refers to it: both would wait for the garbage collector
            self._refuse(HTTPStatus(error.error_status_hint))
        except Exception as error:
            self._host.failed("connection", error)
            self.abort()

    def _handle(self, event: h11.Request, head: bytes) -> None:
        is_head = event.method == b"HEAD"
        refused = refusal(event, head, self._limits)
        if refused is not None:
            self._send(refused, is_head=is_head, close=True)
            return
        self._http.next_event()  # the end of the message: there is no body
        request = request_of(event)
        decision = self._host.admit(request, self)
        if isinstance(decision, asyncio.Future):
            self._enter(_State.DECIDING, self._limits.write_seconds)
            self._transport.pause_reading()
            self._decision = decision
            decision.add_done_callback(partial(self._decided, request, is_head))
        else:
            self._answer(request, is_head, decision)

    def _decided(self, request: Request, is_head: bool, decision: asyncio.Future[Response | None]) -> None:
        self._decision = None
        if self._state is not _State.DECIDING:
            return
        if decision.cancelled():  # at the deadline
            self._answer(request, is_head, short_response(HTTPStatus.SERVICE_UNAVAILABLE))
        elif error := decision.exception():
            self._host.failed("admission", cast(Exception, error))
            self._answer(request, is_head, short_response(HTTPStatus.INTERNAL_SERVER_ERROR))
        else:
            self._answer(request, is_head, decision.result())

    def _answer(self, request: Request, is_head: bool, refused: Response | None) -> None:
        if refused is None:
            self._host.used(request, self)
            self._send(self._host.answer(request), is_head=is_head, close=False)
        else:
            self._send(refused, is_head=is_head, close=False)

    def _refuse(self, status: HTTPStatus) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(short_response(status), is_head=False, close=True)
        else:
            self.abort()

    # --- answers ---

    def _send(self, response: Response, *, is_head: bool, close: bool) -> None:
        headers = [
            ("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),  # English: nothing sets a locale
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *self._host.headers,
            *response.headers,
        ]
        if close:
            headers.append(("Connection", "close"))
        body = b"" if is_head else response.body
        answer = h11.Response(status_code=response.status, headers=headers, reason=response.status.phrase)
        head = self._http.send(answer) or b""
        self._http.send(h11.Data(data=body))
        self._http.send(h11.EndOfMessage())
        self._state = _State.SENDING
        self._transport.write(head + body[:_WRITE_BYTES])
        self._unsent = memoryview(body)[_WRITE_BYTES:]
        self._write()
        if self.sending:
            self._transport.pause_reading()
            self._sending_since = self._loop.time()
            self._enter(_State.SENDING, self._limits.write_seconds)

    def _write(self) -> None:
        while self._unsent and not self._write_paused:
            piece, self._unsent = self._unsent[:_WRITE_BYTES], self._unsent[_WRITE_BYTES:]
            self._transport.write(piece)
        if not self._write_paused:
            self._sent()

    def _sent(self) -> None:
        is_over = self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE
        if self._last_answer or is_over:
            self._enter(_State.CLOSING, _LINGER_SECONDS)
            self._transport.write_eof()
            self._transport.resume_reading()
            return
        self._http.start_next_cycle()
        waiting_bytes, ended = self._http.trailing_data
        if waiting_bytes or ended:
            self._enter(_State.READING, self._limits.head_seconds)
            self._transport.pause_reading()
            self._loop.call_soon(self._proceed)  # not at once: other clients come between two requests of one
        else:
            self._enter(_State.WAITING, self._limits.idle_seconds)
            self._transport.resume_reading()

    # --- deadlines ---

    def _enter(self, state: _State, seconds: float) -> None:
        self._state = state
        self._due = self._loop.time() + seconds
        if self._deadline is None or self._due < self._deadline.when():
            self._set_deadline()

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_at(self._due, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        if self._loop.time() < self._due:  # it was put off since the timer was set
            self._set_deadline()
        elif self._state is _State.READING:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        elif self._decision is not None:
            self._decision.cancel()
        else:
            self.abort()
