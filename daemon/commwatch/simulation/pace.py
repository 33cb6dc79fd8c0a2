"""The pace at which a simulated node counts: traffic with a healthy unrest, and events at a rate."""

from __future__ import annotations

import math
import zlib

from commwatch.simulation.faults.fault import Fault

_NOISE_PERIOD_SECONDS = 37.0
_NOISE_SHARE = 0.05
_NOISE_FREQUENCY = 2 * math.pi / _NOISE_PERIOD_SECONDS


def warped(time: float, phase: float) -> float:
    """Time with a healthy unrest of a few percent in its pace; grows with time."""
    return time + _NOISE_SHARE / _NOISE_FREQUENCY * math.sin(_NOISE_FREQUENCY * time + phase)


def phase_of(part: str, direction: str) -> float:
    """An angle of its own for each counter, the same in every process."""
    return zlib.crc32(f"{part}.{direction}".encode()) / 2**32 * 2 * math.pi


def happened(fault: Fault, since: float, time: float) -> int:
    """Events of a fault after one time and up to another; one at its very start counts from there on.

    The first comes when the fault begins, the next ones evenly after it; without a rate there is one.
    """
    return _up_to(fault, time) - (_up_to(fault, since) if since > fault.start else 0)


def _up_to(fault: Fault, time: float) -> int:
    if time < fault.start:
        return 0
    return math.floor((min(time, fault.end) - fault.start) * fault.settings.get("rate", 0.0)) + 1
