"""State of the parts of a simulated node at any time: a pure function of preset, faults and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.gpu_conditions import GpuCondition, GpuConditions
from commwatch_rehearsal.simulation.pace import Flow, phase_of
from commwatch_rehearsal.simulation.presets.parts import EthernetInterface, Preset
from commwatch_rehearsal.simulation.rdma import PortCondition, port_condition
from commwatch_rehearsal.simulation.timeline import REBOOTS, Timeline

_ENDS_SESSIONS = frozenset({"driver_reload", "driver_unusable"})


@dataclass(frozen=True, slots=True)
class InterfaceCondition:
    """State of one network interface throughout an epoch."""

    up: bool
    """Whether it has its link."""
    received: Flow
    """Bytes of the host, since the last boot; those of RDMA are not among them."""
    sent: Flow


@dataclass(frozen=True, slots=True)
class Epoch:
    """A stretch of time in which no fault begins or ends."""

    start: float
    end: float
    gpus: tuple[GpuCondition, ...]
    """By place in the preset."""
    interfaces: Mapping[str, InterfaceCondition]
    """By name."""
    rdma_ports: tuple[PortCondition, ...]
    """In the order of the preset."""
    enumerated: tuple[int, ...]
    """Places of the GPUs that the driver counts; the position in this tuple is the NVML index."""
    driver_loaded: bool
    driver_reloads: int
    """Times that the driver has been unloaded or became unusable; a session of the library ends when it rises."""
    driver_error: str
    """Why NVML cannot be opened, as the fault names it; empty where it can."""
    confidential: bool


class Hardware:
    """The parts of a node under a fixed set of faults. All times are seconds since the node started."""

    def __init__(self, preset: Preset, faults: Sequence[Fault]) -> None:
        self.preset = preset
        self.faults = tuple(faults)
        self.timeline = Timeline(faults)
        self.gpus = GpuConditions(preset, self.timeline)
        self._epoch: Epoch | None = None

    def epoch(self, time: float) -> Epoch:
        """The epoch of a time; the same object for all times within it."""
        epoch = self._epoch
        if epoch is None or not epoch.start <= time < epoch.end:
            epoch = self._epoch = self._make_epoch(max(0.0, time))
        return epoch

    def last_boot(self, time: float) -> float:
        """When the node last started: at 0, or when a card went missing or came back."""
        return self.timeline.last_boot(time)

    def carrier_changes(self, interface: str, time: float) -> int:
        """Times the link of an interface went up or down since the last boot, the first time up included."""
        boot = self.last_boot(time)
        moments = [moment for fault in self.downs(interface) for moment in (fault.start, fault.end)]
        return 1 + sum(boot < moment <= time for moment in moments)

    def downs(self, interface: str) -> list[Fault]:
        """Faults that take the link of an interface away: by its name, or by that of its RDMA port."""
        ports = [(port.device, port.port) for port in self.preset.rdma_ports if port.interface == interface]
        return [
            fault
            for fault in self.faults
            if (fault.kind == "ethernet_down" and fault.interface == interface)
            or (
                fault.kind == "rdma_port_down"
                and any(fault.device == device and fault.port in {None, port} for device, port in ports)
            )
        ]

    def _make_epoch(self, time: float) -> Epoch:
        start, end = self.timeline.epoch(time)
        active = [fault for fault in self.faults if fault.active(start)]
        kinds = {fault.kind for fault in active}
        missing = {fault.gpu for fault in active if fault.kind in REBOOTS or fault.kind == "gpu_unbound"}
        places = range(len(self.preset.gpus))
        return Epoch(
            start=start,
            end=end,
            gpus=tuple(self.gpus.condition(gpu, start) for gpu in places),
            interfaces={one.name: self._interface(one, start) for one in self.preset.interfaces},
            rdma_ports=tuple(port_condition(port, self.timeline, self.gpus, start) for port in self.preset.rdma_ports),
            enumerated=tuple(gpu for gpu in places if gpu not in missing),
            driver_loaded="driver_reload" not in kinds,
            driver_reloads=sum(fault.kind in _ENDS_SESSIONS and fault.start <= start for fault in self.faults),
            driver_error=next((fault.words["error"] for fault in active if fault.kind == "driver_unusable"), ""),
            confidential="confidential_computing" in kinds,
        )

    def _interface(self, interface: EthernetInterface, start: float) -> InterfaceCondition:
        downs = self.downs(interface.name)
        line = interface.speed_megabits_per_second * 1e6 / 8

        def rate_at(time: float) -> float:
            if any(fault.active(time) for fault in downs):
                return 0.0
            used = self.gpus.network_use("ethernet_utilization", time)
            return max(interface.background_bytes_per_second, used * line)

        received, sent = (
            self.timeline.flow(phase_of(interface.name, way), self.last_boot(start), start, rate_at)
            for way in ("rx", "tx")
        )
        return InterfaceCondition(not any(fault.active(start) for fault in downs), received, sent)
