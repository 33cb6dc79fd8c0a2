"""The table of GIDs of an RDMA port: by which addresses other ports reach it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from commwatch.sources import files
from commwatch.sources.rdma.places import names_in

MOST_ENTRIES: Final = 1024
"""Adapters have up to 256; further entries, as in a file system of a user's making, are not read."""

_V2 = b"RoCE v2"
_DIGITS: Final = 32
_LINK_LOCAL: Final = "fe80"
_IPV4_PREFIX: Final = f"{0:020x}ffff"
"""Of an IPv4 address that is written as one of IPv6."""


class Gids(NamedTuple):
    """The contents of a GID table."""

    filled: int
    lowest: Mapping[str, int]
    """Lowest index of each kind: ``infiniband``, ``roce_v1``, ``roce_v2_ipv4``, ``roce_v2_ipv6`` and
    ``roce_v2_link_local``; of other link layers, and of iWARP, only the number is known."""


def parse_gid(data: bytes) -> str | None:
    """The 32 hexadecimal digits of a GID such as ``fe80:0000:…``; None for an empty entry and any other text."""
    text = data.strip().decode("ascii", "replace").replace(":", "").lower()
    if len(text) != _DIGITS or text.strip("0123456789abcdef") or not text.strip("0"):
        return None
    return text


def kind_of(gid: str, gid_type: bytes, link_layer: str) -> str:
    """The kind of a GID entry.

    Args:
        gid: as ``parse_gid`` gives it.
        gid_type: the entry of ``gid_attrs/types``: ``IB/RoCE v1`` or ``RoCE v2``.
    """
    if link_layer == "InfiniBand":
        return "infiniband"
    if link_layer != "Ethernet":
        return ""
    if gid_type.strip() != _V2:
        return "roce_v1" if gid_type.strip() else ""
    if gid.startswith(_IPV4_PREFIX):
        return "roce_v2_ipv4"
    return "roce_v2_link_local" if gid.startswith(_LINK_LOCAL) else "roce_v2_ipv6"


def read_gids(port: str, link_layer: str) -> Gids | None:
    """The table of a port; None where there is none. The kernel answers from memory, not from the adapter.

    Args:
        link_layer: of the port; empty for iWARP, whose GIDs have no kind.
    """
    if not os.path.isdir(f"{port}/gids"):
        return None
    filled = 0
    lowest: dict[str, int] = {}
    for index in sorted(int(name) for name in names_in(f"{port}/gids") if name.isdecimal())[:MOST_ENTRIES]:
        gid = parse_gid(files.read_if_there(f"{port}/gids/{index}") or b"")
        if gid is None:
            continue
        filled += 1
        kind = kind_of(gid, files.read_if_there(f"{port}/gid_attrs/types/{index}") or b"", link_layer)
        if kind:
            lowest.setdefault(kind, index)
    return Gids(filled, lowest)
