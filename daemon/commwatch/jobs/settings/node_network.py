"""The network of a node that NCCL settings are judged by: interfaces, RDMA ports, and the ways to GPU memory.

``commwatch.jobs.settings.node_network SYSFS PROCFS`` reads it in a process of its own, and prints it as JSON.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from commwatch.jobs.settings.facts import RdmaPort
from commwatch.sources import files
from commwatch.sources.gpudirect import read_gpudirect
from commwatch.sources.presence import is_virtual
from commwatch.sources.rdma.places import is_function_beside

_UP = frozenset({"up", "unknown"})
"""Loopback and tunnels have no state of their own."""
_DOWN = frozenset({"down", "lowerlayerdown", "notpresent", "dormant"})
_ACTIVE = "4:"
_EMPTY_GID = frozenset("0:")


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The network of the node; None: not known."""

    interfaces: dict[str, bool | None] | None
    """Whether each carries traffic."""
    rdma_ports: tuple[RdmaPort, ...] | None
    peermem: bool | None
    """Whether nvidia_peermem, its forerunner nv_peer_mem, or the module of EFA adapters is loaded."""
    dma_buf: bool | None
    """Whether NVIDIA's open kernel module is loaded, which gives GPU memory by dma-buf."""
    virtual: bool | None


def read_node_network(sysfs: Path, procfs: Path) -> NodeNetwork:
    """Read it once. Blocks, as an adapter's firmware may."""
    gpudirect = read_gpudirect(str(sysfs), str(procfs))
    return NodeNetwork(
        _interfaces(sysfs / "class/net"),
        _ports(sysfs / "class/infiniband", (sysfs / "class").is_dir()),
        gpudirect.peermem,
        gpudirect.dma_buf,
        is_virtual(procfs),
    )


def _interfaces(folder: Path) -> dict[str, bool | None] | None:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    # bonding_masters is a file.
    return {files.label_of(name): _up(f"{folder}/{name}") for name in names if os.path.isdir(f"{folder}/{name}")}


def _up(interface: str) -> bool | None:
    state = files.parse_word(files.read_if_there(f"{interface}/operstate") or b"")
    return True if state in _UP else False if state in _DOWN else None


def _ports(folder: Path, class_there: bool) -> tuple[RdmaPort, ...] | None:
    try:
        devices = sorted(os.listdir(folder))
    except FileNotFoundError:
        return () if class_there else None
    except OSError:
        return None
    return tuple(port for device in devices for port in _device(f"{folder}/{device}", files.label_of(device)))


def _device(path: str, name: str) -> list[RdmaPort]:
    try:
        numbers = sorted(int(port) for port in os.listdir(f"{path}/ports") if port.isdecimal())
    except OSError:
        return []
    is_function = is_function_beside(path)
    return [_port(f"{path}/ports/{number}", name, number, is_function) for number in numbers]


def _port(path: str, device: str, number: int, is_function: bool) -> RdmaPort:
    state = files.parse_word(files.read_if_there(f"{path}/state") or b"")
    layer = files.parse_word(files.read_if_there(f"{path}/link_layer") or b"")
    rate = files.parse_word(files.read_if_there(f"{path}/rate") or b"")
    return RdmaPort(
        device, number,
        active=state == _ACTIVE if state else None,
        link_layer=layer,
        rate_gbit=float(rate) if rate.replace(".", "", 1).isdecimal() else None,
        gids=_gids(f"{path}/gids") if layer == "Ethernet" else None,
        is_virtual=is_function,
    )  # fmt: skip


def _gids(folder: str) -> frozenset[int] | None:
    """The entries that are filled; an empty one holds zeros, or cannot be read."""
    try:
        entries = [entry for entry in os.listdir(folder) if entry.isdecimal()]
    except OSError:
        return None
    filled = {
        entry
        for entry in entries
        if set(files.parse_word(files.read_if_there(f"{folder}/{entry}") or b"0")) - _EMPTY_GID
    }
    return frozenset(map(int, filled))


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(read_node_network(Path(sys.argv[1]), Path(sys.argv[2]))))
