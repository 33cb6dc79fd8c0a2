"""What is kept of a probe from one cycle to the next, and over restarts."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from commwatch.probes.gate.budget import Occupied
from commwatch.probes.rank_plan import Backend
from commwatch.probes.results.drift import Course
from commwatch.probes.results.expected import Expected
from commwatch.probes.results.learned import LearnedRate
from commwatch.probes.results.streak import Streak
from commwatch.state.records import Timestamp


class GpuName(NamedTuple):
    """What a GPU is called in labels."""

    gpu: str
    """NVML index."""
    pci_bus_id: str


class Conditions(msgspec.Struct, frozen=True):
    """What two results must have in common to be compared."""

    measure: str = msgspec.field(name="collective")
    latency_bytes: int
    bandwidth_bytes: int
    ranks: int
    nccl_version: str
    torch_version: str = ""
    """Only with gloo, which is a part of torch; else empty."""
    settings: str = ""
    """Digest of the NCCL settings in force; empty without any."""
    slots: tuple[str, ...] = ()
    """PCI addresses of the GPUs, by rank. A card that was swapped is held against the one before it."""


class ScalingRate(msgspec.Struct, frozen=True):
    """An all_reduce over the first so many ranks."""

    ranks: int
    bus_bandwidth: float
    """Bytes per second."""
    break_even_seconds: float
    """Computing time of a step above which so many GPUs beat one, for each 10⁹ bytes of gradients."""


class CopyRate(msgspec.Struct, frozen=True):
    """A copy between a GPU and the host."""

    gpu: GpuName
    direction: str
    """host_to_device or device_to_host."""
    bytes_per_second: float
    expected: float | None
    """Bytes per second; None where nothing is expected."""


class SlowestRank(msgspec.Struct, frozen=True):
    """The rank that took longest."""

    rank: int
    pci_bus_id: str
    """Empty without GPUs."""


class LastResult(msgspec.Struct, frozen=True):
    """The last good result; None for what this measure does not give."""

    finished_at: Timestamp
    setup_seconds: float
    latency_seconds: float | None = None
    bus_bandwidth: float | None = None
    """Bytes per second."""
    algorithm_bandwidth: float | None = None
    """Bytes per second."""
    expected: Expected | None = None
    """What ``bus_bandwidth`` should be."""
    balance: float | None = None
    slowest: SlowestRank | None = None
    """None where no rank is behind the others."""
    scaling: tuple[ScalingRate, ...] = ()
    copies: tuple[CopyRate, ...] = ()
    torch_version: str = ""
    hidden_ratio: float | None = None
    """Of a training-like probe: see ``hidden.Hidden``."""

    @property
    def utilization(self) -> float | None:
        """Bus bandwidth over the expected one; None where one of them is not known."""
        if self.bus_bandwidth is None or self.expected is None:
            return None
        return self.bus_bandwidth / self.expected.bytes_per_second


class ProbeHistory(msgspec.Struct):
    """What must survive a restart. A file of an earlier version lacks the courses: they begin again."""

    backend: Backend
    """Of all results under this name, for life."""
    conditions: Conditions | None = None
    courses: dict[str, Course] = {}
    """Times of good results under these conditions, by quantity: ``latency``, and one for each bandwidth."""
    latency_streak: Streak = Streak()
    latency_judged_at: Timestamp | None = None
    latency_mark: float | None = None
    """Seconds, of the path of the last result; None where there is none, and before the first result."""
    bandwidth_streak: Streak = Streak()
    learned: dict[str, LearnedRate] = {}
    """By operation, GPU model, ranks and size. Not by versions and settings: a change of these that costs so much is to
    be seen."""
    last: LastResult | None = None
    last_completion_at: Timestamp | None = None
    occupied: list[Occupied] = []

    @property
    def bus_bandwidths(self) -> dict[int, float]:
        """Bytes per second of the last result, by ranks."""
        if self.last is None or self.conditions is None:
            return {}
        if self.last.scaling or self.last.bus_bandwidth is None:
            return {one.ranks: one.bus_bandwidth for one in self.last.scaling}
        return {self.conditions.ranks: self.last.bus_bandwidth}
