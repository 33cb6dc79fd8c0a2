"""Whose share of the endpoint a connection takes."""

from __future__ import annotations

import socket

_MAPPED_IPV4 = bytes(10) + b"\xff\xff"
_NETWORK_BYTES = 8  # of an IPv6 address: a host has all addresses of its /64


def client_of(peer: object) -> str:
    """The client behind the address of a socket's peer.

    Args:
        peer: As ``socket.getpeername`` gives it.

    Returns:
        The address for IPv4, also where it is mapped into IPv6; the /64 for IPv6; empty for all peers of unix sockets.
    """
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    address = socket.inet_pton(socket.AF_INET6, host)
    if address.startswith(_MAPPED_IPV4):
        return socket.inet_ntop(socket.AF_INET, address[len(_MAPPED_IPV4) :])
    return socket.inet_ntop(socket.AF_INET6, address[:_NETWORK_BYTES] + bytes(_NETWORK_BYTES)) + "/64"
