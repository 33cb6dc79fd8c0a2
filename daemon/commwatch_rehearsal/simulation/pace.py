"""The pace at which a simulated node counts: traffic with a healthy unrest, and events at a rate."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

from commwatch_rehearsal.simulation.faults.fault import Fault

_NOISE_PERIOD_SECONDS = 37.0
_NOISE_SHARE = 0.05
_NOISE_FREQUENCY = 2 * math.pi / _NOISE_PERIOD_SECONDS

_WINDOW_SECONDS = 10
_WINDOW_SHARE = 0.01
"""Largest variation by the state of the machine, which lasts some seconds."""
_CALL_SHARE = 0.03
"""Largest difference between one call and the next."""
_RANK_SHARE = 0.003
"""Largest difference between the ranks of one call."""
_LATE_CALLS = 1 / 250
_LATE_LEAST, _LATE_MOST = 1.3, 6.0
"""A late call takes ``1.3 / √u`` times as long, u even from 0 to 1: a heavy tail, cut off."""
_RAMP_SHARE, _RAMP_DECAY = 0.4, 0.5
"""The first call after idling takes 40 % longer, the next one 20 %, and so on: clocks rise."""
_RAMP_CALLS = 12
_MASK = 2**64 - 1


def warped(time: float, phase: float) -> float:
    """Time with a healthy unrest of a few percent in its pace; grows with time."""
    return time + _NOISE_SHARE / _NOISE_FREQUENCY * math.sin(_NOISE_FREQUENCY * time + phase)


def phase_of(part: str, direction: str) -> float:
    """An angle of its own for each counter, the same in every process."""
    return zlib.crc32(f"{part}.{direction}".encode()) / 2**32 * 2 * math.pi


@dataclass(frozen=True, slots=True)
class Flow:
    """A byte counter between two changes of the node: ``offset + rate × (t + noise)``."""

    offset: float
    rate: float
    """Mean, bytes per second."""
    phase: float

    def bytes_at(self, time: float) -> float:
        """Bytes since the last reset, at a time within the epoch; never falls."""
        return self.offset + self.rate * warped(time, self.phase)


def happened(fault: Fault, since: float, time: float) -> int:
    """Events of a fault after one time and up to another; one at its very start counts from there on.

    The first comes when the fault begins, the next ones evenly after it; without a rate there is one.
    """
    return _up_to(fault, time) - (_up_to(fault, since) if since > fault.start else 0)


def _up_to(fault: Fault, time: float) -> int:
    if time < fault.start:
        return 0
    return math.floor((min(time, fault.end) - fault.start) * fault.settings.get("rate", 0.0)) + 1


def lot(*seed: int) -> float:
    """A number from 0 to 1, the same for the same seed in every process.

    Mixed as splitmix64 does it: without a library of digests, which would cost each process half a megabyte.
    """
    state = 0x9E3779B97F4A7C15
    for number in seed:
        state = (state ^ number) * 0xBF58476D1CE4E5B9 & _MASK
        state ^= state >> 27
        state = state * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state / 2**64


def unrest(time: float, kind: int, call: int, rank: int) -> float:
    """The time of one call on one rank, as a factor of the expected time.

    Args:
        time: seconds since the node started; each second has its own unrest.
        kind: identifies the operation, its size and its members.
        call: number of the call since its rank began to work.
        rank: the ranks of one call end almost together.
    """
    second = int(time)
    window = 2 * lot(second // _WINDOW_SECONDS, kind) - 1
    single = 2 * lot(second, kind, call) - 1
    own = lot(second, kind, call, rank)
    factor = (1 + _WINDOW_SHARE * window) * (1 + _CALL_SHARE * single) * (1 + _RANK_SHARE * own)
    late = lot(second, call, kind)
    if late < _LATE_CALLS:
        factor *= min(_LATE_MOST, _LATE_LEAST / max(late / _LATE_CALLS, 1e-9) ** 0.5)
    if call < _RAMP_CALLS:
        factor *= 1 + _RAMP_SHARE * _RAMP_DECAY**call
    return float(factor)
