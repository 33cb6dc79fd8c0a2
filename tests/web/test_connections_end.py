"""What is left of a connection that has ended: nothing, without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from commwatch_exporters.http_server import Connection, HttpServer, Limits, Request, Response
from support.passes import in_one_pass

CLIENTS = 20


def _here() -> int:
    return sum(isinstance(one, Connection) for one in gc.get_objects())


async def _silent(port: int, _: HttpServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.read()
    writer.close()


async def _thrown_out(port: int, server: HttpServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    for connection in list(server.connections):
        connection.abort()
    writer.close()


async def _gone(port: int, _: HttpServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


@in_one_pass("client, head_seconds", [(_silent, 0.02), (_thrown_out, 60.0), (_gone, 60.0)])
def test_a_connection_that_has_ended_is_gone_at_once(
    client: Callable[[int, HttpServer], Awaitable[None]], head_seconds: float
) -> None:
    """One that waits for the garbage collector is memory for whoever opens connections fast enough."""

    def page(_: Request) -> Response:
        return Response(HTTPStatus.OK, b"x")

    async def body() -> int:
        server = HttpServer({"/": page}, Limits(head_seconds=head_seconds))
        (address,) = await server.start(["127.0.0.1:0"])
        for _ in range(CLIENTS):
            await client(int(address.rpartition(":")[2]), server)
        while server.connections:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        left = _here()
        await server.stop()
        return left

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(body()) <= 1
    finally:
        gc.enable()
