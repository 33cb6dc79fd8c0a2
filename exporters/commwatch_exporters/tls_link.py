"""TLS between a client's socket and its connection; one slow or hostile handshake holds up nobody.

asyncio's own TLS keeps a buffer of 256 KiB for each client and does all handshakes that have arrived in one go. Here a
client costs what OpenSSL keeps for it, and between two steps of handshakes everybody else has a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

from commwatch_exporters.http_connection import Connection
from commwatch_exporters.memory import give_back_memory
from commwatch_exporters.tls_context import TlsSettings, client_is_allowed, make_context

_log = logging.getLogger("commwatch.web")

_HANDSHAKE_BYTES = 65536  # greeting and certificates of a client; OpenSSL alone would keep 200 KiB of them
_SESSIONS_OF_A_CONTEXT = 32  # of TLS 1.2, up to 11 kB each: it would keep 20,000, and Python cannot forbid it
_UNREAD_BYTES = 65536  # of TLS's own messages, for a client that has us answer and does not read
_RECORD_BYTES = 16384
_CROWD = 64  # clients whose leaving is worth tidying up: OpenSSL frees 50 KiB of each, and the C library keeps it
_TIDY_SECONDS = 5.0  # after most have left, and so the least time between two times: meanwhile nobody is served

_PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 46\r\n"
    b"Connection: close\r\n\r\n400 Bad Request: this port speaks HTTPS only.\n"
)


class TlsEntry:
    """Puts TLS beneath the connections of a server.

    Args:
        settings: Certificate, key and choices.
        allowed_names: Alternative names of client certificates that may come in; empty: any that we trust.

    Raises:
        TlsError: as in ``make_context``.
    """

    def __init__(self, settings: TlsSettings, allowed_names: frozenset[str] = frozenset()) -> None:
        self.allowed_names = allowed_names
        self._settings = settings
        self._context = make_context(settings)
        self._waiting: dict[Callable[[], None], None] = {}  # first come, first served
        self._will_serve = False
        self._here = self._most = 0
        self._will_tidy = False

    def __call__(self, connection: Connection, receive_buffer: memoryview) -> TlsLink:
        """What the event loop is to see in place of a connection."""
        return TlsLink(self, connection, receive_buffer)

    def begin(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """TLS for one more client."""
        if self._context.session_stats()["number"] >= _SESSIONS_OF_A_CONTEXT:
            self._context = make_context(self._settings)
        return self._context.wrap_bio(incoming, outgoing, server_side=True)

    def came(self) -> None:
        """One client more."""
        self._here += 1
        self._most = max(self._most, self._here)

    def left(self) -> None:
        """One client less; after a crowd has left, its memory is the system's again."""
        self._here -= 1
        if self._most >= _CROWD and self._here <= self._most // 4 and not self._will_tidy:
            self._will_tidy = True
            asyncio.get_running_loop().call_later(_TIDY_SECONDS, self._tidy)

    def _tidy(self) -> None:
        self._will_tidy = False
        self._most = self._here
        give_back_memory()

    def take_turn(self, step: Callable[[], None]) -> None:
        """Do a step of a handshake as soon as it is its turn: one each time the event loop comes round."""
        self._waiting[step] = None
        self._serve_on()

    def give_up_turn(self, step: Callable[[], None]) -> None:
        """The client of a step has gone: who connects and leaves, again and again, must not make the queue long."""
        self._waiting.pop(step, None)

    def _serve_on(self) -> None:
        if self._waiting and not self._will_serve:
            self._will_serve = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._will_serve = False
        if not self._waiting:  # all have left
            return
        step = next(iter(self._waiting))
        del self._waiting[step]
        try:
            step()
        finally:
            self._serve_on()


class TlsLink(asyncio.BufferedProtocol):
    """A protocol to the event loop, a transport to the connection."""

    def __init__(self, entry: TlsEntry, connection: Connection, receive_buffer: memoryview) -> None:
        self._entry = entry
        self._connection = connection
        self._receive_buffer = receive_buffer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None  # not before the first byte: a silent client costs nothing
        self._is_open = False
        self._has_ended = False  # the client sends no more, or we read no more
        self._handshake_bytes = 0

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection counts from now on, and its deadline runs."""
        self._transport = cast(asyncio.Transport, transport)
        self._entry.came()
        self._connection.connection_made(cast(asyncio.BaseTransport, self))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop is to put what arrives."""
        return self._receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take in what has arrived."""
        if self._has_ended:
            return
        self._incoming.write(self._receive_buffer[:nbytes])
        if self._is_open:
            self._deliver()
            return
        self._handshake_bytes += nbytes
        if self._handshake_bytes > _HANDSHAKE_BYTES:
            self.abort()
            return
        self._transport.pause_reading()  # what would come meanwhile stays with the kernel
        self._entry.take_turn(self._handshake)

    def eof_received(self) -> bool:
        """The client sends no more; True keeps the connection for an answer under way."""
        if not self._is_open:
            return False
        return self._end()

    def pause_writing(self) -> None:
        """The kernel takes no more for now."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The kernel has taken all that was handed over."""
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, and with it what OpenSSL kept for it."""
        self._has_ended = True
        self._entry.give_up_turn(self._handshake)
        self._connection.connection_lost(exc)
        del self._connection  # each knows the other: without this both would wait for the garbage collector
        self._tls = None
        self._incoming = self._outgoing = ssl.MemoryBIO()
        self._entry.left()

    # --- the handshake ---

    def _handshake(self) -> None:
        if self._transport.is_closing():
            return
        try:
            if self._tls is None:
                self._tls = self._entry.begin(self._incoming, self._outgoing)
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            self._transport.resume_reading()
            return
        except (ssl.SSLError, OSError) as error:
            self._fail(error)
            return
        self._flush()
        allowed_names = self._entry.allowed_names
        if allowed_names and not client_is_allowed(self._tls.getpeercert(), allowed_names):
            _log.debug("%s: no name of its certificate is in client_allowed_sans", self._peer())
            self.close()
            return
        self._is_open = True
        self._transport.resume_reading()
        self._deliver()  # a request may have come together with the end of the handshake

    def _fail(self, error: Exception) -> None:
        _log.debug("%s: TLS handshake failed: %s", self._peer(), error)
        self._has_ended = True
        if getattr(error, "reason", "") in ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST"):
            self._transport.write(_PLAIN_ANSWER)
        else:
            self._flush()  # the alert that says why
        self._transport.close()

    def _peer(self) -> str:
        return str(self._transport.get_extra_info("peername"))

    # --- what comes in ---

    def _deliver(self) -> None:
        """Hand what has been deciphered to the connection."""
        tls = cast(ssl.SSLObject, self._tls)
        try:
            while not self._has_ended and (data := tls.read(_RECORD_BYTES)):
                self._connection.received(data)
            ended = not self._has_ended
        except ssl.SSLWantReadError:
            ended = False
        except (ssl.SSLError, OSError) as error:
            self._fail(error)
            return
        self._flush()
        if self._transport.get_write_buffer_size() > _UNREAD_BYTES and not self._connection.sending:
            self.abort()
        elif ended and not self._end():
            self.close()

    def _end(self) -> bool:
        """The client has said all; whether the connection is still needed."""
        if self._has_ended:
            return self._connection.sending
        self._has_ended = True
        return self._connection.eof_received()

    # --- what the connection calls: the part of a transport that it uses ---

    def write(self, data: bytes) -> None:
        """Encipher some bytes and hand them over."""
        tls = self._tls
        if tls is None:
            return
        left = memoryview(data)
        try:
            while left:
                left = left[tls.write(left) :]
        except (ssl.SSLError, OSError) as error:
            self._fail(error)
            return
        self._flush()

    def write_eof(self) -> None:
        """Say that nothing follows."""
        self._say_goodbye()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close as soon as all is sent."""
        self._say_goodbye()
        self._transport.close()

    def _say_goodbye(self) -> None:
        self._has_ended = True
        if self._tls is None:
            return
        with contextlib.suppress(ssl.SSLError):  # it would wait for the client's own goodbye
            self._tls.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())

    def abort(self) -> None:
        """Close now."""
        self._has_ended = True
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Leave what arrives with the kernel."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take in what has arrived."""
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """From how many bytes on ``pause_writing`` is called."""
        self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the socket's transport knows."""
        return self._transport.get_extra_info(name, default)
