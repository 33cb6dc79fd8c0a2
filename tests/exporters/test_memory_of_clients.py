"""The memory that clients can make the endpoint hold, whatever they send and whatever they leave unread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tracemalloc
from http import HTTPStatus

import pytest

from commwatch_exporters.http_server import HttpServer, Response
from support.http import serving

CLIENTS = 64
OF_ONE = 128 * 2**10
"""Bytes that one client may hold."""
LARGE = b"0123456789abcdef" * 2**18
"""An answer of 4 MiB; made once, as the pages of the daemon are."""
GET = b"GET /large HTTP/1.1\r\nHost: node\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        GET + b"\r\n",
        (GET + b"\r\n") * 1000,
        GET + b"x-word: " + b"x" * 8000,
        GET + b"x-word: " + b"x" * 1_000_000,
        GET + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1_000_000,
        b"\0" * 1_000_000,
    ],
    ids=["an answer unread", "a thousand answers unread", "half a head", "an endless head", "a body", "nonsense"],
)
def test_a_client_holds_little_whatever_it_sends(sent: bytes) -> None:
    """64 clients that read nothing: each holds less than a thirtieth of the answer that it asked for."""
    server = HttpServer({"/large": lambda _: Response(HTTPStatus.OK, LARGE)})

    async def held() -> int:
        async with serving(server) as port:
            tracemalloc.start()
            with contextlib.ExitStack() as stack:
                for _ in range(CLIENTS):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    client.setblocking(False)
                    left = memoryview(sent)
                    for _ in range(10):  # what the kernel and the server take of it
                        with contextlib.suppress(BlockingIOError, ConnectionError):
                            left = left[client.send(left) :]
                        await asyncio.sleep(0)
                for _ in range(100):
                    await asyncio.sleep(0)
                return tracemalloc.get_traced_memory()[0]

    try:
        assert asyncio.run(held()) < CLIENTS * OF_ONE
    finally:
        tracemalloc.stop()
