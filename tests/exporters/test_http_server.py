"""The HTTP server and its clients, well-behaved and not, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import socket
import ssl
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import pytest

from commwatch_exporters.http_server import Access, HttpServer, Limits, Request, Response
from commwatch_exporters.listen import BACKLOG, bind
from commwatch_exporters.tls_context import TlsEntry, TlsSettings
from support.certificates import Authority
from support.http import Client, ask, connected, serving
from support.passes import in_one_pass
from support.waiting import PATIENCE_SECONDS, comes

GET = b"GET /text HTTP/1.1\r\nHost: node\r\n\r\n"
LARGE = b"0123456789abcdef" * 2**20  # 16 MiB: more than the kernel takes for a reader that does not read
SOON = 0.05
"""A deadline, seconds, for tests that wait for it."""


def server(limits: Limits | None = None) -> HttpServer:
    """A server with a page of each kind."""

    def fail(_: Request) -> Response:
        raise RuntimeError("secret of the handler")

    routes = {
        "/text": lambda _: Response(HTTPStatus.OK, b"text\n"),
        "/large": lambda _: Response(HTTPStatus.OK, LARGE),
        "/fail": fail,
        "/open": lambda _: Response(HTTPStatus.OK, b"open\n"),
        "/echo": lambda request: Response(HTTPStatus.OK, request.headers.get("x-word", "").encode()),
    }
    return HttpServer(routes, limits, open_paths=["/open"])


@dataclass(frozen=True)
class Wire:
    """How clients speak to a server."""

    entry: TlsEntry | None = None
    client: ssl.SSLContext | None = None

    def serves(self, limits: Limits | None = None) -> HttpServer:
        """As ``server``, for such clients."""
        made = server(limits)
        made.let_in(Access(self.entry))
        return made


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(None, id="plain"),
        pytest.param(ssl.TLSVersion.TLSv1_2, id="TLS 1.2", marks=pytest.mark.openssl),
        pytest.param(ssl.TLSVersion.TLSv1_3, id="TLS 1.3", marks=pytest.mark.openssl),
    ],
)
def wire(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Wire:
    """Plain HTTP, and over each version of TLS."""
    if request.param is None:
        return Wire()
    authority = Authority(tmp_path_factory.mktemp("tls"))
    node = authority.issue("node")
    context = ssl.create_default_context(cafile=str(authority.file))
    context.minimum_version = context.maximum_version = request.param
    return Wire(TlsEntry(TlsSettings(node.certificate.read_bytes(), node.key.read_bytes())), context)


def run(test: Coroutine[Any, Any, None]) -> None:  # Any: what Coroutine's first two parameters are does not matter here
    """Run a test in an event loop whose own complaints fail it."""

    async def watched() -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await test

        assert complaints == []

    asyncio.run(watched())


def test_requests_on_one_connection(wire: Wire) -> None:
    """A connection is kept, and requests that come together are answered in their order."""

    async def test() -> None:
        async with serving(wire.serves()) as port, connected(port, tls=wire.client) as client:
            client.send(GET)
            assert ((first := await client.answer()).status, first.body) == (200, b"text\n")
            client.send(b"GET /none HTTP/1.1\r\nHost: node\r\n\r\n" + GET * 500 + b"GET /no")
            assert (await client.answer()).status == 404
            assert [(await client.answer()).body for _ in range(500)] == [b"text\n"] * 500
            client.send(b"ne HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
            assert (await client.answer()).status == 404
            assert await client.rest() == b""

    run(test())


def test_a_request_again_meets_the_access_of_now() -> None:
    """It is judged again, and its answer has the headers of now."""

    async def test() -> None:
        one = server()
        async with serving(one) as port, connected(port) as client:
            for _ in range(2):
                client.send(GET)
                assert (await client.answer()).status == 200
            refused = Response(HTTPStatus.UNAUTHORIZED, b"no\n")

            async def refuse(_: Request) -> Response:
                return refused

            one.let_in(Access(admit=refuse, headers={"X-Word": "now"}))
            client.send(GET)
            answer = await client.answer()
            assert (answer.status, answer.headers["x-word"], answer.body) == (401, "now", b"no\n")

    run(test())


def test_head_has_the_headers_of_get_and_no_body() -> None:
    """HEAD tells the length of the page and sends none of it."""

    async def test() -> None:
        async with serving(server()) as port:
            answer = await ask(port, "/text", method="HEAD")
            assert (answer.status, answer.headers["content-length"]) == (200, "5")

    run(test())


@in_one_pass("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "BREW"])
def test_other_methods(method: str) -> None:
    """They are refused with the methods that are allowed."""

    async def test() -> None:
        async with serving(server()) as port:
            answer = await ask(port, "/text", method=method)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")

    run(test())


@in_one_pass(
    "sent, status",
    [
        (b"GET /\r\n\r\n", 400),  # HTTP/0.9
        (b"GET / HTTP/2.0\r\nHost: node\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\nHost: node\r\n\r\n", 505),
        (b"GET / HTTP/x.y\r\nHost: node\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: \x00\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # a TLS greeting
        (b"\r\n\r\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000, 431),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /text HTTP/1.1\r\nHost: node\r\n" + b"a: b\r\n" * 4000 + b"\r\n", 431),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nX: " + b"a" * 500_000 + b"\r\n\r\n", 431),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 200),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nX: " + b"a" * 16_000 + b"\r\nConnection: close\r\n\r\n", 200),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nUpgrade: h2c\r\nConnection: Upgrade, close\r\n\r\n", 200),
        (b"GET /text HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_strange_requests(sent: bytes, status: int) -> None:
    """Each gets its status, then the connection is closed; the next client is served."""

    async def test() -> None:
        async with serving(server()) as port:
            async with connected(port) as client:
                client.send(sent)
                answer = await client.answer()
                assert (status, b"") == (answer.status, await client.rest())
                assert answer.headers["connection"] == "close"
                assert b"Traceback" not in answer.body
            assert (await ask(port, "/text")).status == 200

    run(test())


@in_one_pass(
    "head, status",
    [
        (b"GET /text HTTP/1.1\nHost: node\r\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\n\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\n\n", 400),
        (b"GET /text HTTP/1.0\n\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nX-Word: a\r\n b\r\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nX-Word: a\r\n\tb\r\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nX-Word: a\r\n \r\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nX-Word: a\n b\r\n\r\n", 400),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nX-Word: \t a\tb \t\r\n\r\n", 200),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nX-Word:\r\n\r\n", 200),
        (b"GET /text HTTP/1.1\r\nHost: 127.0.0.1:28029\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n", 200),
        (
            b"GET /text HTTP/1.1\r\nHost: node:28029\r\nUser-Agent: Prometheus/3.1.0\r\n"
            b"Accept: application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,*/*;q=0.1\r\n"
            b"Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n",
            200,
        ),
        (b"GET /text HTTP/1.1\r\nHost: node\r\nUser-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n\r\n", 200),
    ],
)
@in_one_pass("at_once", [4096, 1])
def test_lines_of_a_request(head: bytes, status: int, at_once: int) -> None:
    """Each ends with CR and LF and is whole: what a proxy might read otherwise is refused, however it comes."""

    async def test() -> None:
        async with serving(server()) as port, connected(port) as client:
            client.send(GET)  # a request before changes nothing
            assert (await client.answer()).status == 200
            for place in range(0, len(head), at_once):
                client.send(head[place : place + at_once])
                await asyncio.sleep(0)
            assert (await client.answer()).status == status

    run(test())


def test_repeated_headers_are_joined() -> None:
    """A handler sees a header once."""

    async def test() -> None:
        async with serving(server()) as port:
            assert (await ask(port, "/echo", "X-Word: a", "x-word: b")).body == b"a, b"

    run(test())


def test_every_answer_has_the_security_headers() -> None:
    """No cache, no sniffing, no foreign content: on pages and on refusals."""

    async def test() -> None:
        async with serving(server()) as port:
            for path in ("/text", "/none", "/fail"):
                headers = (await ask(port, path)).headers
                assert headers["cache-control"] == "no-store"
                assert headers["x-content-type-options"] == "nosniff"
                assert headers["content-security-policy"].startswith("default-src 'none';")
                age = datetime.now(timezone.utc) - parsedate_to_datetime(headers["date"])
                assert abs(age.total_seconds()) < PATIENCE_SECONDS

    run(test())


def test_a_handler_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """Each request gets a bare 500, the log gets one record, and the rest is served."""

    async def test() -> None:
        async with serving(server()) as port:
            answers = [await ask(port, "/fail") for _ in range(3)]
            assert [(one.status, one.body) for one in answers] == [(500, b"500 Internal Server Error\n")] * 3
            assert (await ask(port, "/text")).status == 200

    with caplog.at_level(logging.ERROR, logger="commwatch.web"):
        run(test())

    assert len(caplog.records) == 1
    assert "/fail" in caplog.messages[0]
    assert "secret of the handler" in caplog.text


def test_a_request_that_never_ends() -> None:
    """Its deadline runs from the first byte, however often another one comes."""

    async def test() -> None:
        async with serving(server(Limits(head_seconds=4 * SOON))) as port, connected(port) as client:
            client.send(b"GET /text HTTP/1.1\r\n")
            answer = asyncio.create_task(client.answer())
            while not answer.done():
                client.send(b"X: y\r\n")
                await asyncio.sleep(SOON / 2)
            assert answer.result().status == 408

    run(test())


def test_a_silent_client(wire: Wire) -> None:
    """A connection without a request is closed without a word, at a deadline that counts a handshake too."""

    async def test() -> None:
        served = wire.serves(Limits(head_seconds=4 * SOON))
        async with serving(served) as port, connected(port, tls=wire.client) as client:
            assert await client.rest() == b""

    run(test())


def test_the_first_request_has_one_deadline() -> None:
    """It runs from the connection on: who speaks at its end has not won another."""

    async def test() -> None:
        listening = server()
        async with serving(listening) as port, connected(port) as client:
            client.send(GET[:1])
            while not (connections := list(listening.connections)):
                await asyncio.sleep(0)
            (connection,) = connections
            until = connection.until
            while not connection._http.trailing_data[0]:
                await asyncio.sleep(0)
            assert connection.until == until

            client.send(GET[1:])
            await client.answer()
            client.send(GET[:1])
            while not connection._http.trailing_data[0]:
                await asyncio.sleep(0)
            assert connection.until > until

    run(test())


def test_an_idle_connection() -> None:
    """After an answer the next request may take the idle time, then the connection is closed."""

    async def test() -> None:
        async with serving(server(Limits(idle_seconds=SOON))) as port, connected(port) as client:
            client.send(GET)
            assert (await client.answer()).status == 200
            assert await client.rest() == b""

    run(test())


def test_a_client_that_reads_slowly(wire: Wire) -> None:
    """It gets every byte, though the server hands over a little at a time."""

    async def test() -> None:
        digest = hashlib.sha256()
        async with serving(wire.serves()) as port, connected(port, tls=wire.client) as client:
            client.send(b"GET /large HTTP/1.1\r\nHost: node\r\n\r\n" + GET)
            await client.reader.readuntil(b"\r\n\r\n")
            left = len(LARGE)
            while left:
                piece = await client.reader.read(min(left, 300_000))
                digest.update(piece)
                left -= len(piece)
            assert hashlib.sha256(LARGE).digest() == digest.digest()
            assert (await client.answer()).body == b"text\n"

    run(test())


def test_a_client_that_does_not_read(wire: Wire) -> None:
    """It is cut off at its deadline; others are served meanwhile, and the server keeps little for it."""

    async def test() -> None:
        served = wire.serves(Limits(write_seconds=4 * SOON))
        async with serving(served) as port, connected(port, tls=wire.client) as stuck:
            stuck.stop_reading()
            stuck.send(b"GET /large HTTP/1.1\r\nHost: node\r\n\r\n")
            await asyncio.sleep(SOON)
            assert (await ask(port, "/text", tls=wire.client)).status == 200
            await asyncio.sleep(4 * SOON)
            stuck.read_again()
            assert len(await stuck.rest()) < len(LARGE)

    run(test())


def test_a_client_that_has_said_all() -> None:
    """A client that closes its sending side still gets its answer."""

    async def test() -> None:
        async with serving(server()) as port, connected(port) as client:
            client.send(GET)
            client.writer.write_eof()
            assert (await client.answer()).body == b"text\n"
            assert await client.rest() == b""

    run(test())


def test_300_half_open_requests() -> None:
    """A scrape is answered while they wait."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(server()))
            for number in range(300):
                client = await stack.enter_async_context(connected(port))
                client.send(b"GET /text HTTP/1.1\r\nHost: n"[: number % 28])
            assert (await ask(port, "/text")).status == 200

    run(test())


def test_room_for_a_new_client() -> None:
    """At the limit a client without a request goes first, then the one longest unused; the newest is served."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(server(Limits(connections=3))))
            clients = [await stack.enter_async_context(connected(port)) for _ in range(3)]
            old, silent, recent = clients
            for client in (old, recent):
                client.send(GET)
                assert (await client.answer()).status == 200
            fourth = await stack.enter_async_context(connected(port))
            fourth.send(GET)
            assert (await fourth.answer()).status == 200
            assert await silent.rest() == b""

            old.send(GET)
            assert (await old.answer()).status == 200
            fifth = await stack.enter_async_context(connected(port))
            fifth.send(GET)
            assert (await fifth.answer()).status == 200
            assert await recent.rest() == b""

    run(test())


def test_the_newest_is_served_while_all_are_being_answered() -> None:
    """A client that does not read its answer cannot keep another one out, not even for a moment."""

    async def test() -> None:
        crowded = server(Limits(connections=1))
        async with serving(crowded) as port, connected(port) as busy:
            busy.stop_reading()
            busy.send(b"GET /large HTTP/1.1\r\nHost: node\r\n\r\n")
            await comes(lambda: any(one.sending for one in crowded.connections))
            assert (await ask(port, "/text")).status == 200
            busy.read_again()
            assert len(await busy.rest()) < len(LARGE)

    run(test())


async def crowd(stack: AsyncExitStack, port: int, places: Mapping[str, int], path: str) -> list[Client]:
    """So many connections from each address, each of which has asked for a path."""
    clients = []
    for address, count in places.items():
        for _ in range(count):
            client = await stack.enter_async_context(connected(port, local=address))
            client.send(f"GET {path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
            assert (await client.answer()).status == 200
            clients.append(client)
    return clients


@pytest.mark.parametrize("path", ["/text", "/open"])
def test_who_holds_most_places_loses_one(path: str) -> None:
    """At the limit new connections push out those of the client with most, whatever they asked, and no other's."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(server(Limits(connections=10))))
            (kept,) = await crowd(stack, port, {"127.0.0.9": 1}, "/text")
            flood = await crowd(stack, port, {"127.0.0.2": 6, "127.0.0.3": 3}, path)
            for _ in range(3):  # two of 127.0.0.2 for others and one for itself: it still has most
                await crowd(stack, port, {"127.0.0.4": 1}, path)
            assert [await one.rest() for one in flood[:3]] == [b""] * 3
            await crowd(stack, port, {"127.0.0.2": 20}, path)
            kept.send(GET)
            assert (await kept.answer()).status == 200
            assert (await ask(port, "/text", local="127.0.0.9")).status == 200

    run(test())


def test_who_waits_to_be_let_in_waits_for_few_turns() -> None:
    """In a crowd each turn of the loop takes long: 128 who came before must not be 128 turns."""

    async def test() -> None:
        listening = server()
        (waiting,) = bind("127.0.0.1:0")
        with contextlib.ExitStack() as stack:
            for _ in range(BACKLOG):
                stack.enter_context(socket.create_connection(waiting.getsockname()))
            await listening.start((), [waiting])
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(listening.connections) == BACKLOG
            await listening.stop()

    run(test())


@pytest.mark.parametrize("path", ["/text", "/open"])
def test_of_equals_the_newest_is_served(path: str) -> None:
    """One connection each of more addresses than there are places: a scraper with two is served on both."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(server(Limits(connections=10))))
            (kept,) = await crowd(stack, port, {"127.0.0.9": 1}, "/text")
            for number in range(1, 30):
                await crowd(stack, port, {f"127.0.1.{number}": 1}, path)
                if number % 6 == 0:  # sooner than ten others have come
                    kept.send(GET)
                    assert (await kept.answer()).status == 200
            fresh = await stack.enter_async_context(connected(port, local="127.0.0.9"))
            await crowd(stack, port, {f"127.0.2.{number}": 1 for number in range(1, 6)}, path)
            fresh.send(GET)
            assert (await fresh.answer()).status == 200

    run(test())


def test_who_has_shown_who_it_is_keeps_eight_places() -> None:
    """A scraper that was let in keeps several connections, also while strangers from many addresses hold fewer each."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            listening = server(Limits(connections=20))
            refused = Response(HTTPStatus.UNAUTHORIZED, b"who?\n")

            async def ask_for_the_word(request: Request) -> Response | None:
                return None if "x-word" in request.headers else refused

            listening.let_in(Access(admit=ask_for_the_word, identifies=True))
            port = await stack.enter_async_context(serving(listening))
            request = b"GET /text HTTP/1.1\r\nHost: node\r\nX-Word: right\r\n\r\n"
            kept = [await stack.enter_async_context(connected(port, local="127.0.0.9")) for _ in range(8)]
            for client in kept:
                client.send(request)
                assert (await client.answer()).status == 200
            await crowd(stack, port, {f"127.0.1.{number}": 2 for number in range(1, 30)}, "/open")
            for client in kept:
                client.send(request)
                assert (await client.answer()).status == 200

    run(test())


def test_who_takes_long_for_an_answer_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit before one that is idle: else a few clients that do not read would keep every scraper out."""
    monkeypatch.setattr("commwatch_exporters.http_server._SLOW_SECONDS", 0.0)

    async def test() -> None:
        async with AsyncExitStack() as stack:
            listening = server(Limits(connections=2))
            port = await stack.enter_async_context(serving(listening))
            kept, busy = [await stack.enter_async_context(connected(port)) for _ in range(2)]
            kept.send(GET)
            assert (await kept.answer()).status == 200
            busy.stop_reading()
            busy.send(b"GET /large HTTP/1.1\r\nHost: node\r\n\r\n")
            while not any(one.sending for one in listening.connections):
                await asyncio.sleep(0)
            assert (await ask(port, "/text")).status == 200
            kept.send(GET)
            assert (await kept.answer()).status == 200
            busy.read_again()
            assert len(await busy.rest()) < len(LARGE)

    run(test())


def test_stop_with_open_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle, half-open and stuck clients do not hold up the stop, and nothing listens after it."""
    monkeypatch.setattr("commwatch_exporters.http_server._STOP_SECONDS", SOON)

    async def test() -> None:
        stopping = server()
        (address,) = await stopping.start(["127.0.0.1:0"])
        port = int(address.rpartition(":")[2])
        async with connected(port) as idle, connected(port) as half_open, connected(port) as stuck:
            idle.send(GET)
            await idle.answer()
            half_open.send(b"GET /te")
            stuck.stop_reading()
            stuck.send(b"GET /large HTTP/1.1\r\nHost: node\r\n\r\n")
            await comes(lambda: any(one.sending for one in stopping.connections))
            await asyncio.wait_for(stopping.stop(), PATIENCE_SECONDS)
            with pytest.raises(ConnectionRefusedError):
                await ask(port, "/text")

    run(test())


def test_stop_lets_an_answer_end() -> None:
    """A client that is reading gets the whole page, though the server is stopping."""

    async def test() -> None:
        stopping = server()
        (address,) = await stopping.start(["127.0.0.1:0"])
        async with connected(int(address.rpartition(":")[2])) as client:
            client.stop_reading()
            client.send(b"GET /large HTTP/1.1\r\nHost: node\r\n\r\n")
            await comes(lambda: any(one.sending for one in stopping.connections))
            stop = asyncio.create_task(stopping.stop())
            await asyncio.sleep(0)
            client.read_again()
            assert len(LARGE) == len((await client.answer()).body)
            client.writer.close()
            await stop

    run(test())


def test_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Who comes meanwhile waits with the kernel and is served later; the log says it once."""
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))] * 3
    accept = socket.socket.accept

    def fail_first(listening: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr("commwatch_exporters.http_server._NO_DESCRIPTOR_SECONDS", SOON / 5)
    monkeypatch.setattr(socket.socket, "accept", fail_first)

    async def test() -> None:
        async with serving(server()) as port:
            assert (await ask(port, "/text")).status == 200

    with caplog.at_level(logging.ERROR, logger="commwatch.web"):
        run(test())
    assert failures == []
    assert [record.getMessage() for record in caplog.records] == [
        "answering a new connection failed; further failures of this kind are not logged"
    ]


class _Endless(socket.socket):
    """A client of which there is always more to read, as of one whose network is faster than this process."""

    said = b""
    """Again and again."""
    pieces = 0

    def recv(self, most: int, flags: int = 0, /) -> bytes:
        """What comes next; it ends where nobody else has had a turn for long."""
        self.pieces += 1
        return self.said if self.pieces < 5000 else b""

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Take all."""
        return len(data)


WHOLE = b"GET /text HTTP/1.1\r\nHost: node\r\nX: " + b"a" * 100 + b"\r\n\r\n"


@pytest.mark.parametrize("said", [WHOLE, b"nonsense\r\n\r\n"], ids=["whole requests", "after the last answer"])
def test_a_client_that_sends_without_a_pause(said: bytes) -> None:
    """Others have their turn after each piece, and what follows the last answer is read away for a time only."""

    async def test() -> None:
        listening = server()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with ours, theirs:
            client = _Endless(fileno=ours.detach())
            client.setblocking(False)
            client.said = said
            connection = listening.take_in(client, "127.0.0.2")
            async with serving(listening) as port:
                assert (await ask(port, "/text")).status == 200
                assert client.pieces < 5000
                if said is WHOLE:
                    connection.abort()
                await comes(lambda: connection not in listening.connections)

    run(test())


def test_clients_that_reset() -> None:
    """A client that vanishes in the middle of an answer or a request leaves nothing behind."""

    async def test() -> None:
        vanishing = server()
        async with serving(vanishing) as port:
            for sent in (b"GET /large HTTP/1.1\r\nHost: node\r\n\r\n", b"GET /te", b"", GET):
                async with connected(port) as client:
                    client.send(sent)
                    await asyncio.sleep(SOON / 5)
            assert (await ask(port, "/text")).status == 200
            await comes(lambda: not vanishing.connections)

    run(test())
