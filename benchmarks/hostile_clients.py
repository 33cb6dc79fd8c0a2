"""The hostile clients of the benchmark: each comes back as soon as it is thrown out."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable
from multiprocessing.synchronize import Event

SILENT_TLS = 50
HALF_OPEN = 300
GUESSING = 4

Client = Callable[[], Awaitable[None]]


def besiege(port: int, authority: str, authorization: str, leave: Event) -> None:
    """Be there until it is time to leave; runs in a process of its own.

    Args:
        port: Of the endpoint.
        authority: File of who signed its certificate.
        authorization: The header of somebody who is let in, and then reads slowly.
        leave: Set when it is time.
    """
    os.nice(19)
    asyncio.run(_Siege(port, authority, authorization).hold(leave))


class _Siege:
    def __init__(self, port: int, authority: str, authorization: str) -> None:
        self._port = port
        self._authorization = authorization
        self._trusting = ssl.create_default_context(cafile=authority)
        self._chance = random.Random(28029)  # noqa: S311 - what is said half, and the same each time
        outgoing = ssl.MemoryBIO()
        try:
            self._trusting.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
        except ssl.SSLWantReadError:
            self._greeting = outgoing.read()

    async def hold(self, leave: Event) -> None:
        """All of them, side by side."""
        tasks = [
            asyncio.create_task(self._again_and_again(client))
            for client, number in (
                (self._silent, SILENT_TLS), (self._half_open, HALF_OPEN), (self._reads_slowly, 1),
                (self._guesses, GUESSING),
            )
            for _ in range(number)
        ]  # fmt: skip
        while not leave.is_set():
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()

    async def _again_and_again(self, client: Client) -> None:
        while True:
            try:
                await client()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.1)  # thrown out

    async def _silent(self) -> None:
        """A handshake, and then nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._trusting)
        await _until_thrown_out(reader, writer)

    async def _half_open(self) -> None:
        """A connection with no greeting, a part of one, or a whole one whose answer is not taken up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        whole = len(self._greeting)
        writer.write(self._greeting[: self._chance.choice([0, 1, 5, 100, whole - 1, whole])])
        await _until_thrown_out(reader, writer)

    async def _guesses(self) -> None:
        """A wrong password, and another one as soon as there is an answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._trusting)
        try:
            while True:
                guess = b64encode(f"prometheus:{self._chance.random()}".encode()).decode()
                writer.write(f"GET /metrics HTTP/1.1\r\nHost: node\r\nAuthorization: Basic {guess}\r\n\r\n".encode())
                await reader.readuntil(b"\r\n\r\n")
                await reader.readline()
        finally:
            writer.transport.abort()

    async def _reads_slowly(self) -> None:
        """40 pages of 290 kB, read one byte a second."""
        waiting = socket.socket()
        waiting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        waiting.connect(("127.0.0.1", self._port))
        reader, writer = await asyncio.open_connection(
            sock=waiting, ssl=self._trusting, server_hostname="localhost", limit=1
        )
        try:
            request = f"GET /metrics HTTP/1.1\r\nHost: node\r\nAuthorization: {self._authorization}\r\n\r\n"
            writer.write(request.encode() * 40)
            while await reader.read(1):
                await asyncio.sleep(1)
        finally:
            writer.transport.abort()


async def _until_thrown_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.read()
    finally:
        writer.transport.abort()
