"""State of a probe that is kept from one cycle to the next, and over restarts."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from commwatch.probes.gate.budget import Occupied
from commwatch.probes.plan import Measure
from commwatch.probes.rank_plan import Backend, Operation
from commwatch.probes.results.course import Course
from commwatch.probes.results.expected import Expected, ExpectedLatency
from commwatch.probes.results.level import LearnedRate, Level
from commwatch.probes.results.streak import Streak
from commwatch.state.records import Count, Rate, Ratio, Seconds, Timestamp, check_labels, check_unique

Ranks: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
"""How many, or the number of one."""


class GpuName(NamedTuple):
    gpu: str
    """NVML index."""
    pci_bus_id: str


class Conditions(msgspec.Struct, frozen=True):
    """Conditions that two results must share to be comparable."""

    measure: Measure = msgspec.field(name="collective")
    latency_bytes: Count
    bandwidth_bytes: Count
    ranks: Ranks
    nccl_version: str
    torch_version: str = ""
    """Only with gloo, which is a part of torch; else empty."""
    settings: str = ""
    """Digest of the NCCL settings in force; empty without any."""
    slots: tuple[str, ...] = ()
    """PCI addresses of the GPUs, by rank. A card that was swapped is compared with the one before it."""

    def __post_init__(self) -> None:
        check_labels((self.nccl_version, self.torch_version, self.settings))


class ScalingRate(msgspec.Struct, frozen=True):
    """An all_reduce over the first ``ranks`` ranks."""

    ranks: Ranks
    bus_bandwidth: Rate
    """Bytes per second."""
    break_even_seconds: Seconds
    """Computing time of a step above which these GPUs beat one, for each 10⁹ bytes of gradients."""


class CopyRate(msgspec.Struct, frozen=True):
    """A copy between a GPU and the host."""

    gpu: GpuName
    direction: Operation
    """host_to_device or device_to_host."""
    bytes_per_second: Rate
    expected: Rate | None
    """Bytes per second; None where nothing is expected."""


class SlowestRank(msgspec.Struct, frozen=True):
    rank: Ranks
    pci_bus_id: str
    """Empty without GPUs."""


class LastResult(msgspec.Struct, frozen=True):
    """The last good result; None for what this measure does not give."""

    finished_at: Timestamp
    setup_seconds: Seconds
    latency_seconds: Seconds | None = None
    bus_bandwidth: Rate | None = None
    """Bytes per second."""
    algorithm_bandwidth: Rate | None = None
    """Bytes per second."""
    expected: Expected | None = None
    """The expected ``bus_bandwidth``."""
    balance: Ratio | None = None
    slowest: SlowestRank | None = None
    """None where no rank is behind the others."""
    scaling: tuple[ScalingRate, ...] = ()
    """By ranks."""
    copies: tuple[CopyRate, ...] = ()
    """By GPU and direction."""
    torch_version: str = ""
    hidden_ratio: Ratio | None = None
    """Of a training-like probe: see ``hidden.Hidden``."""

    def __post_init__(self) -> None:
        check_unique((one.ranks for one in self.scaling), "scaling")
        check_unique(((*one.gpu, one.direction) for one in self.copies), "copy")
        check_labels(text for one in self.copies for text in one.gpu)
        check_labels((self.torch_version, *([] if self.slowest is None else [self.slowest.pci_bus_id])))

    @property
    def utilization(self) -> float | None:
        """Bus bandwidth over the expected one; None where one of them is not known."""
        if self.bus_bandwidth is None or self.expected is None:
            return None
        return self.bus_bandwidth / self.expected.bytes_per_second


class ProbeHistory(msgspec.Struct):
    """State that survives a restart. A file of an earlier version lacks the courses: they begin again."""

    backend: Backend
    """Of all results under this name, for life."""
    conditions: Conditions | None = None
    courses: dict[str, Course] = {}
    """Times of good results under these conditions, by quantity: ``latency``, and one for each bandwidth."""
    latency_streak: Streak = Streak()
    latency_judged_at: Timestamp | None = None
    latency_mark: Seconds | None = None
    """Seconds, of the path of the last result; None where there is none, and before the first result."""
    expected_latency: ExpectedLatency | None = None
    """Of the last result; None where nothing can be said, as for gloo."""
    latency_accepted: bool = False
    """An operator has accepted a latency above the published one as usual."""
    above_model_streak: Streak = Streak()
    """Latencies in a row above what a model expects; published values make spikes."""
    bandwidth_streak: Streak = Streak()
    short_streak: Streak = Streak()
    """Bandwidths in a row below the share of the expectation that healthy nodes reach."""
    levels: dict[str, Level] = {}
    """By what is learned of, as below, and quantity."""
    learned: dict[str, LearnedRate] = {}
    """By operation, GPU model, ranks and size. Versions and settings are not part of the key, so that a change of these
    that costs this much is visible."""
    last: LastResult | None = None
    last_completion_at: Timestamp | None = None
    occupied: list[Occupied] = []

    def __post_init__(self) -> None:
        if self.last is not None and (self.conditions is None or self.last_completion_at is None):
            raise ValueError("a last result, and no cycle that was completed")
        if self.latency_streak.count and self.latency_judged_at is None:
            raise ValueError("latencies that were never judged are bad")

    @property
    def bus_bandwidths(self) -> dict[int, float]:
        """Bytes per second of the last result, by ranks."""
        if self.last is None or self.conditions is None:
            return {}
        if self.last.scaling or self.last.bus_bandwidth is None:
            return {one.ranks: one.bus_bandwidth for one in self.last.scaling}
        return {self.conditions.ranks: self.last.bus_bandwidth}
