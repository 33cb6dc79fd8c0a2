"""When the parts of a simulated node begin again, and the stretches of time between two changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.pace import Flow, happened, warped

REBOOTS = frozenset({"gpu_missing", "gpu_not_started"})
"""Kinds at the beginning and end of which the node boots."""
_RESET_KINDS = frozenset({"counter_reset", "gpu_lost", "gpu_reset_required", "driver_reload", "gpu_unbound"})
"""After these the counters of a GPU begin again at 0."""


class Timeline:
    """A fixed set of faults in the order of time. All times are seconds since the node started."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        moments = {moment for fault in faults for moment in (fault.start, fault.end)}
        self._boundaries = sorted({0.0, *moments, math.inf})

    def epoch(self, time: float) -> tuple[float, float]:
        """Begin and end of the stretch that holds a time, in which no fault begins or ends."""
        start = max(moment for moment in self._boundaries if moment <= time)
        return start, min(moment for moment in self._boundaries if moment > time)

    def stretches(self, start: float, end: float) -> list[tuple[float, float]]:
        """The time from start to end, cut where a fault begins or ends; empty where the end is not after the start."""
        if end <= start:
            return []
        cuts = [start, *(moment for moment in self._boundaries if start < moment < end), end]
        return list(pairwise(cuts))

    def flow(
        self, phase: float, since: float, until: float, rate_at: Callable[[float], float], *, goes_on: bool = True
    ) -> Flow:
        """A byte counter that began at 0 at one time, counted up to another, and goes on from there.

        Args:
            phase: of its noise.
            rate_at: mean bytes per second in the stretch that begins at a time or holds it.
            goes_on: False for a counter that does not rise after ``until``.
        """
        counted = sum(
            rate_at(begin) * (warped(end, phase) - warped(begin, phase)) for begin, end in self.stretches(since, until)
        )
        rate = rate_at(until) if goes_on else 0.0
        return Flow(counted - rate * warped(until, phase), rate, phase)

    def active(self, gpu: int, time: float) -> list[Fault]:
        """The faults that hold at a time for a GPU or for one of its links."""
        return [fault for fault in self.faults if fault.active(time) and fault.strikes(gpu)]

    def last_boot(self, time: float) -> float:
        """When the node last started: at 0, or when a card went missing or came back."""
        reboots = [moment for fault in self.faults if fault.kind in REBOOTS for moment in (fault.start, fault.end)]
        return max([0.0, *(moment for moment in reboots if moment <= time)])

    def last_reset(self, gpu: int, time: float) -> float:
        """When the counters of a GPU last began at 0: at boot, after a reset, or when a fault of that kind says so."""
        resets = [
            fault.start if fault.kind == "counter_reset" else fault.end
            for fault in self.faults
            if fault.kind in _RESET_KINDS and fault.strikes(gpu)
        ]
        return max([self.last_boot(time), *(moment for moment in resets if moment <= time)])

    def restarts(self, gpu: int, time: float) -> int:
        """How often the job of a GPU was started with another environment up to a time."""
        moments = {
            moment
            for fault in self.faults
            if fault.kind == "nccl_setting" and fault.strikes(gpu)
            for moment in (fault.start, fault.end)
        }
        return sum(0 < moment <= time for moment in moments)

    def counting(self, kind: str, gpu: int, link: int | None = None) -> list[Fault]:
        """The faults of one kind that move a counter of a GPU or link, whenever they hold."""
        return [fault for fault in self.faults if fault.kind == kind and fault.strikes(gpu, link)]

    def events(self, faults: Sequence[Fault], gpu: int, time: float) -> int:
        """Events of faults with a rate on a GPU since its last reset."""
        since = self.last_reset(gpu, time)
        return sum(happened(fault, since, time) for fault in faults)
