"""The Xid events of a simulated node: what the driver reports to listeners, and what the kernel logs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.presets.parts import NVLINK_5

_NVLINK_ERROR, _NVLINK_5_LINK_ERROR, _OFF_THE_BUS, _RECOVERY_ACTION_CHANGED = 74, 149, 79, 154


@dataclass(frozen=True, slots=True, order=True)
class XidEvent:
    time: float
    """Seconds since the node started."""
    gpu: int
    """Place in the preset."""
    xid: int
    number: int
    """Which event of its fault it is, from 0."""
    link: int | None = None
    """The NVLink that it is about."""


def xid_events(hardware: Hardware, after: float, until: float) -> list[XidEvent]:
    """The events after a time and up to another, in their order; seconds since the node started."""
    events: set[XidEvent] = set()
    for fault in hardware.faults:
        for gpu, xid, link in causes(hardware, fault):
            events.update(
                XidEvent(time, gpu, xid, number, link)
                for number, time in _times(fault, after, until)
                if gpu in hardware.epoch(time).enumerated
            )
    return sorted(events, key=lambda event: (event.time, event.gpu, event.xid, event.number))


def causes(hardware: Hardware, fault: Fault) -> Iterator[tuple[int, int, int | None]]:
    """GPU, Xid and link of each event that a fault raises whenever it counts."""
    if fault.kind in {"nvlink_down", "nvlink_recovery_failed"}:
        yield from _link_errors(hardware, fault)
    elif fault.gpu is not None and fault.kind == "xid":
        yield fault.gpu, int(fault.settings["xid"]), None
    elif fault.gpu is not None and fault.kind == "gpu_lost":
        yield fault.gpu, _OFF_THE_BUS, None
    elif fault.gpu is not None and fault.kind == "recovery_needed":
        yield fault.gpu, _RECOVERY_ACTION_CHANGED, None


def _link_errors(hardware: Hardware, fault: Fault) -> Iterator[tuple[int, int, int | None]]:
    """One for each GPU at an end of the links; the link is named where it is one."""
    nvlink = hardware.preset.model.nvlink
    if nvlink is None or fault.gpu is None or nvlink.remote == "none":
        return
    xid = _NVLINK_5_LINK_ERROR if nvlink.version >= NVLINK_5 else _NVLINK_ERROR
    yield fault.gpu, xid, fault.link
    links = range(nvlink.links) if fault.link is None else [fault.link]
    peers = {peer for link in links if (peer := hardware.preset.peer(fault.gpu, link)) is not None}
    for gpu in sorted({gpu for gpu, _ in peers}):
        own = [link for place, link in peers if place == gpu]
        yield gpu, xid, own[0] if len(own) == 1 else None


def _times(fault: Fault, after: float, until: float) -> Iterator[tuple[int, float]]:
    """Number and time of each event of a fault in a window: one when it begins, more only where it has a rate."""
    rate = fault.settings.get("rate", 0.0)
    if rate == 0:
        if after < fault.start <= until:
            yield 0, fault.start
        return
    number = 0 if after < fault.start else math.floor((after - fault.start) * rate) + 1
    while (time := fault.start + number / rate) <= until and time < fault.end:
        yield number, time
        number += 1
