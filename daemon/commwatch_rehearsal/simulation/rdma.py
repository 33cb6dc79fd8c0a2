"""Counters of the RDMA ports of a simulated node at any time: a pure function of preset, faults and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.gpu_conditions import Flow
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.pace import happened, phase_of
from commwatch_rehearsal.simulation.presets.parts import RdmaPort
from commwatch_rehearsal.simulation.rdma_counters import PORT_COUNTERS, QUEUE_COUNTERS, ROCE_COUNTERS, Counter
from commwatch_rehearsal.simulation.timeline import REBOOTS

Folder: TypeAlias = Literal["counters", "hw_counters"]

_CONGESTION: Mapping[str, frozenset[str]] = {
    "InfiniBand": frozenset({"port_xmit_wait"}),
    "Ethernet": frozenset({"np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled"}),
}
"""Counters that congestion raises, by link layer."""


@dataclass(frozen=True, slots=True)
class PortStretch:
    """The state of a port between two changes."""

    start: float
    end: float
    up: bool
    set_up: bool
    """Whether it is active where it has a link."""
    readable: bool
    sent: Flow
    """Bytes."""
    received: Flow
    resting: Mapping[str, int]
    """Counters by their path below the port that do not move in this stretch."""
    moving: tuple[tuple[str, Counter], ...]
    """Path and counter of those that do."""


class RdmaPortState:
    """One port under a fixed set of faults. All times are seconds since the node started."""

    def __init__(self, hardware: Hardware, port: RdmaPort) -> None:
        self.port = port
        self._hardware = hardware
        own = [fault for fault in hardware.faults if strikes_port(fault, port)]
        self._faults = own
        self.downs = [fault for fault in own if fault.kind in {"rdma_port_down", "ethernet_down"}]
        self._waits = [fault for fault in own if fault.kind == "rdma_port_not_set_up"]
        self._jobs = [fault for fault in hardware.faults if fault.kind in {"job", "job_phase"}]
        self._boundaries = sorted(
            {0.0, math.inf}
            | {moment for fault in (*own, *self._jobs) for moment in (fault.start, fault.end)}
            | {fault.start for fault in hardware.faults if fault.kind in REBOOTS}
            | {fault.end for fault in hardware.faults if fault.kind in REBOOTS}
        )
        self._stretch: PortStretch | None = None

    def stretch(self, time: float) -> PortStretch:
        """The state at a time; the same object until something changes."""
        stretch = self._stretch
        if stretch is None or not stretch.start <= time < stretch.end:
            stretch = self._stretch = self._make_stretch(max(0.0, time))
        return stretch

    def value(self, counter: Counter, time: float) -> int:
        return self._value(counter, self.stretch(time), time)

    def _make_stretch(self, time: float) -> PortStretch:
        start = max(moment for moment in self._boundaries if moment <= time)
        end = min(moment for moment in self._boundaries if moment > time)
        kinds = {fault.kind for fault in self._faults if fault.active(start)}
        stretch = PortStretch(
            start=start,
            end=end,
            up=not any(fault.active(start) for fault in self.downs),
            set_up=not any(fault.active(start) for fault in self._waits),
            readable="rdma_read_error" not in kinds,
            sent=self._flow("tx", start),
            received=self._flow("rx", start),
            resting={},
            moving=(),
        )
        resting, moving = {}, []
        for folder, counters in self.files():
            for counter in counters:
                if self._moves(counter, stretch):
                    moving.append((f"{folder}/{counter.name}", counter))
                else:
                    resting[f"{folder}/{counter.name}"] = self._value(counter, stretch, start)
        return PortStretch(
            start,
            end,
            stretch.up,
            stretch.set_up,
            stretch.readable,
            stretch.sent,
            stretch.received,
            resting,
            tuple(moving),
        )

    def files(self) -> Sequence[tuple[Folder, Sequence[Counter]]]:
        """The counters that this port has."""
        extra = ROCE_COUNTERS if self.port.link_layer == "Ethernet" else ()
        return (("counters", PORT_COUNTERS), ("hw_counters", (*QUEUE_COUNTERS, *extra)))

    def _moves(self, counter: Counter, stretch: PortStretch) -> bool:
        carried = (counter.sent and stretch.sent.rate) or (counter.received and stretch.received.rate)
        return bool(carried) or any(
            "rate" in fault.settings and fault.active(stretch.start) and self._counts_in(fault, counter)
            for fault in self._faults
        )

    def _value(self, counter: Counter, stretch: PortStretch, time: float) -> int:
        since = self.last_reset(time)
        count = 0
        if counter.sent:
            count += int(stretch.sent.bytes_at(time)) // counter.sent
        if counter.received:
            count += int(stretch.received.bytes_at(time)) // counter.received
        for fault in self._faults:
            if not self._counts_in(fault, counter):
                continue
            if fault.kind == "rdma_saturated":
                if fault.active(time):
                    return counter.maximum
            elif "rate" in fault.settings:
                count += happened(fault, since, time)
            else:
                count += since < fault.start <= time
        return count % (counter.maximum + 1) if counter.wraps else min(count, counter.maximum)

    def _counts_in(self, fault: Fault, counter: Counter) -> bool:
        """Whether a fault shows in a counter."""
        if fault.kind in {"rdma_errors", "rdma_saturated"}:
            return fault.words["counter"] == counter.name
        if fault.kind == "rdma_congestion":
            return counter.name in _CONGESTION[self.port.link_layer]
        return fault in self.downs and counter.name == "link_downed"

    def _flow(self, direction: str, start: float) -> Flow:
        phase = phase_of(f"{self.port.device}.{self.port.port}", direction)
        pace = Flow(0.0, 1.0, phase)
        since = self.last_reset(start)
        cuts = [since, *(moment for moment in self._boundaries if since < moment < start), start]
        before = sum(self._rate(begin) * (pace.bytes_at(end) - pace.bytes_at(begin)) for begin, end in pairwise(cuts))
        rate = self._rate(start)
        return Flow(before - rate * pace.bytes_at(start), rate, phase)

    def _rate(self, time: float) -> float:
        """Mean traffic of each direction, bytes per second, in the stretch that begins at a time or holds it."""
        if any(fault.active(time) for fault in (*self.downs, *self._waits)):
            return 0.0
        share = self._hardware.gpus.network_use("rdma_utilization", time)
        return max(self.port.background_bytes_per_second, share * self.port.rate_gigabits_per_second * 1e9 / 8)

    def last_reset(self, time: float) -> float:
        """When the counters last began at 0: at boot, or when a fault of that kind says so."""
        resets = [fault.start for fault in self._faults if fault.kind == "rdma_counter_reset" and fault.start <= time]
        return max([self._hardware.last_boot(time), *resets])


def strikes_port(fault: Fault, port: RdmaPort) -> bool:
    """Whether a fault strikes an RDMA port, by its own name or by that of its network interface."""
    if fault.kind == "ethernet_down":
        return bool(port.interface) and fault.interface == port.interface
    return fault.kind.startswith("rdma_") and fault.device == port.device and fault.port in {None, port.port}
