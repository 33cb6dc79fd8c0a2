"""docs/using/endpoint.md against what it describes: its examples are used as they are, by a real Prometheus."""

from __future__ import annotations

import asyncio
import re
import socket
from http import HTTPStatus
from pathlib import Path

import bcrypt
import pytest

from commwatch.service.web_access import WebAccess
from commwatch_exporters.http_server import HttpServer, Limits, Response
from commwatch_exporters.tls_context import CIPHERS, CURVES
from support.certificates import Authority
from support.http import ask, serving

PAGE = (Path(__file__).parents[2] / "docs" / "using" / "endpoint.md").read_text(encoding="utf-8")
TRIES = 480
BETWEEN_TRIES_SECONDS = 0.25


def example(begin: str) -> str:
    """The example of the page that begins with a comment."""
    (found,) = re.findall(rf"```yaml\n(# {re.escape(begin)}.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_limits() -> None:
    """The table has the limits that are in force."""
    limits = Limits()

    assert f"| request line and headers | {limits.head_bytes // 1024} KiB | 431 |" in PAGE
    for what, value in (
        ("TLS handshake included", f"{limits.head_seconds:g} s"),
        ("between an answer and the next request", f"{limits.idle_seconds:g} s"),
        ("wait for a comparison", f"{limits.write_seconds:g} s"),
        ("connections", f"{limits.connections}"),
        ("from the first byte of a handshake", f"{limits.tls_connections}"),
    ):
        assert f"{what} | {value} |" in PAGE


def test_what_can_be_chosen() -> None:
    """The page counts the cipher suites and names the curves."""
    assert len(CIPHERS) == 10
    assert "the ten suites of TLS 1.2" in PAGE
    for curve in CURVES:
        assert f"`{curve}`" in PAGE


def test_the_paths() -> None:
    """Every path that exists is there."""
    for path in ("/metrics", "/healthz", "/readyz", "/", "/api/v1/"):
        assert f"\n| `{path}` | " in PAGE


async def whether_up(port: int) -> str:
    """The sample of ``up`` as a Prometheus has it, or nothing yet."""
    try:
        found = await ask(port, "/api/v1/query?query=up")
    except (OSError, asyncio.IncompleteReadError):
        return ""
    return "".join(re.findall(r'"value":\[[0-9.]+,"([01])"\]', found.body.decode()))


@pytest.mark.prometheus
@pytest.mark.openssl
def test_the_examples_fit_together(tmp_path: Path) -> None:
    """A server with the one is scraped by a real Prometheus with the other."""
    authority = Authority(tmp_path)
    authority.issue("node")
    authority.issue("client", "DNS:prometheus")
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    (tmp_path / "commwatch.password").write_text("right")
    web = tmp_path / "web.yml"
    web.write_text(example("/etc/commwatch/web.yml").replace("$2y$10$...", hashed))
    web.chmod(0o640)
    server = HttpServer({"/metrics": lambda _: Response(HTTPStatus.OK, b"commwatch_simulated 1\n", "text/plain")})
    access = WebAccess(web, server, lambda _: None)

    async def test() -> None:
        async with serving(server) as port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                own_port = free.getsockname()[1]
            scraped = example("prometheus.yml").replace("/etc/prometheus", str(tmp_path))
            scraped = scraped.replace("node-7:28029", f"localhost:{port}")
            (tmp_path / "prometheus.yml").write_text("global: {scrape_interval: 200ms}\n" + scraped)
            process = await asyncio.create_subprocess_exec(
                "prometheus", f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{own_port}",
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                for _ in range(TRIES):
                    if up := await whether_up(own_port):
                        break
                    await asyncio.sleep(BETWEEN_TRIES_SECONDS)
            finally:
                process.kill()
                await process.wait()
            assert up == "1"

    asyncio.run(test())
    access.close()
