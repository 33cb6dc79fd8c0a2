"""Connections between members: listeners on ports as a job has them, and tries to reach those of others."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from commwatch.cluster.messages import Contact, Outcome, Result

LARGE_BYTES: Final = 64 * 1024
RESOLVE_SECONDS: Final = 5.0
_ANSWER_SECONDS = 15.0

_MOST_AT_ONCE = 64
_SMALL = b"1"
_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EINVAL})
_FILTERED = frozenset({errno.ETIMEDOUT, errno.EACCES, errno.EPERM})
"""EPERM and EACCES: the own firewall does not let it out."""

Found = TypeVar("Found")


async def in_thread(function: Callable[[], Found], seconds: float) -> Found | None:
    """Call a blocking function in a thread that the process does not wait for; None if it takes longer or fails.

    Asyncio's own threads would keep the process until the name server has answered.
    """
    import threading

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Found | None] = loop.create_future()

    def give(value: Found | None) -> None:
        if not future.done():
            future.set_result(value)

    def call() -> None:
        value: Found | None = None
        with suppress(OSError, ValueError):
            value = function()
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(give, value)

    threading.Thread(target=call, daemon=True, name="asked").start()
    with suppress(asyncio.TimeoutError):
        return await asyncio.wait_for(future, seconds)
    return None


def port_range(procfs: Path) -> tuple[int, int]:
    """From which the kernel takes ports of its own choice."""
    with suppress(OSError, ValueError):
        low, high = map(int, (procfs / "sys/net/ipv4/ip_local_port_range").read_text().split())
        if 1 <= low <= high <= 65535:
            return low, high
    return 32768, 60999


def bound(address: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the port is taken, or the address is not this node's.
    """
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def listening_sockets(addresses: Sequence[str], span: tuple[int, int]) -> tuple[list[socket.socket], tuple[int, ...]]:
    """Listeners at both ends of the kernel's range and on a port that it chose, on each address.

    Returns:
        The sockets, and the ports, which are the same on each address.
    """
    low, high = span
    sockets: list[socket.socket] = []
    ports: list[int] = []
    if not addresses:
        return sockets, ()
    first = addresses[0]
    wanted = ((0,), range(low, min(low + 16, high)), range(high, max(high - 16, low), -1))
    for candidates in wanted:
        for port in candidates:
            with suppress(OSError):
                sock = bound(first, port)
                sockets.append(sock)
                ports.append(sock.getsockname()[1])
                break
    for address in addresses[1:]:
        for port in ports:
            with suppress(OSError):  # taken on this address only: its tries say refused, which is wrong of no path
                sockets.append(bound(address, port))
    return sockets, tuple(ports)


class Listeners:
    """Answers who connects: the own token first, then a byte for the first byte and one for 64 KiB more."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._servers: list[asyncio.AbstractServer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, sockets: Sequence[socket.socket]) -> None:
        """Answer on these sockets, which are closed with this."""
        for sock in sockets:
            self._servers.append(await asyncio.start_server(self._connected, sock=sock, limit=2**16))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= 2 * _MOST_AT_ONCE:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._answer(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def talk() -> None:
            writer.write(self._token)
            for count in (len(_SMALL), LARGE_BYTES):
                left = count
                while left:
                    piece = await reader.read(left)
                    if not piece:
                        return
                    left -= len(piece)
                writer.write(_SMALL)
                await writer.drain()

        try:
            await asyncio.wait_for(talk(), _ANSWER_SECONDS)
        except (OSError, asyncio.TimeoutError):
            pass
        finally:
            writer.close()


async def try_all(contacts: Sequence[Contact], names: Sequence[str], seconds: float) -> list[Outcome]:
    """Try every port of every address of some members, many at once.

    Args:
        names: by rank how the launcher calls the members; empty where it does not.
        seconds: for each step of a try.
    """
    turn = asyncio.Semaphore(_MOST_AT_ONCE)

    async def one(work: Awaitable[list[Outcome]]) -> list[Outcome]:
        async with turn:
            return await work

    work = [
        _try(contact, address, port, seconds, large=place == 0)
        for contact in contacts
        for address in contact.addresses
        for place, port in enumerate(contact.ports)
    ]
    work += [_try_name(contact, names[contact.rank]) for contact in contacts if contact.rank < len(names)]
    return [outcome for found in await asyncio.gather(*map(one, work)) for outcome in found]


async def _try(contact: Contact, address: str, port: int, seconds: float, *, large: bool) -> list[Outcome]:
    result = await try_port(address, port, contact.token, seconds, large=large)
    return [Outcome(whom=contact.rank, result=result, address=address, port=port)]


async def _try_name(contact: Contact, name: str) -> list[Outcome]:
    """Whether a member's name leads to it."""
    addresses = await in_thread(lambda: _resolved(name), RESOLVE_SECONDS)
    if not addresses:
        return [Outcome(whom=contact.rank, result="name", address=name, detail="does not resolve")]
    if set(addresses) & set(contact.addresses):
        return []
    if all(ipaddress.ip_address(one).is_loopback for one in addresses):
        detail = f"resolves to {addresses[0]}, which is this node itself"
        return [Outcome(whom=contact.rank, result="name", address=name, detail=detail)]
    return []


def _resolved(name: str) -> tuple[str, ...]:
    from commwatch.cluster.facts import addresses_of

    return addresses_of(name)


async def try_port(address: str, port: int, token: str, seconds: float, *, large: bool) -> Result:
    """One connection: how far it gets."""
    opened = await connect(address, port, seconds)
    if isinstance(opened, str):
        return opened
    reader, writer = opened
    said = False
    try:
        if await asyncio.wait_for(reader.readexactly(len(token)), seconds) != token.encode():
            return "stranger"
        writer.write(_SMALL)
        await asyncio.wait_for(reader.readexactly(1), seconds)
        said = True
        if large:
            writer.write(bytes(LARGE_BYTES))
            await asyncio.wait_for(reader.readexactly(1), seconds)
        return "open"
    except asyncio.TimeoutError:
        return "mtu" if said else "filtered"
    except (OSError, asyncio.IncompleteReadError):
        return "stranger" if not said else "refused"
    finally:
        writer.transport.abort()


async def connect(
    address: str, port: int, seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | Result:
    """A connection, or why there is none."""
    try:
        return await asyncio.wait_for(asyncio.open_connection(address, port), seconds)
    except ConnectionRefusedError:
        return "refused"
    except (asyncio.TimeoutError, TimeoutError):
        return "filtered"
    except OSError as error:
        return result_of(error)


def result_of(error: OSError) -> Result:
    """The meaning of an error of connect."""
    if isinstance(error, socket.gaierror):
        return "name"
    if error.errno in _FILTERED:
        return "filtered"
    return "no_route" if error.errno in _NO_ROUTE else "refused"


def port_owner(procfs: Path, port: int) -> str:
    """Which process listens on a port, as far as this user may see: ``python (pid 4711)``; empty where it may not."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (procfs / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{words[9]}]")
    if not inodes:
        return ""
    for process in procfs.iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            for descriptor in os.listdir(process / "fd"):
                if os.readlink(process / "fd" / descriptor) in inodes:
                    return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""
