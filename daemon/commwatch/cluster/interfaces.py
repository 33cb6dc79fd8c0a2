"""The interfaces of a node, and which one NCCL and gloo would take; reading and choosing apart."""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from commwatch.cluster.messages import WORD, Choice, Interface
from commwatch.jobs.settings.values import parse_names

_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK, _SIOCGIFMTU = 0x8913, 0x8915, 0x891B, 0x8921
_UP_AND_RUNNING = 0x1 | 0x40
"""IFF_UP and IFF_RUNNING."""
UNSUITED = ("lo", "docker", "virbr", "cni", "br-", "veth", "podman")
"""Beginnings of the names of interfaces that lead to no other node."""


def read_interfaces(procfs: Path) -> tuple[Interface, ...]:
    """The interfaces that are up, in the kernel's order, each with its first IPv4 address; then those of IPv6.

    So ``getifaddrs`` gives them, by which NCCL goes.
    """
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            if not re.fullmatch(WORD, name):
                continue
            request = struct.pack("16s240x", name.encode("utf-8", "surrogateescape")[:15])
            with suppress(OSError):
                if _number(sock, _SIOCGIFFLAGS, request, "<H") & _UP_AND_RUNNING != _UP_AND_RUNNING:
                    continue
                address = socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24])
                mask = socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFNETMASK, request)[20:24])
                prefix = ipaddress.IPv4Network(f"0.0.0.0/{mask}").prefixlen
                mtu = _number(sock, _SIOCGIFMTU, request, "<i")
                found.append(Interface(name=name[:15], address=address, prefix=prefix, mtu=mtu))
    with suppress(OSError):
        lines = (procfs / "net/if_inet6").read_text(errors="replace")
        found += [one for one in parse_if_inet6(lines) if re.fullmatch(WORD, one.name)]
    return tuple(found[:64])


def _number(sock: socket.socket, call: int, request: bytes, layout: str) -> int:
    (number,) = struct.unpack_from(layout, fcntl.ioctl(sock, call, request), 16)
    return int(number)


def parse_if_inet6(text: str) -> Iterator[Interface]:
    """The lines of ``/proc/net/if_inet6``: address, index, prefix, scope, flags, name."""
    for line in text.splitlines():
        words = line.split()
        with suppress(ValueError, IndexError):
            yield Interface(
                name=words[5][:15], address=str(ipaddress.IPv6Address(int(words[0], 16))), prefix=int(words[2], 16)
            )


def nccl_choice(interfaces: Sequence[Interface], variables: Mapping[str, str]) -> Choice:
    """The interface that NCCL uses for its start-up and for TCP.

    With NCCL_SOCKET_IFNAME the first that it selects; else the first whose name begins with ``ib``, else the first that
    is neither lo nor docker, else docker, else lo.

    Source: ``ncclFindInterfaces`` in ``src/misc/socket.cc`` of NCCL.
    """
    family = {"AF_INET": 4, "AF_INET6": 6}.get(variables.get("NCCL_SOCKET_FAMILY", ""))
    usable = [one for one in interfaces if (family is None or _version(one) == family) and one.address != "::1"]
    if text := variables.get("NCCL_SOCKET_IFNAME", ""):
        wanted = parse_names(text)
        return _choice([one for one in usable if wanted.selects(one.name)], "NCCL_SOCKET_IFNAME")
    for rule in ("ib", "^docker,lo,virbr", "docker", "lo"):
        names = parse_names(rule)
        if found := [one for one in usable if names.selects(one.name)]:
            return _choice(found, "")
    return Choice()


def gloo_choice(interfaces: Sequence[Interface], variables: Mapping[str, str], own_addresses: Sequence[str]) -> Choice:
    """The interface that gloo uses: GLOO_SOCKET_IFNAME, else the first address of the node's own name that is the
    node's."""
    if text := variables.get("GLOO_SOCKET_IFNAME", ""):
        return _choice([one for one in interfaces if one.name == text.split(",", maxsplit=1)[0]], "GLOO_SOCKET_IFNAME")
    for address in own_addresses:
        for one in interfaces:
            if one.address == address:
                return Choice(interface=one.name, address=address)
        if ipaddress.ip_address(address).is_loopback:  # 127.0.1.1 is on lo, though it has no name there
            return Choice(interface="lo", address=address)
    return Choice()


def network(interface: Interface) -> str:
    """The subnet of an interface."""
    return str(ipaddress.ip_network(f"{interface.address}/{interface.prefix}", strict=False))


def leads_nowhere(choice: Choice) -> bool:
    """Whether other nodes cannot be reached from an interface, whatever the network is like."""
    if not choice.interface:
        return True
    address = ipaddress.ip_address(choice.address)
    return choice.interface.startswith(UNSUITED) or address.is_loopback or address.is_link_local


def _choice(found: Sequence[Interface], why: str) -> Choice:
    return Choice(interface=found[0].name, address=found[0].address, why=why) if found else Choice(why=why)


def _version(interface: Interface) -> int:
    return ipaddress.ip_address(interface.address).version
