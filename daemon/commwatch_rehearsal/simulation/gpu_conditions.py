"""State of GPUs and their links between two changes of a simulated node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.faults.nvidia_kinds import (
    CALL_ERRORS,
    JOB_PHASES,
    RECOVERY_ACTIONS,
    THROTTLE_REASONS,
)
from commwatch_rehearsal.simulation.pace import Flow, phase_of
from commwatch_rehearsal.simulation.presets.parts import Preset
from commwatch_rehearsal.simulation.timeline import Timeline

_PCIE_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Ceiling of one lane, one direction, by generation."""
_LINK_DOWN_KINDS = frozenset({"nvlink_down", "nvlink_recovery_failed"})
_IDLE_POWER_SHARE, _THROTTLED_POWER_SHARE = 0.1, 0.55
_IDLE_CELSIUS, _BUSY_CELSIUS, _HOT_CELSIUS = 32, 61, 89
_IDLE = 0x1
"""Bit of the reasons for lower clocks."""

Answer: TypeAlias = Literal["ok", "lost", "reset_required", "missing", "not_started", "unbound"]
"""How a GPU answers its driver."""
_ANSWERS: Mapping[str, Answer] = {
    "gpu_missing": "missing", "gpu_not_started": "not_started", "gpu_unbound": "unbound", "gpu_lost": "lost",
    "gpu_reset_required": "reset_required",
}  # fmt: skip
"""By kind of fault; of several the first one holds."""


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """State of one GPU throughout an epoch."""

    answer: Answer
    hung: bool
    calls_fail_with: int
    """Return code of calls that a fault lets fail; 0: none."""
    calls_fail_share: float
    """Of all calls on this GPU."""
    utilization: float
    """Share of the time in which a kernel runs."""
    busy: bool
    """Whether a job is on it, whatever it does."""
    pcie_generation: int
    """Now; lower than under load while there is no work."""
    pcie_generation_under_load: int
    pcie_width: int
    links_active: tuple[bool, ...]
    transmit: tuple[Flow, ...]
    """NVLink payload by link."""
    receive: tuple[Flow, ...]
    pcie_transmit: Flow
    """From the GPU to the host."""
    pcie_receive: Flow
    blank: str
    """The driver's answer for NVLink traffic instead of a count: ``zero``, ``ones``; empty: the count."""
    mig: bool
    """MIG is on; the driver reports all links as down."""
    clock_reasons: int
    """Bits of ``nvmlDeviceGetCurrentClocksEventReasons``."""
    power_watts: float
    temperature_celsius: int
    recovery_action: int
    """Code of NVML field 230."""
    p2p_broken: bool
    fabric_checks: frozenset[str]
    """Faults of the fabric, by their names in the file of faults."""


class GpuConditions:
    """The GPUs of a node under the faults of a timeline. All times are seconds since the node started."""

    def __init__(self, preset: Preset, timeline: Timeline) -> None:
        self._preset = preset
        self._timeline = timeline

    def condition(self, gpu: int, start: float) -> GpuCondition:
        """The condition of a GPU in the epoch that begins at ``start``."""
        model = self._preset.model
        active = self._timeline.active(gpu, start)
        kinds = {fault.kind for fault in active}
        busy = "job" in kinds
        generation = int(_smallest(active, "pcie_generation", "generation", model.pcie_generation))
        links = range(model.nvlink.links if model.nvlink else 0)
        mig = "mig_enabled" in kinds
        links_active = tuple(not mig and self.link_up(gpu, link, start) for link in links)
        return GpuCondition(
            answer=_answer(kinds),
            hung="driver_hang" in kinds,
            calls_fail_with=next(
                (CALL_ERRORS[fault.words["error"]] for fault in active if fault.kind == "gpu_calls_fail"), 0
            ),
            calls_fail_share=_largest(active, "gpu_calls_fail", "share"),
            utilization=job_use(active, "gpu_utilization"),
            busy=busy,
            pcie_generation=generation if busy else min(generation, model.idle_pcie_generation),
            pcie_generation_under_load=generation,
            pcie_width=int(_smallest(active, "pcie_width", "lanes", model.pcie_width)),
            links_active=links_active,
            transmit=tuple(self._link_flow(gpu, link, "tx", start) for link in links),
            receive=tuple(self._link_flow(gpu, link, "rx", start) for link in links),
            pcie_transmit=self._pcie_flow(gpu, "tx", start),
            pcie_receive=self._pcie_flow(gpu, "rx", start),
            blank=next((fault.words["value"] for fault in active if fault.kind == "counter_blank"), ""),
            mig=mig,
            clock_reasons=_clock_reasons(active, busy),
            power_watts=self.power_watts(gpu, start),
            temperature_celsius=_temperature(active, busy),
            recovery_action=_recovery_action(active),
            p2p_broken="p2p_broken" in kinds,
            fabric_checks=frozenset(fault.words["check"] for fault in active if fault.kind == "fabric_unhealthy"),
        )

    def power_watts(self, gpu: int, time: float) -> float:
        """Power of a GPU, watts: a tenth of its limit while idle, under work the power of its job."""
        limit = self._preset.model.power_limit_watts
        active = self._timeline.active(gpu, time)
        kinds = {fault.kind for fault in active}
        if "job" not in kinds:
            return limit * _IDLE_POWER_SHARE
        share = job_use(active, "power")
        return limit * (min(share, _THROTTLED_POWER_SHARE) if "gpu_throttled" in kinds else share)

    def network_use(self, setting: str, time: float) -> float:
        """Share of each port or interface that the jobs on all GPUs use, by a key of the fault ``job``."""
        places = range(len(self._preset.gpus))
        return max(job_use(self._timeline.active(gpu, time), setting) for gpu in places)

    def link_up(self, gpu: int, link: int, time: float) -> bool:
        """Whether a link is trained; one between two GPUs is so at both ends or at neither."""
        nvlink = self._preset.model.nvlink
        if nvlink is None or nvlink.remote == "none" or self._cut(gpu, link, time):
            return False
        if (gpu, link) in self._preset.inactive:
            return False
        if nvlink.remote == "switch":
            return True
        peer = self._preset.peer(gpu, link)
        if peer is None or self._cut(*peer, time):
            return False
        answer = _answer({fault.kind for fault in self._timeline.active(peer[0], time)})
        return answer in {"ok", "reset_required"}

    def flow(self, gpu: int, part: str, direction: str, start: float, rate_at: Callable[[float], float]) -> Flow:
        """A counter of a GPU that runs at a mean rate, from the last reset on; it stops if a fault says so.

        Args:
            gpu: place in the preset.
            part: name of the counter; each has its own noise.
            direction: ``tx``, ``rx``, or another distinction of a part's counters.
            start: when the epoch begins in which the counter is read.
            rate_at: units per second in the epoch that begins at a time or holds it.
        """
        stopped = min(
            (fault.start for fault in self._timeline.active(gpu, start) if fault.kind == "counter_stale"), default=None
        )
        since, phase = self._timeline.last_reset(gpu, start), phase_of(part, direction)
        if stopped is not None:
            return self._timeline.flow(phase, since, stopped, rate_at, goes_on=False)
        return self._timeline.flow(phase, since, start, rate_at)

    def _cut(self, gpu: int, link: int, time: float) -> bool:
        return any(
            fault.kind in _LINK_DOWN_KINDS and fault.active(time) and fault.strikes(gpu, link)
            for fault in self._timeline.faults
        )

    def _link_flow(self, gpu: int, link: int, direction: str, start: float) -> Flow:
        return self.flow(gpu, f"{gpu}.{link}", direction, start, lambda time: self._link_rate(gpu, link, time))

    def _pcie_flow(self, gpu: int, direction: str, start: float) -> Flow:
        return self.flow(gpu, f"pcie{gpu}", direction, start, lambda time: self._pcie_rate(gpu, time))

    def _link_rate(self, gpu: int, link: int, time: float) -> float:
        """Mean payload of a link and direction, bytes per second, in the epoch that begins at a time or holds it."""
        nvlink = self._preset.model.nvlink
        active = self._timeline.active(gpu, time)
        if nvlink is None or not self.link_up(gpu, link, time) or _answer({fault.kind for fault in active}) != "ok":
            return 0.0
        share = job_use(active, "nvlink_utilization")
        slow = [fault for fault in active if fault.strikes(gpu, link)]
        rate = max(nvlink.background_bytes_per_second, share * nvlink.nominal_bytes_per_second)
        return rate * _smallest(slow, "nvlink_slow", "factor", 1.0)

    def _pcie_rate(self, gpu: int, time: float) -> float:
        """Mean payload over PCIe, each direction, bytes per second, in the epoch that begins at a time or holds it."""
        active = self._timeline.active(gpu, time)
        if _answer({fault.kind for fault in active}) != "ok":
            return 0.0
        model = self._preset.model
        generation = int(_smallest(active, "pcie_generation", "generation", model.pcie_generation))
        width = _smallest(active, "pcie_width", "lanes", model.pcie_width)
        share = job_use(active, "pcie_utilization")
        used = share * width * _PCIE_LANE_BYTES_PER_SECOND[generation]
        return max(model.pcie_background_bytes_per_second, used)


def job_use(active: Sequence[Fault], setting: str) -> float:
    """Use of a resource by the job on a GPU, by the faults that hold there: of its phase, else of the job itself.

    Args:
        active: the faults that hold for the GPU.
        setting: a key of the fault ``job``, such as ``nvlink_utilization``.
    """
    own = _largest(active, "job", setting)
    phases = [fault for fault in active if fault.kind == "job_phase"]
    if not phases or not any(fault.kind == "job" for fault in active):
        return own
    phase = phases[-1]
    return phase.settings.get(setting) or JOB_PHASES[phase.words["phase"]][setting]


def _answer(kinds: set[str]) -> Answer:
    return next((answer for kind, answer in _ANSWERS.items() if kind in kinds), "ok")


def _clock_reasons(active: Sequence[Fault], busy: bool) -> int:
    reasons = 0 if busy else _IDLE
    for fault in active:
        if fault.kind == "gpu_throttled":
            reasons |= THROTTLE_REASONS[fault.reason]
    return reasons


def _temperature(active: Sequence[Fault], busy: bool) -> int:
    hot = any(fault.kind == "gpu_throttled" and "thermal" in fault.reason for fault in active)
    return _HOT_CELSIUS if hot else _BUSY_CELSIUS if busy else _IDLE_CELSIUS


def _recovery_action(active: Sequence[Fault]) -> int:
    wanted = (RECOVERY_ACTIONS[fault.words["action"]] for fault in active if fault.kind == "recovery_needed")
    return max(wanted, default=0)


def _smallest(faults: Sequence[Fault], kind: str, setting: str, healthy: float) -> float:
    return min([healthy, *(fault.settings[setting] for fault in faults if fault.kind == kind)])


def _largest(faults: Sequence[Fault], kind: str, setting: str) -> float:
    return max([0.0, *(fault.settings[setting] for fault in faults if fault.kind == kind)])
