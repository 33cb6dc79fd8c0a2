"""A client that means harm, against the endpoint with TLS and a password: what it says has its answer, and no other.

``tests/exporters/test_http_server.py`` has malformed requests over plain HTTP.
"""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import gc
import io
import os
import random
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import bcrypt
import pytest

from commwatch_exporters.gate import Gate
from commwatch_exporters.http_server import Access, Connection
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.tls_context import TlsEntry, TlsSettings
from commwatch_exporters.web import Endpoint
from support.certificates import Authority
from support.http import Client, authorization, connected, serving
from support.pages import snapshot_of
from support.passwords import SeenPasswords
from support.waiting import comes

pytestmark = pytest.mark.openssl

RIGHT = authorization("prometheus", "right")
HOST = f"Host: node\r\n{RIGHT}\r\n".encode()
SECOND = b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"
"""What an attacker would have taken for a request of its own, behind the end of another."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signed the node's certificate."""
    made = Authority(tmp_path_factory.mktemp("hostile"))
    made.issue("node")
    return made


class Besieged:
    """The endpoint and where it is."""

    def __init__(self, authority: Authority) -> None:
        self.endpoint = Endpoint(
            metrics=MetricsPage(lambda: snapshot_of({("commwatch_simulated", ()): 1})),
            pages={"/": lambda: b"<!doctype html>\n"},
            documents={"/api/v1/snapshot": lambda: b"{}\n"},
        )
        self.passwords = SeenPasswords()
        self.passwords.use({b"prometheus": bcrypt.hashpw(b"right", bcrypt.gensalt(4))})
        folder = authority.file.parent
        entry = TlsEntry(TlsSettings((folder / "node.pem").read_bytes(), (folder / "node.key").read_bytes()))
        self.endpoint.let_in(Access(entry, Gate(self.passwords, None)))
        self.trusting = ssl.create_default_context(cafile=str(authority.file))
        self.port = 0

    async def said(self, sent: bytes) -> bytes:
        """All that comes back."""
        async with connected(self.port, tls=self.trusting) as client:
            client.send(sent)
            return await client.rest()


@asynccontextmanager
async def besieged(authority: Authority) -> AsyncIterator[Besieged]:
    """An endpoint for the time of a block; at its end an honest client is served, and nothing of the others is left."""
    before = len(os.listdir("/proc/self/fd"))
    site = Besieged(authority)
    async with serving(site.endpoint) as site.port:
        yield site
        answer = await site.said(SECOND.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        await comes(lambda: not site.endpoint.connections)
        assert site.passwords.waiting == {}
    site.passwords.close()
    await comes(lambda: len(os.listdir("/proc/self/fd")) <= before)
    gc.collect()
    assert [one for one in gc.get_objects() if isinstance(one, Connection | ssl.SSLSocket)] == []


def statuses(answers: bytes) -> list[int]:
    """The status of each answer, in order; none of them tells how we are made."""
    for secret in (b"Traceback", b'File "', b"/commwatch", b"Error:", b"python"):
        assert secret not in answers
    single = answers.split(b"HTTP/1.1 ")[1:]
    for one in single:
        names = [line.partition(b":")[0].lower() for line in one.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]]
        assert len(names) == len(set(names)), f"a header is given twice: {names}"
    return [int(one.split(b" ", 1)[0]) for one in single]


SHAPES: list[tuple[bytes, int]] = [
    # Where a message ends: two lengths, a length and chunks, lengths and codings that others read otherwise.
    (b"GET /metrics HTTP/1.1\r\nContent-Length: 30\r\nTransfer-Encoding: chunked\r\n%s\r\n0\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n%s\r\n0\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n%s\r\n0\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n%s\r\nffffffffffffffffff\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n%s\r\n", 501),
    (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: identity\r\n%s\r\n", 501),
    (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n%s\r\n", 501),
    (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding:\r\n chunked\r\n%s\r\n0\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding : chunked\r\n%s\r\n0\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\n Transfer-Encoding: chunked\r\n%s\r\n0\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding\x00: chunked\r\n%s\r\n0\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.0\r\nTransfer-Encoding: chunked\r\n%s\r\n0\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 0\r\n%s\r\nhello", 400),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: 0, 5\r\n%s\r\nhello", 400),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: 60\r\n%s\r\n", 413),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: 60\r\nExpect: 100-continue\r\n%s\r\n", 413),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: +0\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: -0\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: 0x0\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: 1_0\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: \xb2\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: 0 0\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n%s\r\n", 400),
    (b"POST /metrics HTTP/1.1\r\nContent-Length: 60\r\n%s\r\n", 405),
    (b"TRACE /metrics HTTP/1.1\r\n%s\r\n", 405),
    (b"CONNECT other:80 HTTP/1.1\r\n%s\r\n", 405),
    # What a request is.
    (b"GET /metrics\r\n\r\n", 400),
    (b"GET /metrics HTTP/0.9\r\n%s\r\n", 505),
    (b"GET /metrics HTTP/1.2\r\n%s\r\n", 505),
    (b"GET  /metrics HTTP/1.1\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1 HTTP/1.1\r\n%s\r\n", 400),
    (b"GET /met rics HTTP/1.1\r\n%s\r\n", 400),
    (b"GET\t/metrics HTTP/1.1\r\n%s\r\n", 400),
    (b"G\x00T /metrics HTTP/1.1\r\n%s\r\n", 400),
    (b" GET /metrics HTTP/1.1\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\n: no name\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nX: a\x00b\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nX: a\rY: b\r\n%s\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nHost: other\r\n%s\r\n", 400),
    # How much it may be.
    (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n%s\r\n", 431),
    (b"GET /metrics HTTP/1.1\r\n" + b"X: " + b"a" * 70_000 + b"\r\n%s\r\n", 431),
    (b"GET /metrics HTTP/1.1\r\n" + b"a:\r\n" * 20_000 + b"%s\r\n", 431),
    (b"A" * 70_000, 431),
    (b"\r\n" * 40_000, 400),
]


def test_shapes_of_requests(authority: Authority) -> None:
    """Each gets one answer with its status and the connection ends: what stands behind it is nobody's request."""
    wrong = []

    async def test() -> None:
        async with besieged(authority) as site:
            for shape, status in SHAPES:
                answers = await site.said(shape.replace(b"%s", HOST) + SECOND)
                if statuses(answers) != [status]:
                    wrong.append((shape[:90], statuses(answers), status))

    asyncio.run(test())

    assert wrong == []


PATHS: list[tuple[bytes, int]] = [
    (b"/metrics", 200),
    (b"/metrics?target=http://other/&module=../../etc/passwd", 200),
    (b"http://other/metrics", 200),
    (b"HTTPS://other:99/metrics", 200),
    (b"http://other", 200),  # the root
    (b"//metrics", 404),
    (b"///", 404),
    (b"/./metrics", 404),
    (b"/../metrics", 404),
    (b"/../../../../etc/passwd", 404),
    (b"/%2e%2e/%2e%2e/etc/passwd", 404),
    (b"/..%2f..%2fetc/passwd", 404),
    (b"/..\\..\\etc\\passwd", 404),
    (b"/%c0%ae%c0%ae/metrics", 404),
    (b"/%6detrics", 404),
    (b"/metrics%00", 404),
    (b"/metrics%00.html", 404),
    (b"/metrics/", 404),
    (b"/metrics/.", 404),
    (b"/metrics;x=1", 404),
    (b"/METRICS", 404),
    (b"/healthz/../metrics", 404),
    (b"/healthz%2f..%2fmetrics", 404),
    (b"/readyz%3f/metrics", 404),
    (b"/api/v1/snapshot", 200),
    (b"/api/v1/snapshot/../../../metrics", 404),
    (b"/debug/pprof/", 404),
    (b"/-/reload", 404),
    (b"/-/quit", 404),
    (b"/probe?target=other:80", 404),
    (b"file:///etc/passwd", 404),
    (b"ftp://other/metrics", 404),
    (b"http:/metrics", 404),
    (b"metrics", 404),
    (b"*", 404),
    (b"?", 404),
    (b"/" + b"a/" * 4000, 404),
    (b"/" + b"%25" * 3000, 404),
    (b"/\xff\xfe", 400),
    (b"/metrics\x00", 400),
]


def test_paths(authority: Authority) -> None:
    """Only paths that exist lead anywhere, and without the password not even these: nothing is decoded or joined."""
    wrong = []

    async def test() -> None:
        async with besieged(authority) as site:
            for path, status in PATHS:
                for header, expected in ((HOST, status), (b"Host: node\r\n", 400 if status == 400 else 401)):
                    request = b"GET " + path + b" HTTP/1.1\r\n" + header + b"Connection: close\r\n\r\n"
                    found = statuses(await site.said(request))
                    if found != [expected]:
                        wrong.append((path[:50], found, expected))

    asyncio.run(test())

    assert wrong == []


def test_wrong_credentials_by_the_hundred(authority: Authority) -> None:
    """Each guess is refused, as wrong or as too many; what is kept of them is bounded, and the right one counts."""
    found: dict[int, int] = {}

    async def guess(client: Client, header: str) -> None:
        client.send(f"GET /metrics HTTP/1.1\r\nHost: node\r\n{header}\r\n\r\n".encode())
        status = (await client.answer()).status
        found[status] = found.get(status, 0) + 1

    async def guess_on(site: Besieged, chance: random.Random) -> None:
        async with connected(site.port, tls=site.trusting) as client:
            for number in range(60):
                user = chance.choice(["prometheus", "root", "", "prometheus" * 50, "\0", "größe"])
                password = chance.choice([str(chance.random()), "x" * chance.randrange(3000), "\0", ""])
                header = authorization(user, password)
                if number % 10 == 0:
                    header = "Authorization: " + chance.choice(
                        ["Basic", "Basic ====", "Digest x", "Basic " + "A" * 5001]
                    )
                await guess(client, header)

    async def test() -> None:
        async with besieged(authority) as site:
            await asyncio.gather(*(guess_on(site, random.Random(number)) for number in range(8)))  # noqa: S311
            assert len(site.passwords._found[False]) <= 256
            assert len(site.passwords._found[True]) == 0

    asyncio.run(test())

    assert sum(found.values()) == 480
    assert set(found) <= {401, 429}
    assert found[401]


def test_a_flood_of_requests_on_one_connection(authority: Authority) -> None:
    """1,000 requests in one go are answered one after the other, while others have their turn."""

    async def test() -> None:
        async with besieged(authority) as site, connected(site.port, tls=site.trusting) as flooding:
            request = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
            flooding.send(request * 1000)
            for _ in range(20):
                assert statuses(await site.said(SECOND[:-2] + b"Connection: close\r\n\r\n")) == [200]
            for _ in range(1000):
                assert (await flooding.answer()).status == 200

    asyncio.run(test())


def test_noise_inside_of_tls(authority: Authority) -> None:
    """Requests with bytes changed, lost and doubled at random get answers or an end, and harm nobody."""
    chance = random.Random(28029)  # noqa: S311  noise, and the same each time

    def noise() -> bytes:
        sent = bytearray(SECOND)
        for _ in range(chance.randrange(1, 6)):
            place, what = chance.randrange(len(sent)), chance.randrange(3)
            sent[place : place + what] = chance.choice([b"", b"\r\n", b"\x00", b":", b" ", chance.randbytes(2)])
        return bytes(sent)

    async def test() -> None:
        async with besieged(authority) as site:
            for _ in range(60):
                answers = await site.said(noise() + b"GET / HTTP/1.0\r\n\r\n")
                assert set(statuses(answers)) <= {200, 400, 401, 404, 405, 413, 505}

    asyncio.run(test())


OUTWARD = (
    (builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "listdir"), (os, "scandir"),
    (socket.socket, "connect"), (socket, "getaddrinfo"), (subprocess.Popen, "__init__"), (os, "posix_spawn"),
    (os, "fork"), (ctypes.CDLL, "__init__"), (os, "kill"),
)  # fmt: skip
"""Ways of a process to what is not its own."""


def test_nothing_in_a_request_reaches_beyond_the_process(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """While every path is asked for with every trick, no file is opened but for the use of this process, no program
    started, no host called."""
    reached: list[str] = []

    def noticing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noticed(*arguments: Any, **options: Any) -> Any:
            reached.append(f"{name}{arguments}")
            return function(*arguments, **options)

        return noticed

    async def test() -> None:
        async with besieged(authority) as site, connected(site.port, tls=site.trusting) as client:
            client.send(SECOND)
            assert (await client.answer()).status == 200  # what is imported at the first use is here now
            with monkeypatch.context() as noticed:
                for owner, name in OUTWARD:
                    noticed.setattr(owner, name, noticing(name, getattr(owner, name)))
                for path, status in PATHS:
                    if status != 400:  # these end the connection
                        client.send(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
                        assert (await client.answer()).status == status

    asyncio.run(test())

    assert [one for one in reached if "'/proc/self/" not in one] == []
