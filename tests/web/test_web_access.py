"""The web configuration in force: read again when a file changes, kept when the new one cannot be used."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from structlog.testing import capture_logs

from commwatch.config.web import WebConfig
from commwatch.errors import ConfigError
from commwatch.service.web_access import WebAccess, url_of, who_reads
from commwatch_exporters.http_server import HttpServer, Limits, Response
from commwatch_exporters.tls_context import TlsSettings
from support.certificates import Authority
from support.http import ask, authorization, connected, serving
from support.passes import in_one_pass

pytestmark = pytest.mark.openssl

TLS = "tls_server_config: {cert_file: node.pem, key_file: node.key}\n"
CLIENTS = TLS.replace("}", ", client_ca_file: authority.pem, client_auth_type: RequireAndVerifyClientCert}")
NAMES = CLIENTS.replace("}\n", ", client_allowed_sans: ")
Told = list[bool]


def users(**passwords: str) -> str:
    """The section with some users."""
    lines = (
        f"  {name}: {bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode()}\n" for name, word in passwords.items()
    )
    return "basic_auth_users:\n" + "".join(lines)


class Site:
    """A folder with a web configuration, and the server that it stands before."""

    def __init__(self, folder: Path, text: str) -> None:
        self.file = folder / "web.yml"
        self.authority = Authority(folder)
        self.authority.issue("node")
        self.write(text)
        self.server = HttpServer({"/text": lambda _: Response(HTTPStatus.OK, b"text\n")}, Limits(connections=8))
        self.told: Told = []
        self.access = WebAccess(self.file, self.server, self.told.append)
        self.trusting = ssl.create_default_context(cafile=str(self.authority.file))

    def write(self, text: str) -> None:
        """Replace the file."""
        self.file.write_text(text)
        self.file.chmod(0o600)


def run(folder: Path, text: str, test: Callable[[Site, int], Coroutine[Any, Any, None]]) -> Site:
    """Serve with a configuration for the time of a test."""
    site = Site(folder, text)

    async def serve() -> None:
        async with serving(site.server) as port:
            await test(site, port)
        site.access.close()

    asyncio.run(serve())
    return site


async def serial(site: Site, port: int) -> str:
    """The number of the certificate that a new client is shown."""
    async with connected(port, tls=site.trusting) as client:
        shown = client.writer.get_extra_info("peercert")
        return str(shown["serialNumber"])


def test_a_renewed_certificate(tmp_path: Path) -> None:
    """It is shown to the next client; whoever is connected stays."""

    async def test(site: Site, port: int) -> None:
        async with connected(port, tls=site.trusting) as kept:
            before = await serial(site, port)
            await site.access.look()
            assert before == await serial(site, port)
            site.authority.issue("node")
            await site.access.look()
            assert before != await serial(site, port)
            kept.send(b"GET /text HTTP/1.1\r\nHost: node\r\n\r\n")
            assert (await kept.answer()).status == 200

    assert run(tmp_path, TLS, test).told == [True, True]


def test_a_certificate_before_its_key(tmp_path: Path) -> None:
    """Between the two files of a new pair the old pair stays in force, and one line says why."""

    async def test(site: Site, port: int) -> None:
        before = await serial(site, port)
        other = site.authority.issue("other")
        os.replace(other.certificate, tmp_path / "node.pem")
        await site.access.look()
        await site.access.look()
        assert before == await serial(site, port)
        os.replace(other.key, tmp_path / "node.key")
        await site.access.look()
        assert before != await serial(site, port)

    with capture_logs() as logs:
        assert run(tmp_path, TLS, test).told == [True, False, False, True]

    errors = [one["error"] for one in logs if one["log_level"] == "error"]
    assert len(errors) == 1
    assert "web.yml:1: tls_server_config.key_file: does not belong to the certificate" in errors[0]


def test_links_that_are_turned(tmp_path: Path) -> None:
    """Certificates behind a symbolic link, as Kubernetes mounts them, are followed."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    authority = Authority(tmp_path / "first")
    authority.issue("node")

    async def test(site: Site, port: int) -> None:
        site.trusting = ssl.create_default_context(cafile=str(authority.file))
        before = await serial(site, port)
        for path in (tmp_path / "first").iterdir():
            (tmp_path / "second" / path.name).write_bytes(path.read_bytes())
        renewed = authority.issue("node")
        os.replace(renewed.certificate, tmp_path / "second" / "node.pem")
        os.replace(renewed.key, tmp_path / "second" / "node.key")
        (tmp_path / "new").symlink_to("second")
        os.replace(tmp_path / "new", tmp_path / "data")
        await site.access.look()
        assert before != await serial(site, port)

    (tmp_path / "data").symlink_to("first")
    run(tmp_path, "tls_server_config: {cert_file: data/node.pem, key_file: data/node.key}\n", test)


def test_users_that_change(tmp_path: Path) -> None:
    """A new password counts from the next request on, on connections that are there too."""

    async def test(site: Site, port: int) -> None:
        async with connected(port) as kept:

            async def status(word: str) -> int:
                header = authorization("alice", word)
                kept.send(f"GET /text HTTP/1.1\r\nHost: node\r\n{header}\r\n\r\n".encode())
                return (await kept.answer()).status

            assert [await status(word) for word in ("old", "new")] == [200, 401]
            site.write(users(alice="new"))
            await site.access.look()
            assert [await status(word) for word in ("old", "new")] == [401, 200]

    run(tmp_path, users(alice="old"), test)


def test_a_rate_that_changes(tmp_path: Path) -> None:
    """It counts from the next request on; a limit that is unchanged is not filled up by other changes."""

    async def test(site: Site, port: int) -> None:
        limit = "rate_limit: {interval: 1h, burst: 2}\n"
        site.write(limit)
        await site.access.look()
        assert [(await ask(port, "/text")).status for _ in range(3)] == [200, 200, 429]
        site.write(f"{limit}http_server_config: {{headers: {{X-Frame-Options: deny}}}}\n")
        await site.access.look()
        assert (await ask(port, "/text")).status == 429

    run(tmp_path, "rate_limit: {interval: 0}\n", test)


def test_from_plain_to_tls(tmp_path: Path) -> None:
    """New clients meet what the file says now, and who is connected without it has to come again."""

    async def test(site: Site, port: int) -> None:
        async with connected(port) as kept:
            kept.send(b"GET /text HTTP/1.1\r\nHost: node\r\n\r\n")
            assert (await kept.answer()).status == 200
            site.write(TLS)
            await site.access.look()
            assert await kept.rest() == b""
        assert (await ask(port, "/text")).status == 400
        assert (await ask(port, "/text", tls=site.trusting)).status == 200

    run(tmp_path, "rate_limit: {interval: 0}\n", test)


def test_other_client_certificates(tmp_path: Path) -> None:
    """Who is connected with a certificate that is no longer asked for has to come again."""

    async def test(site: Site, port: int) -> None:
        client = site.authority.issue("client", "DNS:prometheus")
        site.trusting.load_cert_chain(client.certificate, client.key)
        for text, is_let_in in ((CLIENTS, True), (f"{NAMES}[prometheus]}}\n", True), (f"{NAMES}[other]}}\n", False)):
            async with connected(port, tls=site.trusting) as kept:
                kept.send(b"GET /text HTTP/1.1\r\nHost: node\r\n\r\n")
                assert (await kept.answer()).status == 200
                site.write(text)
                await site.access.look()
                assert await kept.rest() == b""
            if is_let_in:
                assert (await ask(port, "/text", tls=site.trusting)).status == 200
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await ask(port, "/text", tls=site.trusting)

    run(tmp_path, TLS, test)


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        (TLS, "rate_limit: {interval: 0}\n", "tls_server_config"),
        (TLS, "tls_server_config:\n", "tls_server_config"),
        (TLS + users(alice="right"), TLS, "basic_auth_users"),
        (users(alice="right"), "basic_auth_users:\n", "basic_auth_users"),
        (CLIENTS, TLS, "tls_server_config.client_auth_type"),
        (CLIENTS, CLIENTS.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven"),
         "tls_server_config.client_auth_type"),
        (f"{NAMES}[prometheus]}}\n", CLIENTS, "tls_server_config.client_allowed_sans"),
    ],
    ids=["no TLS", "empty TLS", "users gone", "empty users", "no certificates", "certificates if given", "any name"],
)  # fmt: skip
def test_a_door_that_would_open(before: str, after: str, key: str, tmp_path: Path) -> None:
    """While the daemon runs nothing is asked less of clients, as a file would that is half written."""

    async def test(site: Site, port: int) -> None:
        was = site.server.access
        site.write(after)
        await site.access.look()
        site.access.read_soon()
        await site.access.look()
        assert site.server.access is was
        site.write(before)
        await site.access.look()
        assert site.server.access is not was

    with capture_logs() as logs:
        assert run(tmp_path, before, test).told == [True, False, False, True]

    (error,) = [one["error"] for one in logs if one["log_level"] == "error"]
    assert f"web.yml: {key}: asks less of clients than what is in force" in error
    assert "restart the daemon" in error


def test_a_reading_that_was_asked_for(tmp_path: Path) -> None:
    """Who asks does not wait for it: the next look reads, although no file has changed."""

    async def test(site: Site, _: int) -> None:
        await site.access.look()
        site.access.read_soon()
        assert site.told == [True]
        await site.access.look()
        assert site.told == [True, True]
        await site.access.look()

    assert run(tmp_path, users(alice="old"), test).told == [True, True]


def test_no_descriptor_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a new certificate cannot be taken for want of a file descriptor, it is taken at a later look."""

    async def test(site: Site, port: int) -> None:
        before = await serial(site, port)
        site.authority.issue("node")
        with monkeypatch.context() as exhausted:
            exhausted.setattr("commwatch_exporters.tls_context.make_context", fail)
            with pytest.raises(OSError, match="Too many open files"):
                await site.access.look()
        assert before == await serial(site, port)
        await site.access.look()
        assert before != await serial(site, port)

    def fail(_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    run(tmp_path, TLS, test)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """The doors stay as they were; when it is back, it counts."""

    async def test(site: Site, port: int) -> None:
        site.file.unlink()
        await site.access.look()
        assert (await ask(port, "/text")).status == 401
        site.write(users(bob="builder"))
        await site.access.look()
        assert (await ask(port, "/text", authorization("bob", "builder"))).status == 200

    assert run(tmp_path, users(alice="old"), test).told == [True, False, True]


def test_a_new_configuration_that_is_wrong(tmp_path: Path) -> None:
    """It is reported once, and again when it is wrong in another way; a repair outside of the file is noticed."""

    async def test(site: Site, _: int) -> None:
        site.write("tls_server_config: {cert_file: later.pem, key_file: later.key}\n")
        await site.access.look()
        await site.access.look()
        site.write("basic_auth_user: {}\n")
        await site.access.look()
        site.write("tls_server_config: {cert_file: later.pem, key_file: later.key}\n")
        await site.access.look()
        site.authority.issue("later")
        await site.access.look()

    with capture_logs() as logs:
        site = run(tmp_path, "rate_limit: {interval: 0}\n", test)

    assert site.told == [True, False, False, False, False, True]
    assert ["later.pem" in one["error"] for one in logs if one["log_level"] == "error"] == [True, False, True]


def test_what_has_no_effect_is_logged_once(tmp_path: Path) -> None:
    """A note stands in the log when it is new."""

    async def test(site: Site, _: int) -> None:
        await site.access.reread()
        await site.access.reread()

    with capture_logs() as logs:
        run(tmp_path, "http_server_config: {http2: true}\n", test)

    assert ["HTTP/2 is not offered" in one["setting"] for one in logs if one["log_level"] == "warning"] == [True]


def test_a_first_configuration_that_is_wrong(tmp_path: Path) -> None:
    """Nothing is served without it."""
    with pytest.raises(ConfigError, match=r"web\.yml:1: basic_auth_user: unknown key"):
        Site(tmp_path, "basic_auth_user: {}\n")


@pytest.mark.parametrize("asked", ["password", "certificate"])
def test_who_shows_who_it_is_keeps_its_places(tmp_path: Path, asked: str) -> None:
    """Strangers from many addresses push out each other, and none of the connections that have shown what is asked."""

    async def test(site: Site, port: int) -> None:
        header = authorization("alice", "right")
        request = f"GET /text HTTP/1.1\r\nHost: node\r\n{header}\r\n\r\n".encode()
        tls = None
        if asked == "certificate":
            mine = site.authority.issue("client")
            tls = site.trusting
            tls.load_cert_chain(mine.certificate, mine.key)
        async with AsyncExitStack() as stack:
            kept = [await stack.enter_async_context(connected(port, tls=tls, local="127.0.0.9")) for _ in range(4)]
            for client in kept:
                client.send(request)
                assert (await client.answer()).status == 200
            for number in range(20):
                await stack.enter_async_context(connected(port, local=f"127.0.1.{number + 1}"))
            for client in kept:
                client.send(request)
                assert (await client.answer()).status == 200

    run(tmp_path, users(alice="right") if asked == "password" else CLIENTS, test)


def demanding(*, tls: TlsSettings | None = None, users: bool = False) -> WebConfig:
    """A web configuration with TLS, with a user."""
    return WebConfig(tls, frozenset(), {}, {b"alice": b"$2b$"} if users else {}, None, (), (), ())


SERVER_ONLY = demanding(tls=TlsSettings(b"", b""))
OPTIONAL = demanding(tls=TlsSettings(b"", b"", client_certificates="if given"))
REQUIRED = demanding(tls=TlsSettings(b"", b"", client_certificates="required"))
BOTH = demanding(tls=TlsSettings(b"", b"", client_certificates="required"), users=True)


@in_one_pass(
    "addresses, web, readers",
    [
        ((), None, "nobody: no port is open"),
        (("0.0.0.0:28029",), None, "whoever reaches the port, without a password"),
        (("[::]:28029",), SERVER_ONLY, "whoever reaches the port, without a password"),
        (("10.0.0.7:28029",), OPTIONAL, "whoever reaches the port, without a password"),
        (("10.0.0.7:28029",), REQUIRED, "whoever reaches the port, with a client certificate"),
        (("10.0.0.7:28029",), demanding(users=True), "whoever reaches the port, with a password"),
        (("10.0.0.7:28029",), BOTH, "whoever reaches the port, with a client certificate and a password"),
        (("127.0.0.1:28029", "[::1]:28029"), None, "this machine, without a password"),
        (("127.0.0.1:28029", "10.0.0.7:28029"), None, "whoever reaches the port, without a password"),
        (("/run/commwatch/web.sock",), demanding(users=True), "this machine, with a password"),
        (("/run/commwatch/web.sock", "[fd00::7]:28029"), None, "whoever reaches the port, without a password"),
    ],
)
def test_who_can_read_the_endpoint(addresses: tuple[str, ...], web: WebConfig | None, readers: str) -> None:
    """One address that others reach is enough; only what every client must show counts."""
    assert who_reads(addresses, web) == readers


@in_one_pass(
    "address, web, url",
    [
        ("0.0.0.0:28029", None, "http://node7:28029/"),
        ("[::]:28029", SERVER_ONLY, "https://node7:28029/"),
        ("10.0.0.7:28029", demanding(users=True), "http://10.0.0.7:28029/"),
        ("127.0.0.1:80", REQUIRED, "https://127.0.0.1:80/"),
        ("[fd00::7]:28029", None, "http://[fd00::7]:28029/"),
        ("/run/commwatch/web.sock", SERVER_ONLY, "/run/commwatch/web.sock"),
    ],
)
def test_the_url_of_the_page(address: str, web: WebConfig | None, url: str) -> None:
    """By the host's name where the address is every one of the host's."""
    assert url_of(address, "node7", web) == url
