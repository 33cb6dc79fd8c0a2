"""Asking another node's endpoint: TLS, passwords, and whatever answers there instead of a daemon."""

from __future__ import annotations

import base64
import http.server
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.errors import CommwatchError, UsageError
from commwatch.state.client import DaemonAbsent
from commwatch.views.top.daemon import Endpoint, Refused, basic_authorization, read_password, tls_context
from commwatch.views.top.frame import Documents
from support.certificates import Authority
from support.passes import in_one_pass
from top.documents import made

MOST_DROPS = 250
"""Of an answer in drops, 5 s long: who has taken them all did not give up."""
SAID = made(("gpu_state", ("0", "0000:17:00.0"), 0.0), now=1_767_261_600.0)
PAGES = {
    "/api/v1/findings": msgspec.json.encode(SAID.findings),
    "/api/v1/probes": msgspec.json.encode(SAID.probes),
    "/api/v1/snapshot": msgspec.json.encode(SAID.snapshot),
}


class Answering(http.server.ThreadingHTTPServer):
    """A daemon's endpoint, or something else."""

    daemon_threads = True

    def __init__(self, pages: dict[str, bytes], status: int, password: str, closes: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages, self.status, self.closes = pages, status, closes
        self.wanted = f"Basic {base64.b64encode(password.encode()).decode()}" if password else ""
        self.connections = 0

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        self.connections += 1
        connection, address = super().get_request()
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in the middle is what some tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Answering

    def do_GET(self) -> None:
        is_known = not self.server.wanted or self.headers.get("Authorization") == self.server.wanted
        body = self.server.pages.get(self.path, b"")
        self.send_response((self.server.status if body else 404) if is_known else 401)
        self.send_header("Content-Length", str(len(body) if is_known else 0))
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        if is_known:
            self.wfile.write(body)
        self.close_connection = self.server.closes

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(
    pages: dict[str, bytes] = PAGES, status: int = 200, password: str = "", context: ssl.SSLContext | None = None,
    *, closes: bool = False,
) -> Iterator[Answering]:  # fmt: skip
    server = Answering(pages, status, password, closes)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(address: str, context: ssl.SSLContext | None = None, authorization: str = "") -> Documents:
    with closing(Endpoint(address, context, authorization)) as endpoint:
        return endpoint.ask()


def url(server: Answering, scheme: str = "http", path: str = "") -> str:
    return f"{scheme}://localhost:{server.server_address[1]}{path}"


def test_the_documents_come_over_one_connection() -> None:
    """However often it is asked: a handshake for each question would cost the daemon."""
    with serving() as server:
        with closing(Endpoint(url(server))) as endpoint:
            assert endpoint.ask() == SAID
            assert endpoint.ask() == SAID
        assert server.connections == 1
        assert endpoint.name == f"localhost:{server.server_address[1]}"


def test_a_connection_that_the_daemon_has_closed_is_made_anew() -> None:
    """As after its idle limit or a restart."""
    with serving(closes=True) as server:
        assert ask(url(server)) == SAID
        assert server.connections == 3


def test_a_path_before_the_daemons_own_is_kept() -> None:
    """For a proxy that serves several nodes."""
    with serving({f"/node7{path}": page for path, page in PAGES.items()}) as server:
        assert ask(url(server, path="/node7/")) == SAID


@pytest.mark.openssl
def test_tls_and_password(tmp_path: Path) -> None:
    """A certificate of our own authority, a client certificate, a password from a file; and each of them missing."""
    authority = Authority(tmp_path)
    node, client = authority.issue("node"), authority.issue("client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(node.certificate, node.key)
    secret = tmp_path / "password"
    secret.write_text("pässword\n")
    secret.chmod(0o640)
    authorization = basic_authorization("ops", read_password(secret))
    with serving(password=f"ops:{read_password(secret)}", context=context) as server:
        https = url(server, "https")
        ours = tls_context(str(authority.file), str(client.certificate), str(client.key))
        assert ask(https, ours, authorization) == SAID

        with pytest.raises(Refused, match="401 Unauthorized: name, password or certificate is not accepted"):
            ask(https, ours)
        with pytest.raises(Refused, match=r"its certificate is not trusted \(.*; see --ca-file"):
            ask(https, tls_context("", str(client.certificate), str(client.key)), authorization)
        with pytest.raises(CommwatchError):
            ask(https, tls_context(str(authority.file), "", ""), authorization)
        with pytest.raises(CommwatchError):
            ask(url(server))  # plain HTTP to a port with TLS


@in_one_pass(
    "pages, status, said",
    [
        ({}, 200, "/api/v1/findings: 404 Not Found"),
        (PAGES, 302, "/api/v1/findings: 302 Found"),
        (PAGES, 403, "403 Forbidden"),
        (PAGES, 429, "/api/v1/findings: 429 Too Many Requests"),
        (dict.fromkeys(PAGES, b"<html>"), 200, "no document of this version of commwatch: JSON is malformed"),
        (dict.fromkeys(PAGES, b"[" * 100_000), 200, "no document of this version"),
        (dict.fromkeys(PAGES, b"\xff"), 200, "no document of this version"),
        (dict.fromkeys(PAGES, PAGES["/api/v1/findings"]), 200, "/api/v1/probes: no document of this version"),
    ],
)
def test_what_is_no_daemon_is_said_in_one_line(pages: dict[str, bytes], status: int, said: str) -> None:
    """No redirect is followed, nothing is guessed."""
    with serving(pages, status) as server, pytest.raises(CommwatchError, match=re.escape(said)) as caught:
        ask(url(server))

    assert "\n" not in str(caught.value)


def test_no_daemon_there_is_absent() -> None:
    """So that --once ends with 4, as without --url."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(DaemonAbsent, match=f"127.0.0.1:{port}: Connection refused") as caught:
        ask(f"http://127.0.0.1:{port}")

    assert caught.value.exit_code == 4


def test_an_answer_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than any document is not kept."""
    monkeypatch.setattr("commwatch.views.top.daemon.MOST_BYTES", 100)
    with serving() as server, pytest.raises(CommwatchError, match="no HTTP answer that can be read"):
        ask(url(server))


@pytest.mark.parametrize("connects_late", [False, True])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_answer_in_drops_is_given_up(scheme: str, connects_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is that of the whole answer, headers and handshake included, and not of each byte. It holds too
    where it comes while there is no connection yet: each address of a name is tried for as long."""
    monkeypatch.setattr("commwatch.views.top.daemon.DEADLINE_SECONDS", 0.2)
    connect, sent = socket.create_connection, 0

    def connect_late(*args: Any, **kwargs: Any) -> socket.socket:
        connection = connect(*args, **kwargs)
        ended.wait(0.3)
        return connection

    if connects_late:
        monkeypatch.setattr(socket, "create_connection", connect_late)
    # What begins a handshake message of 16 KiB, and what begins headers.
    drops = {"https": b"\x16\x03\x03\x40\x00\x02\x00\x40\x00", "http": b"HTTP/1.1 200 OK\r\nX: "}[scheme]
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            nonlocal sent
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(drops)
                while sent < MOST_DROPS and not ended.wait(0.02):
                    connection.sendall(b"x")
                    sent += 1

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(CommwatchError, match=r"did not answer within 0\.2 s"):
                ask(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            ended.set()
            thread.join()
    assert sent < MOST_DROPS


@in_one_pass(
    "given, said",
    [
        ("node7:28029", "expected http://HOST:PORT"),
        ("ftp://node7", "expected http://HOST:PORT"),
        ("https://", "expected http://HOST:PORT"),
        ("http://node7:99999", "Port out of range"),
        ("http://ops:secret@node7", "no name, password, query or fragment here"),
        ("http://node7/?x", "no name, password, query or fragment here"),
    ],
)
def test_a_wrong_address_is_wrong_use(given: str, said: str) -> None:
    """A password in it is not repeated."""
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        Endpoint(given)

    assert "secret" not in str(caught.value)


def test_a_password_that_everyone_can_read_is_refused(tmp_path: Path) -> None:
    """As every file with a secret; a missing one is named."""
    secret = tmp_path / "password"
    long = tmp_path / "long"
    long.write_text("x" * 5000)
    long.chmod(0o640)
    secret.write_text("x")
    secret.chmod(0o644)
    with pytest.raises(UsageError, match="everyone can read this password"):
        read_password(secret)
    with pytest.raises(UsageError, match="longer than 4096 characters, which is no password"):
        read_password(long)
    with pytest.raises(UsageError, match=r"none: the password cannot be read: No such file"):
        read_password(tmp_path / "none")


@pytest.mark.openssl
def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Missing, no certificate, or a key that is encrypted, for which OpenSSL would ask at the terminal."""
    with pytest.raises(UsageError, match=r"none\.pem: this certificate or its key cannot be used: No such file"):
        tls_context(str(tmp_path / "none.pem"), "", "")
    (tmp_path / "odd.pem").write_text("odd")
    with pytest.raises(UsageError, match=r"odd\.pem: this certificate"):
        tls_context("", str(tmp_path / "odd.pem"), "")
