"""Clients that want more than their share of an endpoint: each attack of ``benchmarks.shares``.

They run in one process with the least claim to the CPU, as they stand for other machines, and come from many addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import struct
from base64 import b64encode
from collections.abc import Awaitable, Callable
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import NamedTuple

_AT_ONCE_THROWN_OUT_SECONDS = 0.02
_ANSWER_SECONDS = 15.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: no port stays in TIME_WAIT


class Attack(NamedTuple):
    """So many clients from each of some addresses."""

    kind: str
    """``guess``: a wrong password after the other. ``hold``: ask for something cheap once, keep the connection, and
    come back when it is lost. ``ask``: ask for a path as fast as it is answered. ``greet``: begin a TLS handshake, and
    leave once the server has done its part."""
    addresses: int
    of_each: int
    path: str = "/metrics"


def attack(attack: Attack, port: int, leave: Event, requests: Synchronized[int]) -> None:
    """Be there until it is time to leave; counts the answers."""
    os.nice(19)
    asyncio.run(_Attackers(attack, port, requests).stay(leave))


class _Attackers:
    def __init__(self, attack: Attack, port: int, requests: Synchronized[int]) -> None:
        self._attack = attack
        self._port = port
        self._requests = requests
        self._chance = random.Random(28029)  # noqa: S311 - guesses, and the same each time

    async def stay(self, leave: Event) -> None:
        acts = {"guess": self._guess, "hold": self._hold, "ask": self._ask, "greet": self._greet}
        addresses = [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(self._attack.addresses)]
        tasks = [
            asyncio.create_task(self._again_and_again(acts[self._attack.kind], address))
            for _ in range(self._attack.of_each)
            for address in addresses
        ]
        while not leave.is_set():
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()

    async def _again_and_again(
        self, act: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], address: str
    ) -> None:
        while True:
            mine = socket.socket()
            mine.setblocking(False)
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            try:
                mine.bind((address, 0))
                await asyncio.get_running_loop().sock_connect(mine, ("127.0.0.1", self._port))
                reader, writer = await asyncio.open_connection(sock=mine)
                try:
                    await act(reader, writer)
                finally:
                    writer.transport.abort()
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                await asyncio.sleep(_AT_ONCE_THROWN_OUT_SECONDS)
            finally:
                mine.close()

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _ANSWER_SECONDS)
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if lengths:
            await reader.readexactly(int(lengths[0].partition(b":")[2]))
        else:  # in chunks
            while (size := int(await reader.readline(), 16)) > 0:
                await reader.readexactly(size + 2)
            await reader.readline()
        self._requests.value += 1

    async def _guess(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            guess = b64encode(f"prometheus:{self._chance.random()}".encode()).decode()
            writer.write(f"GET /metrics HTTP/1.1\r\nHost: node\r\nAuthorization: Basic {guess}\r\n\r\n".encode())
            await self._answer(reader)

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"GET {self._attack.path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        await self._answer(reader)
        await reader.read(1)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(f"GET {self._attack.path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
            await self._answer(reader)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_GREETING)
        await asyncio.wait_for(reader.readexactly(1), _ANSWER_SECONDS)
        self._requests.value += 1


def _greeting() -> bytes:
    """The first message of a TLS client: to send it costs nothing, to answer it a signature."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


_GREETING = _greeting()
