"""A plain HTTP client over loopback, and a server for the time of a block."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from commwatch_exporters.http_server import HttpServer
from support.waiting import PATIENCE_SECONDS


@dataclass(frozen=True)
class Answer:
    """A response as a client sees it."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes


@asynccontextmanager
async def serving(server: HttpServer) -> AsyncIterator[int]:
    """The port of a server that listens on IPv4 loopback and is stopped at the end."""
    (address,) = await server.start(["127.0.0.1:0"])
    try:
        yield int(address.rpartition(":")[2])
    finally:
        await server.stop()


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._transport = cast(asyncio.Transport, writer.transport)  # a socket's transport goes both ways

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    def stop_reading(self) -> None:
        """Leave what arrives with the kernel."""
        self._transport.pause_reading()

    def read_again(self) -> None:
        """Take in what has arrived."""
        self._transport.resume_reading()

    async def answer(self, *, has_body: bool = True) -> Answer:
        """The next response."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        first, *lines = head.decode().rstrip().split("\r\n")
        pairs = [line.partition(": ") for line in lines]
        headers = {name.lower(): value for name, _, value in pairs}
        length = int(headers["content-length"]) if has_body else 0
        body = await asyncio.wait_for(self.reader.readexactly(length), PATIENCE_SECONDS)
        return Answer(int(first.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """All bytes until the server closes the connection; what came before a reset is lost."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE_SECONDS)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def connected(
    port: int, host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None, local: str | None = None
) -> AsyncIterator[Client]:
    """A connection, closed at the end; over TLS where a context is given, from a local address where one is given."""
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, local_addr=None if local is None else (local, 0)
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def ask(
    port: int,
    path: str,
    *headers: str,
    method: str = "GET",
    tls: ssl.SSLContext | None = None,
    local: str | None = None,
) -> Answer:
    """One request on a connection of its own."""
    async with connected(port, tls=tls, local=local) as client:
        lines = [f"{method} {path} HTTP/1.1", "Host: node", *headers, "Connection: close", "", ""]
        client.send("\r\n".join(lines).encode())
        answer = await client.answer(has_body=method != "HEAD")
        assert await client.rest() == b"", "bytes after the answer"
        return answer


def authorization(user: str, password: str, encoding: str = "utf-8") -> str:
    """The header of a client."""
    return "Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode(encoding)).decode()
