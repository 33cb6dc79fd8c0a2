"""The Xids and SXids that the driver and the kernel log reported, by device: facts, which the findings judge."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TypeVar

from commwatch_exporters.node.model import Gpu, Node, NvSwitch
from commwatch_exporters.node.parts import KeyedColumn

_Device = TypeVar("_Device", Gpu, NvSwitch)


def driver_events(node: Node) -> Iterator[tuple[str, str]]:
    """Each GPU and NVSwitch that had events, and how often each code came since the totals began."""
    for gpu, codes in _codes(node, Gpu.xids).items():
        latest = gpu.last_xid_timestamp_seconds
        when = "" if latest is None else f", last {_moment(latest)}"
        yield f"GPU{gpu.index} ({gpu.address})", f"Xid {codes}{when}"
    for switch, codes in _codes(node, NvSwitch.sxids).items():
        yield f"NVSwitch {switch.address}", f"SXid {codes}"


def _codes(node: Node, column: KeyedColumn[_Device]) -> dict[_Device, str]:
    """``79 (1 ×), 94 (3 ×)`` by device."""
    found: dict[_Device, list[str]] = {}
    for device, code, count in node.each_keyed(column):
        if count:
            found.setdefault(device, []).append(f"{code} ({count:g} ×)")
    return {device: ", ".join(codes) for device, codes in found.items()}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
