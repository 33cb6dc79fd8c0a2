"""TLS over real sockets: honest clients, other people's certificates, and those who never finish."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path

import pytest

from commwatch_exporters.http_server import Access, HttpServer, Limits, Response
from commwatch_exporters.shares import client_of
from commwatch_exporters.tls_context import CURVES, TlsEntry, TlsError, TlsSettings, client_is_allowed, make_context
from support.certificates import Authority, Pair
from support.http import ask, connected, serving
from support.passes import in_one_pass
from support.waiting import PATIENCE_SECONDS, comes

pytestmark = pytest.mark.openssl

GET = b"GET /text HTTP/1.1\r\nHost: node\r\n\r\n"
LARGE = b"0123456789abcdef" * 2**20  # 16 MiB: more than the kernel takes for a reader that does not read
SOON = 0.05
"""A deadline, seconds, for tests that wait for it."""


@dataclass(frozen=True)
class Material:
    """Certificates of this module."""

    authority: Authority
    node: Pair
    client: Pair
    stranger: Pair


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """A node, a client, and a client that somebody else vouches for."""
    folder = tmp_path_factory.mktemp("tls")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    authority = Authority(folder)
    names = "DNS:prometheus,IP:10.0.0.7,IP:fd00::7,URI:spiffe://site/prometheus,email:sre@site"
    return Material(authority, authority.issue("node"), authority.issue("client", names),
                    Authority(elsewhere).issue("client", names))  # fmt: skip


def server(
    material: Material, *, limits: Limits | None = None, allowed: frozenset[str] = frozenset(), clients: bool = False
) -> HttpServer:
    """A server with TLS; with ``clients`` it takes only those with a certificate."""
    made = HttpServer(
        {
            "/text": lambda _: Response(HTTPStatus.OK, b"text\n"),
            "/large": lambda _: Response(HTTPStatus.OK, LARGE),
            "/healthz": lambda _: Response(HTTPStatus.OK, b"ok\n"),
        },
        limits,
        ("/healthz",),
    )
    settings = TlsSettings(
        material.node.certificate.read_bytes(),
        material.node.key.read_bytes(),
        material.authority.file.read_bytes() if clients else b"",
        "required" if clients else "none",
    )
    made.let_in(Access(TlsEntry(settings, allowed)))
    return made


def trusting(material: Material, pair: Pair | None = None) -> ssl.SSLContext:
    """A client that checks the node's certificate and may show one of its own."""
    context = ssl.create_default_context(cafile=str(material.authority.file))
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def test_an_old_version(material: Material) -> None:
    """A client of TLS 1.1 is turned away by the handshake."""
    context = trusting(material)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1

    async def test() -> None:
        async with serving(server(material)) as port:
            with pytest.raises(ssl.SSLError, match=r"(?i)alert.protocol.version"):
                await ask(port, "/text", tls=context)

    asyncio.run(test())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificates(material: Material, version: ssl.TLSVersion) -> None:
    """Only a client whose certificate our authority signed is answered."""

    async def status(port: int, pair: Pair | None) -> int:
        context = trusting(material, pair)
        context.minimum_version = context.maximum_version = version
        return (await ask(port, "/text", tls=context)).status

    async def test() -> None:
        async with serving(server(material, clients=True)) as port:
            assert await status(port, material.client) == 200
            for pair in (None, material.stranger):
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await status(port, pair)
            assert await status(port, material.client) == 200

    asyncio.run(test())


@in_one_pass(
    "allowed, is_let_in",
    [
        ("prometheus", True),
        ("10.0.0.7", True),
        ("fd00::7", True),
        ("spiffe://site/prometheus", True),
        ("sre@site", True),
        ("client", False),  # its common name counts for nothing
        ("prometheus.site", False),
    ],
)
def test_names_of_clients(material: Material, allowed: str, is_let_in: bool) -> None:
    """A certificate that is good must also hold a name of the list, as it is written there."""

    async def test() -> None:
        async with serving(server(material, clients=True, allowed=frozenset({allowed}))) as port:
            context = trusting(material, material.client)
            if is_let_in:
                assert (await ask(port, "/text", tls=context)).status == 200
            else:
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await ask(port, "/text", tls=context)

    asyncio.run(test())


def test_a_certificate_without_names() -> None:
    """It is not let in where names are asked for, and neither is a client without a certificate."""
    assert not client_is_allowed({"subject": ()}, frozenset({"prometheus"}))
    assert not client_is_allowed(None, frozenset({"prometheus"}))
    assert not client_is_allowed({"subjectAltName": (("DirName", "prometheus"),)}, frozenset({"prometheus"}))


@pytest.mark.parametrize("sent", [GET, b"POST / HTTP/1.1\r\nHost: node\r\nContent-Length: 3\r\n\r\nabc"])
def test_plain_http(material: Material, sent: bytes) -> None:
    """A client that speaks plain HTTP gets an answer in plain HTTP."""

    async def test() -> None:
        async with serving(server(material)) as port, connected(port) as client:
            client.send(sent)
            answer = await client.answer()
            assert (answer.status, answer.body) == (400, b"400 Bad Request: this port speaks HTTPS only.\n")
            assert await client.rest() == b""

    asyncio.run(test())


@cache
def hello() -> bytes:
    """What a client says first."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="node").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00" * 500,
        b"\x16\x03\x01\xff\xff" + b"\x01" * 100,  # a record longer than any may be
        b"\x16\x03\x01\x40\x00\x01\x7f\xff\xff" + b"a" * 16380,  # a greeting of 8 MiB
        b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"a" * 60,  # SSL 2
        hello()[:-5] + b"aaaaa" + b"\x17\x03\x03\x00\x05hello",
        hello() * 20,
        hello() + b"\x15\x03\x03\x00\x02\x02\x28",  # it gives up
        hello() + b"\x14\x03\x03\x00\x01\x01" * 5000,
    ],
    ids=["zeros", "long record", "long greeting", "SSL 2", "changed", "repeated", "given up", "changes of cipher"],
)
def test_no_handshake(material: Material, sent: bytes) -> None:
    """Bytes that are no handshake end the connection at once; the next client is served."""

    async def test() -> None:
        async with serving(server(material)) as port:
            async with connected(port) as client:
                client.send(sent)
                assert b"HTTP" not in await client.rest()
            assert (await ask(port, "/text", tls=trusting(material))).status == 200

    asyncio.run(test())


@pytest.mark.parametrize("said", [b"", hello()[:100], hello()], ids=["nothing", "half a greeting", "a greeting"])
def test_a_handshake_that_is_not_finished(material: Material, said: bytes) -> None:
    """Its deadline is that of the first request, and it runs from the connection on."""

    async def test() -> None:
        async with serving(server(material, limits=Limits(head_seconds=4 * SOON))) as port, connected(port) as client:
            start = time.monotonic()
            client.send(said)
            await client.rest()
            assert time.monotonic() - start > 3 * SOON

    asyncio.run(test())


def test_a_handshake_whose_turn_does_not_come(material: Material) -> None:
    """It has the same deadline."""

    async def test() -> None:
        made = server(material, limits=Limits(head_seconds=SOON))
        never = made.handshakes.ask("192.0.2.9", partial(asyncio.sleep, PATIENCE_SECONDS))
        async with serving(made) as port, connected(port) as client:
            client.send(hello())
            assert await client.rest() == b""
            assert not never.done()

    asyncio.run(test())


@in_one_pass("requests", [1, 5])
@in_one_pass("ending", ["goodbye", "end of the stream", "both"])
def test_a_client_that_has_said_all(material: Material, ending: str, requests: int) -> None:
    """A client that ends TLS or its sending side after its requests still gets all answers, and a goodbye."""

    async def test() -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting(material).wrap_bio(incoming, outgoing, server_hostname="localhost")
        async with serving(server(material)) as port, connected(port) as client:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    client.send(outgoing.read())
                    incoming.write(await client.reader.read(65536))
            tls.write(GET * requests)
            if ending != "end of the stream":
                with pytest.raises(ssl.SSLWantReadError):
                    tls.unwrap()
            client.send(outgoing.read())
            if ending != "goodbye":
                client.writer.write_eof()
            incoming.write(await client.rest())
        received = b""
        try:
            while piece := tls.read(65536):  # until the server says goodbye, and so
                received += piece
        except ssl.SSLZeroReturnError:
            return received  # both have
        return received

    answer = asyncio.run(test())

    assert requests == answer.count(b"HTTP/1.1 200 OK\r\n") == answer.count(b"\r\n\r\ntext\n")


def test_300_half_open_handshakes(material: Material) -> None:
    """A scrape on a connection that is there is answered while they wait, and a new one is let in."""

    async def test() -> None:
        greeting = hello()
        context = trusting(material)
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(server(material)))
            kept = await stack.enter_async_context(connected(port, tls=context))
            kept.send(GET)
            assert (await kept.answer()).status == 200
            for number in range(300):
                client = await stack.enter_async_context(connected(port))
                client.send(greeting[: number % len(greeting)])
            kept.send(GET)
            assert (await kept.answer()).status == 200
            assert (await ask(port, "/text", tls=context)).status == 200

    asyncio.run(test())


class Recording(TlsEntry):
    """Notes whose handshakes begin."""

    def __init__(self, settings: TlsSettings) -> None:
        super().__init__(settings)
        self.begun: list[str] = []

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """Begin one."""
        self.begun.append(client_of(sock.getpeername()))
        return super().wrap(sock)


@pytest.mark.parametrize(
    ("crowd", "health_checks"),
    [(1, 0), (32, 0), (32, 5)],
    ids=["of one address", "of 32 addresses", "of 32 addresses, after five checks of health"],
)
def test_handshakes_have_turns_by_address(material: Material, crowd: int, health_checks: int) -> None:
    """A client in the midst of 97 is next as soon as it is accepted, where the others' addresses have failed."""
    settings = TlsSettings(material.node.certificate.read_bytes(), material.node.key.read_bytes())

    async def test() -> None:
        made = server(material)
        entry = Recording(settings)
        made.let_in(Access(entry))
        with ExitStack() as stack:
            async with serving(made) as port:

                def greet(address: str) -> None:
                    client = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS, (address, 0))
                    stack.enter_context(client).sendall(hello())

                for _ in range(health_checks):
                    answer = await ask(port, "/healthz", tls=trusting(material), local="127.0.0.2")
                    assert answer.status == 200
                entry.begun.clear()
                for number in range(crowd):
                    greet(f"127.0.1.{number + 1}")
                await comes(lambda: len(entry.begun) == crowd)
                for number in range(97):
                    greet("127.0.0.2" if number == 48 else f"127.0.1.{number % crowd + 1}")
                await comes(lambda: len(entry.begun) == crowd + 97)
        assert entry.begun[crowd:].index("127.0.0.2") < 48 / 16 + 4  # 16 are accepted at a time

    asyncio.run(test())


@pytest.mark.parametrize(
    ("version", "contexts"), [(ssl.TLSVersion.TLSv1_2, 3), (ssl.TLSVersion.TLSv1_3, 1)], ids=["TLS 1.2", "TLS 1.3"]
)
def test_sessions_that_are_kept(
    material: Material, version: ssl.TLSVersion, contexts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL keeps one for each client of TLS 1.2 without tickets: with the next context they are gone."""
    made: list[ssl.SSLContext] = []

    def make(settings: TlsSettings) -> ssl.SSLContext:
        made.append(make_context(settings))
        return made[-1]

    monkeypatch.setattr("commwatch_exporters.tls_context.make_context", make)
    context = trusting(material)
    context.minimum_version = context.maximum_version = version
    context.options |= ssl.OP_NO_TICKET

    async def test() -> None:
        async with serving(server(material)) as port:
            for _ in range(70):
                assert (await ask(port, "/text", tls=context)).status == 200
                assert made[-1].session_stats()["number"] <= 32

    asyncio.run(test())

    assert len(made) == contexts
    assert sum(one.session_stats()["accept_good"] for one in made) == 70


def test_few_clients_speak_tls_at_a_time(material: Material) -> None:
    """It takes memory: of more clients than may, the one with most loses one, and a scraper is served all the time."""

    async def test() -> None:
        crowded = server(material, limits=Limits(tls_connections=8))
        context = trusting(material)
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(serving(crowded))
            kept = await stack.enter_async_context(connected(port, tls=context, local="127.0.0.9"))
            for number in range(40):
                half = await stack.enter_async_context(connected(port, local=f"127.0.1.{number % 3 + 1}"))
                half.send(hello()[: 1 + number % 5 * 30])
                if number % 10 == 0:
                    kept.send(GET)
                    assert (await kept.answer()).status == 200
                    assert (await ask(port, "/text", tls=context, local="127.0.0.8")).status == 200
            silent = [await stack.enter_async_context(connected(port, local="127.0.1.1")) for _ in range(20)]
            await comes(lambda: sum(one.over_tls for one in crowded.connections) <= 8)
            assert len(crowded.connections) >= len(silent)

    asyncio.run(test())


def test_clients_that_vanish(material: Material) -> None:
    """A client that is gone in the middle of a handshake, a request or an answer leaves nothing behind."""

    async def test() -> None:
        vanishing = server(material)
        context = trusting(material)

        async def vanish(sent: bytes, tls: ssl.SSLContext | None) -> None:
            async with connected(port, tls=tls) as client:
                client.send(sent)
                await asyncio.sleep(SOON / 5)

        async with serving(vanishing) as port:
            for sent in (b"", hello()[:50], hello()):
                await vanish(sent, None)
            for sent in (b"", b"GET /te", GET, b"GET /large HTTP/1.1\r\nHost: node\r\n\r\n"):
                await vanish(sent, context)
            assert (await ask(port, "/text", tls=context)).status == 200
            await comes(lambda: not vanishing.connections)

    asyncio.run(test())


def test_stop_with_open_clients(material: Material) -> None:
    """Idle clients and half handshakes do not hold up the stop, and an answer under way ends."""

    async def test() -> None:
        stopping = server(material)
        (address,) = await stopping.start(["127.0.0.1:0"])
        port = int(address.rpartition(":")[2])
        context = trusting(material)
        async with connected(port, tls=context) as idle, connected(port) as half, connected(port, tls=context) as busy:
            idle.send(GET)
            await idle.answer()
            half.send(hello()[:50])
            busy.stop_reading()
            busy.send(b"GET /large HTTP/1.1\r\nHost: node\r\n\r\n")
            await comes(lambda: any(one.sending for one in stopping.connections))
            stop = asyncio.create_task(stopping.stop())
            await asyncio.sleep(0)
            busy.read_again()
            assert len(LARGE) == len((await busy.answer()).body)
            assert await busy.rest() == b""
            await asyncio.wait_for(stop, PATIENCE_SECONDS)

    asyncio.run(test())


def test_a_curve_that_openssl_does_not_have(material: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named as what cannot be used; a client is not the first to find out."""
    monkeypatch.setitem(CURVES, "X25519", "none")
    settings = TlsSettings(material.node.certificate.read_bytes(), material.node.key.read_bytes(), curve="X25519")

    with pytest.raises(TlsError, match="curve_preferences: this OpenSSL does not offer it"):
        make_context(settings)


def test_the_key_is_not_shown(tmp_path: Path) -> None:
    """Settings that end in a log say nothing of the key."""
    assert "secret" not in repr(TlsSettings(b"certificate", b"secret"))
