"""Where to listen, from the text that an operator writes or from what systemd hands over; and who comes."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import MutableMapping
from contextlib import ExitStack
from typing import NamedTuple

BACKLOG = 128
"""Connections that may wait for the event loop."""
_FIRST_PASSED = 3  # file descriptor, by systemd's protocol


class EndpointError(OSError):
    """A listen address cannot be used; the message names it."""


class Peer(NamedTuple):
    """The process at the other end of a unix socket, as the kernel knows it."""

    pid: int
    uid: int
    gid: int


_UCRED = struct.Struct("iII")
"""struct ucred of unix(7): users and groups have no sign."""


def peer_of(sock: socket.socket) -> Peer:
    """Who is at the other end of a unix socket."""
    return Peer(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``; the host of the last one is empty.

    Raises:
        EndpointError: it is none of them.
    """
    host, separator, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1
    if not separator or not 0 <= number <= 65535 or (":" in host and not bracketed):
        raise EndpointError(
            f"listen address {address!r}: expected HOST:PORT, [IPV6]:PORT, or :PORT for all addresses of this node"
        )
    return (host[1:-1] if bracketed else host), number


def bind(address: str) -> list[socket.socket]:
    """Listening sockets for an address: one, or for a host name one for each of its addresses.

    ``:PORT`` gives one socket for IPv6 and IPv4 together, or one for IPv4 where the node has no IPv6.

    Raises:
        EndpointError: the address cannot be understood or taken.
    """
    host, port = split_address(address)
    try:
        return [_bind_all_addresses(port)] if not host else _bind_host(host, port)
    except socket.gaierror as error:
        raise EndpointError(
            f"listen address {address!r}: {host!r} is no address of a node: {error.strerror}"
        ) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise EndpointError(f"cannot listen on {address!r}: {reason}") from error


def passed_sockets(
    environment: MutableMapping[str, str] = os.environ, first: int = _FIRST_PASSED
) -> list[socket.socket]:
    """The listening sockets that systemd hands to this process (sd_listen_fds); none the second time.

    Neither children nor the programs that they start get to see them.

    Raises:
        EndpointError: one of them is no listening stream socket.
    """
    mine = environment.get("LISTEN_PID") == str(os.getpid())
    count = environment.get("LISTEN_FDS", "")
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environment.pop(name, None)
    if not mine or not count.isdigit():
        return []
    return [_passed(descriptor) for descriptor in range(first, first + int(count))]


def _passed(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        passed = socket.socket(fileno=descriptor)
    except OSError as error:
        raise EndpointError(f"file descriptor {descriptor} from systemd is no socket: {error.strerror}") from error
    if passed.type != socket.SOCK_STREAM or not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        passed.close()
        raise EndpointError(
            f"file descriptor {descriptor} from systemd does not listen for connections: "
            "the socket unit needs ListenStream= and Accept=no"
        )
    passed.setblocking(False)
    return passed


def name_of(bound: socket.socket) -> str:
    """The address of a bound socket, as an operator would write it."""
    if bound.family == socket.AF_UNIX:
        return str(bound.getsockname())
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if bound.family == socket.AF_INET6 else f"{host}:{port}"


def _bind_all_addresses(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # IPv6 is switched off
                raise
    return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)  # noqa: S104  all addresses is what :PORT asks for


def _bind_host(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with ExitStack() as taken:
        bound = [
            taken.enter_context(socket.create_server(where, family=family, backlog=BACKLOG))
            for family, _, _, _, where in dict.fromkeys(found)
        ]
        taken.pop_all()
    return bound
