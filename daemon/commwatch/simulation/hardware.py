"""What the parts of a simulated node do at any time: a pure function of preset, faults and time."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from commwatch.simulation.faults import Fault
from commwatch.simulation.presets import Preset

BACKGROUND_BYTES_PER_SECOND = 3e6
"""Traffic of one active NVLink, each direction, on a node without a job."""

_NOISE_PERIOD_SECONDS = 37.0
_NOISE_SHARE = 0.05
_NOISE_FREQUENCY = 2 * math.pi / _NOISE_PERIOD_SECONDS

Answer: TypeAlias = Literal["ok", "lost", "reset_required", "missing"]
"""How a GPU answers its driver."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A byte counter between two changes of the node: ``offset + rate × (t + noise)``."""

    offset: float
    rate: float
    """Mean, bytes per second."""
    phase: float

    def bytes_at(self, time: float) -> float:
        """Bytes since the last reset, at a time within the epoch; never falls."""
        return self.offset + self.rate * _warped(time, self.phase)


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """What holds for one GPU throughout an epoch."""

    answer: Answer
    hung: bool
    busy: bool
    pcie_generation: int
    """Now; lower than under load while there is no work."""
    pcie_generation_under_load: int
    pcie_width: int
    links_active: tuple[bool, ...]
    slowest_link_share: float
    """What the slowest active link gives, as a share of a healthy one; links of a group wait for the slowest."""
    transmit: tuple[Flow, ...]
    """NVLink payload by link."""
    receive: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class Epoch:
    """A stretch of time in which no fault begins or ends."""

    start: float
    end: float
    gpus: tuple[GpuCondition, ...]
    """By place in the preset."""
    enumerated: tuple[int, ...]
    """Places of the GPUs that the driver counts; the position in this tuple is the NVML index."""


def _warped(time: float, phase: float) -> float:
    """Time with a healthy unrest of a few percent in its pace; grows with time."""
    return time + _NOISE_SHARE / _NOISE_FREQUENCY * math.sin(_NOISE_FREQUENCY * time + phase)


class Hardware:
    """The parts of a node under a fixed set of faults. All times are seconds since the node started."""

    def __init__(self, preset: Preset, faults: Sequence[Fault]) -> None:
        self.preset = preset
        self.faults = tuple(faults)
        moments = {moment for fault in faults for moment in (fault.start, fault.end)}
        self._boundaries = sorted({0.0, *moments, math.inf})
        self._epoch: Epoch | None = None

    def epoch(self, time: float) -> Epoch:
        """The epoch of a time; the same object for all times within it."""
        epoch = self._epoch
        if epoch is None or not epoch.start <= time < epoch.end:
            epoch = self._epoch = self._make_epoch(max(0.0, time))
        return epoch

    def last_boot(self, time: float) -> float:
        """When the node last started: at 0, or when a card went missing or came back."""
        return max([0.0, *(moment for moment in self._reboots() if moment <= time)])

    def pcie_replays(self, gpu: int, time: float) -> int:
        """PCIe packets that a GPU sent again since its last reset."""
        return self._events("pcie_replay", gpu, None, time)

    def nvlink_errors(self, kind: str, gpu: int, link: int, time: float) -> int:
        """Errors of one kind of fault (``nvlink_crc``, ...) on a link since the GPU's last reset."""
        return self._events(kind, gpu, link, time)

    def ethernet_bytes(self, interface: str, direction: Literal["rx", "tx"], time: float) -> int:
        """Bytes that the host moved over an interface since the last boot."""
        mean = next(item for item in self.preset.interfaces if item.name == interface).background_bytes_per_second
        downs = [fault for fault in self.faults if fault.kind == "ethernet_down" and fault.interface == interface]
        phase = _phase(interface, direction)
        total = 0.0
        for start, end in self._stretches(self.last_boot(time), time):
            if not any(fault.active(start) for fault in downs):
                total += mean * (_warped(end, phase) - _warped(start, phase))
        return int(total)

    def ethernet_up(self, interface: str, time: float) -> bool:
        """Whether an interface has its link."""
        return not any(
            fault.kind == "ethernet_down" and fault.interface == interface and fault.active(time)
            for fault in self.faults
        )

    def carrier_changes(self, interface: str, time: float) -> int:
        """Times the link of an interface went up or down since the last boot, the first time up included."""
        boot = self.last_boot(time)
        moments = [
            moment
            for fault in self.faults
            if fault.kind == "ethernet_down" and fault.interface == interface
            for moment in (fault.start, fault.end)
        ]
        return 1 + sum(boot < moment <= time for moment in moments)

    def _make_epoch(self, time: float) -> Epoch:
        start = max(moment for moment in self._boundaries if moment <= time)
        end = min(moment for moment in self._boundaries if moment > time)
        missing = {fault.gpu for fault in self.faults if fault.kind == "gpu_missing" and fault.active(start)}
        places = range(len(self.preset.gpus))
        return Epoch(
            start=start,
            end=end,
            gpus=tuple(self._condition(gpu, start) for gpu in places),
            enumerated=tuple(gpu for gpu in places if gpu not in missing),
        )

    def _condition(self, gpu: int, start: float) -> GpuCondition:
        model = self.preset.model
        active = [fault for fault in self.faults if fault.active(start) and fault.strikes(gpu)]
        kinds = {fault.kind for fault in active}
        busy = "job" in kinds
        generation = int(_smallest(active, "pcie_generation", "generation", model.pcie_generation))
        links = range(model.nvlink.links if model.nvlink else 0)
        links_active = tuple(self._link_active(gpu, link, start) for link in links)
        return GpuCondition(
            answer=_answer(kinds),
            hung="driver_hang" in kinds,
            busy=busy,
            pcie_generation=generation if busy else min(generation, model.idle_pcie_generation),
            pcie_generation_under_load=generation,
            pcie_width=int(_smallest(active, "pcie_width", "lanes", model.pcie_width)),
            links_active=links_active,
            slowest_link_share=_smallest(
                [fault for fault in active if fault.link is None or links_active[fault.link]],
                "nvlink_slow",
                "factor",
                1.0,
            ),
            transmit=tuple(self._flow(gpu, link, "tx", start) for link in links),
            receive=tuple(self._flow(gpu, link, "rx", start) for link in links),
        )

    def _link_active(self, gpu: int, link: int, time: float) -> bool:
        nvlink = self.preset.model.nvlink
        return (
            nvlink is not None
            and nvlink.remote != "none"
            and not any(
                fault.kind == "nvlink_down" and fault.active(time) and fault.strikes(gpu, link) for fault in self.faults
            )
        )

    def _flow(self, gpu: int, link: int, direction: str, start: float) -> Flow:
        phase = _phase(f"{gpu}.{link}", direction)
        before = sum(
            self._link_rate(gpu, link, begin) * (_warped(end, phase) - _warped(begin, phase))
            for begin, end in self._stretches(self._last_reset(gpu, start), start)
        )
        rate = self._link_rate(gpu, link, start)
        return Flow(before - rate * _warped(start, phase), rate, phase)

    def _link_rate(self, gpu: int, link: int, time: float) -> float:
        """Mean payload of a link and direction, bytes per second, in the epoch that begins at a time or holds it."""
        nvlink = self.preset.model.nvlink
        active = [fault for fault in self.faults if fault.active(time) and fault.strikes(gpu)]
        if (
            nvlink is None
            or not self._link_active(gpu, link, time)
            or _answer({fault.kind for fault in active}) != "ok"
        ):
            return 0.0
        share = max([0.0, *(fault.settings["nvlink_utilization"] for fault in active if fault.kind == "job")])
        slow = [fault for fault in active if fault.strikes(gpu, link)]
        rate = max(BACKGROUND_BYTES_PER_SECOND, share * nvlink.nominal_bytes_per_second)
        return rate * _smallest(slow, "nvlink_slow", "factor", 1.0)

    def _stretches(self, start: float, end: float) -> list[tuple[float, float]]:
        """The time from start to end, cut where a fault begins or ends."""
        cuts = [start, *(moment for moment in self._boundaries if start < moment < end), end]
        return list(pairwise(cuts))

    def _reboots(self) -> list[float]:
        return [moment for fault in self.faults if fault.kind == "gpu_missing" for moment in (fault.start, fault.end)]

    def _last_reset(self, gpu: int, time: float) -> float:
        """When the counters of a GPU last began at 0: at boot, after a reset, or when a fault of that kind says so."""
        resets = [
            fault.start if fault.kind == "counter_reset" else fault.end
            for fault in self.faults
            if fault.kind in {"counter_reset", "gpu_lost", "gpu_reset_required"} and fault.strikes(gpu)
        ]
        return max([self.last_boot(time), *(moment for moment in resets if moment <= time)])

    def _events(self, kind: str, gpu: int, link: int | None, time: float) -> int:
        since = self._last_reset(gpu, time)
        return sum(
            _happened(fault, time) - (_happened(fault, since) if since > fault.start else 0)
            for fault in self.faults
            if fault.kind == kind and fault.strikes(gpu, link)
        )


def _happened(fault: Fault, time: float) -> int:
    """Events of a fault with a rate up to a time: the first when it begins, the next ones evenly after it."""
    if time < fault.start:
        return 0
    return math.floor((min(time, fault.end) - fault.start) * fault.settings["rate"]) + 1


def _answer(kinds: set[str]) -> Answer:
    if "gpu_missing" in kinds:
        return "missing"
    if "gpu_lost" in kinds:
        return "lost"
    return "reset_required" if "gpu_reset_required" in kinds else "ok"


def _smallest(faults: Sequence[Fault], kind: str, setting: str, healthy: float) -> float:
    return min([healthy, *(fault.settings[setting] for fault in faults if fault.kind == kind)])


def _phase(part: str, direction: str) -> float:
    """An angle of its own for each counter, the same in every process."""
    return zlib.crc32(f"{part}.{direction}".encode()) / 2**32 * 2 * math.pi
