"""Answers of the simulated driver for each field of ``nvmlDeviceGetFieldValues``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from commwatch_rehearsal.simulation.abi import INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS
from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.faults.nvidia_kinds import PCIE_COUNTERS
from commwatch_rehearsal.simulation.gpu_conditions import GpuCondition
from commwatch_rehearsal.simulation.hardware import Epoch, Hardware
from commwatch_rehearsal.simulation.pace import Flow
from commwatch_rehearsal.simulation.presets.parts import NVLinkModel

ALL_LINKS = 0xFFFFFFFF
"""The scope that asks for the sum over all links."""
ALL_ONES = 2**64 - 1
"""A count that the driver does not have."""

_UNSIGNED_INT, _UNSIGNED_LONG_LONG = 1, 3
_AMPERE, _HOPPER = 7, 9
_KIB = 1024
_MEMORY_WARMER_CELSIUS = 6
_RAW_OVERHEAD = 17 / 16
"""Raw over payload bytes: one flit of header for 16 flits of payload."""
_MEAN_PACKET_BYTES = 240

Count: TypeAlias = Callable[[float], int]
"""A counter as a function of the time, seconds since the node started."""


@dataclass(frozen=True, slots=True)
class FieldAnswer:
    """The answer for one entry within an epoch: a code, a fixed value, a flow over its unit, or a function of the
    time."""

    code: int
    value_type: int = _UNSIGNED_INT
    value: int = 0
    flow: tuple[Flow, float] | None = None
    count: Count | None = None

    @property
    def is_flat(self) -> bool:
        """Whether it does not change within an epoch."""
        return self.flow is None and self.count is None

    def at(self, time: float) -> int:
        """The value at a time within the epoch."""
        if self.flow is not None:
            flow, unit = self.flow
            return int(flow.bytes_at(time) / unit)
        return self.value if self.count is None else self.count(time)


@dataclass(frozen=True, slots=True)
class Asked:
    """One GPU in one epoch, and the scope of the field."""

    hardware: Hardware
    epoch: Epoch
    gpu: int
    """Place in the preset."""
    scope: int

    @property
    def condition(self) -> GpuCondition:
        return self.epoch.gpus[self.gpu]

    def events(self, kind: str, link: int | None = None) -> FieldAnswer:
        """A counter that faults of one kind move."""
        return self.counted(self.hardware.timeline.counting(kind, self.gpu, link))

    def counted(self, faults: Sequence[Fault]) -> FieldAnswer:
        """A counter that these faults move; a plain 0 where there are none."""
        if not faults:
            return number(0)
        return FieldAnswer(
            SUCCESS, _UNSIGNED_LONG_LONG, count=partial(self.hardware.timeline.events, tuple(faults), self.gpu)
        )


Field: TypeAlias = Callable[[Asked], FieldAnswer]

REFUSED = FieldAnswer(NOT_SUPPORTED)
NO_SUCH_LINK = FieldAnswer(INVALID_ARGUMENT)
"""Also for the traffic, speed and far end of a link that is not active."""


def code(value: int) -> FieldAnswer:
    """A number of 32 bits."""
    return FieldAnswer(SUCCESS, value=value)


def number(value: int) -> FieldAnswer:
    """A number of 64 bits."""
    return FieldAnswer(SUCCESS, _UNSIGNED_LONG_LONG, value)


def counter(count: Count) -> FieldAnswer:
    """A number of 64 bits that changes with time."""
    return FieldAnswer(SUCCESS, _UNSIGNED_LONG_LONG, count=count)


def flowing(flow: Flow, unit: float = 1.0) -> FieldAnswer:
    """A number of 64 bits: a flow in whole units."""
    return FieldAnswer(SUCCESS, _UNSIGNED_LONG_LONG, flow=(flow, unit))


def of_link(nvlink: NVLinkModel, read: Field, asked: Asked) -> FieldAnswer:
    """A field of one link: refuses links that are not there."""
    return NO_SUCH_LINK if asked.scope >= nvlink.links else read(asked)


def traffic(direction: str, unit: float) -> Field:
    """A traffic counter; the driver refuses it for a link that is not active."""

    def read(asked: Asked) -> FieldAnswer:
        condition = asked.condition
        flows = condition.transmit if direction == "transmit" else condition.receive
        active = condition.links_active
        if asked.scope == ALL_LINKS and any(active):
            present = [flow for flow, up in zip(flows, active, strict=True) if up]
            answer = counter(lambda time: sum(int(flow.bytes_at(time) / unit) for flow in present))
        elif asked.scope < len(flows) and active[asked.scope]:
            answer = flowing(flows[asked.scope], unit)
        else:
            return NO_SUCH_LINK
        if condition.blank:
            return number(ALL_ONES if condition.blank == "ones" else 0)
        return answer

    return read


TRAFFIC: dict[int, Field] = {
    138: traffic("transmit", _KIB),
    139: traffic("receive", _KIB),
    140: traffic("transmit", _KIB / _RAW_OVERHEAD),
    141: traffic("receive", _KIB / _RAW_OVERHEAD),
}
"""Traffic of links since Ampere, KiB."""

NVLINK_5_TRAFFIC: dict[int, Field] = {
    201: traffic("transmit", _MEAN_PACKET_BYTES),
    202: traffic("transmit", 1.0),
    203: traffic("receive", _MEAN_PACKET_BYTES),
    204: traffic("receive", 1.0),
}
"""Packets and bytes of the same flows."""

LINK_ERRORS = {161: "nvlink_replay", 162: "nvlink_recovery", 163: "nvlink_crc"}
"""NVLink 1 to 4: kind of fault that moves the counter."""


def link_errors(asked: Asked, kind: str, link: int) -> FieldAnswer:
    """A counter of the data link layer, NVLink 1 to 4; a failed recovery is one, too."""
    faults = asked.hardware.timeline.counting(kind, asked.gpu, link)
    failed = asked.hardware.timeline.counting("nvlink_recovery_failed", asked.gpu, link)
    return asked.counted([*faults, *(failed if kind == "nvlink_recovery" else ())])


def of_all_links(nvlink: NVLinkModel, field: int, asked: Asked) -> FieldAnswer:
    """Fields 90, 91 and 147: one number for all links of a GPU."""
    active = sum(asked.condition.links_active)
    if field == 90:
        return code(nvlink.line_rate_megabytes_per_second) if active else NO_SUCH_LINK
    return code(nvlink.links if field == 91 else active if nvlink.remote == "switch" else 0)


def link_facts(nvlink: NVLinkModel, field: int, asked: Asked) -> FieldAnswer:
    """Fields of one link that are no counters: 146, 164, 165, 167."""
    link, active = asked.scope, asked.condition.links_active[asked.scope]
    if field == 165:
        return code(int(active))
    if not active:
        return NO_SUCH_LINK
    if field == 164:
        return code(nvlink.line_rate_megabytes_per_second)
    if field == 167:
        # Links without work save power.
        return code(int(not asked.condition.busy)) if asked.hardware.preset.model.architecture >= _HOPPER else REFUSED
    peer = asked.hardware.preset.peer(asked.gpu, link)
    return code(peer[1] if peer is not None else _switch_port(nvlink, asked))


def _switch_port(nvlink: NVLinkModel, asked: Asked) -> int:
    """A port of the switch that no other link of the node leads to."""
    switches = max(1, len(asked.hardware.preset.nvswitches))
    links_per_switch = -(-nvlink.links // switches)
    return asked.gpu * links_per_switch + asked.scope // switches


_CORRECTABLE_TOO = ("receiver", "lcrc", "naks_received")
"""Counters that the total of correctable errors holds."""


def pcie_errors(name: str, asked: Asked) -> FieldAnswer:
    """A PCIe error counter of the GPU's end of the link."""
    faults = asked.hardware.timeline.counting("pcie_errors", asked.gpu)
    names = {name, *(_CORRECTABLE_TOO if name == "correctable" else ())}
    return asked.counted([fault for fault in faults if fault.words["counter"] in names])


def _pcie_recoveries(asked: Asked) -> FieldAnswer:
    """Faults, and the changes of speed when work begins and ends."""
    jobs = asked.hardware.timeline.counting("job", asked.gpu)
    errors = pcie_errors("recoveries", asked)
    if not jobs:
        return errors
    since, now = asked.hardware.timeline.last_reset(asked.gpu, asked.epoch.start), asked.epoch.start
    changes = sum(since < moment <= now for job in jobs for moment in (job.start, job.end))
    if errors.count is None:
        return number(changes)
    events = errors.count
    return counter(lambda time: changes + events(time))


_HELD_BACK_BY = {74: ("sw_power_cap",), 75: ("sw_thermal", "hw_thermal", "hw_slowdown"), 77: ("hw_power_brake",)}
"""Reasons that limit the clocks of a GPU: fields that sum their time."""
_NANOSECONDS = 1e9


def _held_back(reasons: Sequence[str], asked: Asked) -> FieldAnswer:
    """Time with one of these reasons since the last reset, ns; faults that overlap count twice."""
    timeline = asked.hardware.timeline
    faults = [fault for fault in timeline.counting("gpu_throttled", asked.gpu) if fault.reason in reasons]
    since = timeline.last_reset(asked.gpu, asked.epoch.start)

    def nanoseconds(time: float) -> int:
        seconds = sum(max(0.0, min(time, fault.end) - max(since, fault.start)) for fault in faults)
        return int(seconds * _NANOSECONDS)

    return counter(nanoseconds) if faults else number(0)


def _energy(asked: Asked) -> FieldAnswer:
    """Energy since the last reset, mJ."""
    gpus = asked.hardware.gpus
    power = gpus.flow(
        asked.gpu, f"energy{asked.gpu}", "", asked.epoch.start, lambda time: gpus.power_watts(asked.gpu, time) * 1000
    )
    return flowing(power)


DEVICE_FIELDS: dict[int, Field] = {
    **{field: partial(_held_back, _HELD_BACK_BY.get(field, ())) for field in range(74, 82)},
    82: lambda asked: code(asked.condition.temperature_celsius + _MEMORY_WARMER_CELSIUS),
    83: _energy,
    94: lambda asked: asked.events("pcie_replay"),
    169: _pcie_recoveries,
    **{field: partial(pcie_errors, name) for name, field in PCIE_COUNTERS.items() if name != "recoveries"},
    230: lambda asked: code(asked.condition.recovery_action),
}
"""Fields that have nothing to do with NVLink."""
DEVICE_GAUGES = frozenset({82, 230})
"""Those of them that are no counters."""
