"""Listen addresses as operators write them."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from commwatch_exporters.http_server import HttpServer
from commwatch_exporters.listen import EndpointError, bind, name_of, passed_sockets, split_address
from support.http import Client, connected, serving
from support.passes import in_one_pass


def has_ipv6() -> bool:
    """Whether this node has the IPv6 loopback address."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


NEEDS_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this node has no IPv6")


@in_one_pass(
    "address, parts",
    [
        (":28029", ("", 28029)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:28029", ("::1", 28029)),
        ("node-7.cluster:65535", ("node-7.cluster", 65535)),
    ],
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    """Host and port are told apart."""
    assert parts == split_address(address)


@in_one_pass("address", ["", "28029", "node", "node:", "node:http", "node:65536", "::1:28029", "[::1]", ":-1", ":²"])
def test_no_addresses(address: str) -> None:
    """The error names what was written and what would be right."""
    with pytest.raises(EndpointError, match="expected HOST:PORT") as caught:
        split_address(address)

    assert repr(address) in str(caught.value)


def test_a_free_port() -> None:
    """Port 0 is replaced by the port that was given."""
    (bound,) = bind("127.0.0.1:0")
    with closing(bound):
        assert f"127.0.0.1:{bound.getsockname()[1]}" == name_of(bound)


@NEEDS_IPV6
def test_all_addresses() -> None:
    """An empty host takes IPv6 and IPv4."""

    async def test() -> None:
        server = HttpServer({})
        (address,) = await server.start([":0"])
        for host in ("127.0.0.1", "::1"):
            async with connected(int(address.rpartition(":")[2]), host) as client:
                client.send(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
                assert (await client.answer()).status == 404
        await server.stop()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("call", "error"),
    [("__init__", errno.EAFNOSUPPORT), ("bind", errno.EADDRNOTAVAIL)],
    ids=["a kernel without it", "switched off"],
)
def test_all_addresses_without_ipv6(monkeypatch: pytest.MonkeyPatch, call: str, error: int) -> None:
    """Where there is no IPv6 an empty host takes IPv4."""

    class OnlyIpv4(socket.socket):
        pass

    def refused(sock: socket.socket, first: object = socket.AF_INET, *others: object) -> object:
        if socket.AF_INET6 in (first, getattr(sock, "family", None)):
            raise OSError(error, os.strerror(error))
        return getattr(super(OnlyIpv4, sock), call)(first, *others)

    setattr(OnlyIpv4, call, refused)
    monkeypatch.setattr(socket, "socket", OnlyIpv4)
    (bound,) = bind(":0")
    with closing(bound):
        assert name_of(bound).startswith("0.0.0.0:")


@NEEDS_IPV6
def test_one_ipv6_address() -> None:
    """A bracketed host is taken alone and named with its brackets."""
    (bound,) = bind("[::1]:0")
    with closing(bound):
        assert name_of(bound).startswith("[::1]:")


def test_a_taken_port() -> None:
    """The error names the address; what was taken before it is free again."""

    async def test() -> None:
        first, second = HttpServer({}), HttpServer({})
        (taken,) = await first.start(["127.0.0.1:0"])
        (free,) = await second.start(["127.0.0.1:0"])
        await second.stop()
        with pytest.raises(EndpointError, match=f"cannot listen on '{taken}': Address already in use"):
            await second.start([free, taken])
        assert [free] == await second.start([free])
        await second.stop()
        await first.stop()

    asyncio.run(test())


@pytest.mark.parametrize("address", ["192.0.2.1:0", "[2001:db8::1]:0"])
def test_an_address_of_another_node(address: str) -> None:
    """The error says that it cannot be taken, and names it."""
    with pytest.raises(EndpointError, match="cannot listen on") as caught:
        bind(address)

    assert address in str(caught.value)


def test_answers_are_sent_at_once() -> None:
    """Nagle's algorithm is off on every connection: with it the end of an answer waits for the client's ACK."""

    async def test() -> None:
        server = HttpServer({})
        async with serving(server) as port, connected(port) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
            await client.answer()
            (connection,) = server.connections
            assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

    asyncio.run(test())


FIRST = 200
"""Where tests put what systemd puts at 3, which is taken here."""


@pytest.fixture
def handed_over(tmp_path: Path) -> Iterator[list[socket.socket]]:
    """A TCP and a unix socket that listen, as systemd hands them over: inheritable, one after the other."""
    made = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
    made[1].bind(str(tmp_path / "socket"))
    made[1].listen()
    with ExitStack() as stack:
        for number, one in enumerate(made):
            stack.enter_context(one)
            os.dup2(one.fileno(), FIRST + number, inheritable=True)
        yield made


def handing(count: str, pid: int | None = None) -> dict[str, str]:
    """The environment that says so."""
    return {"LISTEN_PID": str(os.getpid() if pid is None else pid), "LISTEN_FDS": count, "LISTEN_FDNAMES": "a:b"}


def test_sockets_of_systemd(handed_over: list[socket.socket]) -> None:
    """Both are served, beside an address of our own; what the environment said of them is gone for children."""

    async def test() -> None:
        environment = handing("2")
        passed = passed_sockets(environment, FIRST)
        assert environment == {}
        assert [one.get_inheritable() for one in passed] == [False, False]
        server = HttpServer({})
        names = await server.start(["127.0.0.1:0"], passed)
        assert names[:2] == [name_of(one) for one in handed_over]
        port = int(names[0].rpartition(":")[2])
        async with connected(port) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
            assert (await client.answer()).status == 404
        reader, writer = await asyncio.open_unix_connection(names[1])
        writer.write(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
        assert (await Client(reader, writer).answer()).status == 404
        writer.transport.abort()
        await server.stop()

    asyncio.run(test())


@in_one_pass("environment", [{}, handing("1", pid=1), handing("none"), {"LISTEN_FDS": "1"}])
def test_no_sockets_of_systemd(environment: dict[str, str]) -> None:
    """What is meant for another process is left alone."""
    assert passed_sockets(environment, FIRST) == []
    assert environment == {}


def test_what_is_no_listening_socket() -> None:
    """The error says what the socket unit needs."""
    with socket.socket() as silent:
        os.dup2(silent.fileno(), FIRST)
        with pytest.raises(EndpointError, match="needs ListenStream= and Accept=no"):
            passed_sockets(handing("1"), FIRST)
    with open(os.devnull) as file, pytest.raises(EndpointError, match="from systemd is no socket"):
        passed_sockets(handing("1"), file.fileno())
