"""RDMA ports of a simulated node: their state and their counters, functions of preset, faults and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.gpu_conditions import GpuConditions
from commwatch_rehearsal.simulation.pace import Flow, happened, phase_of
from commwatch_rehearsal.simulation.presets.parts import RdmaPort
from commwatch_rehearsal.simulation.rdma_counters import PORT_COUNTERS, QUEUE_COUNTERS, ROCE_COUNTERS, Counter
from commwatch_rehearsal.simulation.timeline import Timeline

_DOWNS = frozenset({"rdma_port_down", "ethernet_down"})
_CONGESTION: Mapping[str, frozenset[str]] = {
    "InfiniBand": frozenset({"port_xmit_wait"}),
    "Ethernet": frozenset({"np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled"}),
}
"""Counters that congestion raises, by link layer."""


@dataclass(frozen=True, slots=True)
class PortCondition:
    """State of one port throughout an epoch. All times are seconds since the node started."""

    port: RdmaPort
    faults: Sequence[Fault]
    """Those that strike it at some time."""
    last_reset: float
    """When the counters last began at 0: at boot, or when a fault of that kind says so."""
    up: bool
    set_up: bool
    """Whether it is active where it has a link."""
    readable: bool
    sent: Flow
    """Bytes."""
    received: Flow

    @property
    def downs(self) -> list[Fault]:
        """The faults that take its link away."""
        return [fault for fault in self.faults if fault.kind in _DOWNS]

    def counts(self, time: float) -> Iterator[tuple[str, int]]:
        """The counters that it has, by their path below the port, at a time within the epoch."""
        extra = ROCE_COUNTERS if self.port.link_layer == "Ethernet" else ()
        sent, received = int(self.sent.bytes_at(time)), int(self.received.bytes_at(time))
        for folder, counters in (("counters", PORT_COUNTERS), ("hw_counters", (*QUEUE_COUNTERS, *extra))):
            for counter in counters:
                count = sent // counter.sent if counter.sent else 0
                count += received // counter.received if counter.received else 0
                yield f"{folder}/{counter.name}", self._with_faults(counter, count, time)

    def _with_faults(self, counter: Counter, count: int, time: float) -> int:
        for fault in self.faults:
            if not self._counts_in(fault, counter):
                continue
            if fault.kind == "rdma_saturated":
                if fault.active(time):
                    return counter.maximum
            elif "rate" in fault.settings:
                count += happened(fault, self.last_reset, time)
            else:
                count += self.last_reset < fault.start <= time
        return count % (counter.maximum + 1) if counter.wraps else min(count, counter.maximum)

    def _counts_in(self, fault: Fault, counter: Counter) -> bool:
        """Whether a fault shows in a counter."""
        if fault.kind in {"rdma_errors", "rdma_saturated"}:
            return fault.words["counter"] == counter.name
        if fault.kind == "rdma_congestion":
            return counter.name in _CONGESTION[self.port.link_layer]
        return fault.kind in _DOWNS and counter.name == "link_downed"


def port_condition(port: RdmaPort, timeline: Timeline, gpus: GpuConditions, start: float) -> PortCondition:
    """The condition of a port in the epoch that begins at ``start``."""
    faults = [fault for fault in timeline.faults if _strikes(fault, port)]
    kinds = {fault.kind for fault in faults if fault.active(start)}
    resets = [fault.start for fault in faults if fault.kind == "rdma_counter_reset" and fault.start <= start]
    last_reset = max([timeline.last_boot(start), *resets])
    silent = [fault for fault in faults if fault.kind in _DOWNS or fault.kind == "rdma_port_not_set_up"]

    def rate_at(time: float) -> float:
        """Mean traffic of each direction, bytes per second."""
        if any(fault.active(time) for fault in silent):
            return 0.0
        share = gpus.network_use("rdma_utilization", time)
        return max(port.background_bytes_per_second, share * port.rate_gigabits_per_second * 1e9 / 8)

    sent, received = (
        timeline.flow(phase_of(f"{port.device}.{port.port}", way), last_reset, start, rate_at) for way in ("tx", "rx")
    )
    return PortCondition(
        port=port,
        faults=faults,
        last_reset=last_reset,
        up=not kinds & _DOWNS,
        set_up="rdma_port_not_set_up" not in kinds,
        readable="rdma_read_error" not in kinds,
        sent=sent,
        received=received,
    )


def _strikes(fault: Fault, port: RdmaPort) -> bool:
    """Whether a fault strikes an RDMA port, by its own name or by that of its network interface."""
    if fault.kind == "ethernet_down":
        return bool(port.interface) and fault.interface == port.interface
    return fault.kind.startswith("rdma_") and fault.device == port.device and fault.port in {None, port.port}
