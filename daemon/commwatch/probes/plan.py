"""A cycle's plan and its results; ``rank_plan`` has the messages to and from its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal, TypeAlias

import msgspec

from commwatch.probes.rank_plan import (
    Backend,
    Collective,
    FailureReason,
    Meeting,
    Phase,
    Purpose,
    RankPlan,
    SimulatedNodePlan,
    SkipReason,
    Step,
)

Measure: TypeAlias = Literal[
    Collective,
    "pairs",  # send/recv of every ordered pair of ranks
    "host_copies",  # copies between each GPU and the host
    "scaling",  # all_reduce over the first 2, 4, 8, ... ranks
    "training",  # all_reduce of a bucket of gradients, alone and under a product of matrices
]
"""The quantity that a probe measures."""

YieldReason: TypeAlias = Literal[
    "process_appeared",  # a process that is not ours came to a GPU
    "scheduler_busy",  # the scheduler gave the node to a job
    "requested",  # commwatch yield
    "maintenance",
    "stopping",  # the daemon, or the command, ends
    "gpu_unknown",  # the GPUs could not be read any more
]
"""Why a running cycle yielded: the bounded reasons of ``commwatch_probe_yields_total``."""


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that all ranks together have for each phase, from the time at which the last of them entered it."""

    start: float
    rendezvous: float
    setup: float
    measure: float

    @property
    def total(self) -> float:
        """Of a cycle that uses up each of them."""
        return self.start + self.rendezvous + self.setup + self.measure


class CyclePlan(msgspec.Struct, frozen=True, kw_only=True):
    probe: str
    backend: Backend
    measure: Measure
    ranks: int
    devices: tuple[str, ...]
    """Entries of CUDA_VISIBLE_DEVICES (GPU UUIDs); rank i uses entry i modulo their number. Empty without GPUs."""
    steps: tuple[Step, ...]
    timed_seconds: float
    deadlines: Deadlines
    simulation: SimulatedNodePlan | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """NCCL settings that are tried by hand: name and value."""
    meeting: Meeting | None = None
    """Of a cycle with another node: the only rank here is one of two."""

    @property
    def on_host(self) -> bool:
        """Whether it touches no GPU."""
        return self.backend in ("gloo", "tcp")

    def number(self, rank: int) -> int:
        """A rank's number in its group, as the steps name it."""
        return rank if self.meeting is None else self.meeting.end

    @property
    def shares_gpus(self) -> bool:
        """More ranks than GPUs: proves that results are right, but its times are the GPU's time slices."""
        return self.backend == "nccl" and self.ranks > len(self.devices)

    @property
    def gpus(self) -> int:
        return 0 if self.on_host else min(self.ranks, len(self.devices))

    @property
    def latency_bytes(self) -> int:
        """Size of the small call; 0 where none is made."""
        return _size(self.steps, "latency")

    @property
    def bandwidth_bytes(self) -> int:
        """Size of the large call; 0 where none is made."""
        return _size(self.steps, "bandwidth")

    def rank_plan(self, rank: int, rendezvous_file: str) -> RankPlan:
        return RankPlan(
            backend=self.backend,
            rank=self.number(rank),
            ranks=self.ranks if self.meeting is None else 2,
            device=rank % len(self.devices) if self.backend == "nccl" else None,
            devices=self.devices if self.backend == "simulated" else (),
            rendezvous_file=rendezvous_file,
            steps=self.steps,
            timed_seconds=self.timed_seconds,
            collective_timeout=self.deadlines.total,
            simulation=self.simulation,
            settings=self.settings if self.backend == "simulated" else (),
            meeting=self.meeting,
        )


def _size(steps: Sequence[Step], purpose: Purpose) -> int:
    return next((step.size_bytes for step in steps if step.purpose == purpose), 0)


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    step: Step
    seconds: tuple[float | None, ...]
    """Time of one call by rank: median over its timings; None for a rank whose clock does not count."""

    @property
    def slowest_seconds(self) -> float:
        """The slowest rank delays all others, so its time is that of the step."""
        return max(one for one in self.seconds if one is not None)

    @property
    def median_seconds(self) -> float:
        """Over the ranks."""
        return median(one for one in self.seconds if one is not None)


class NcclNotes(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of NCCL's own log of a cycle, all ranks together."""

    settings: dict[str, str] = {}
    """NCCL_* settings in force that are not ours, by name: from files that NCCL reads."""
    transports: dict[str, int] = {}
    """Channels by transport: ``P2P/CUMEM``, ``SHM``, ``NET/IB``, ..."""
    warnings: tuple[str, ...] = ()
    """The first warnings, as NCCL wrote them."""
    category: str = ""
    """Of the first culprit among the warnings, else in a rank's error (``jobs/logs/lines.py``); empty without any."""

    @property
    def settings_digest(self) -> str:
        """Eight hexadecimal digits that change with names and values; empty without any setting."""
        if not self.settings:
            return ""
        import hashlib  # in few processes, and rarely

        text = "\n".join(f"{name}={value}" for name, value in sorted(self.settings.items()))
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """A cycle that gave a result."""

    finished_at: float
    """Seconds since 1970."""
    occupied_seconds: float
    """Time from the first rank that could have made a CUDA context to the end of the last one."""
    setup_seconds: float
    """Time from the start of the ranks to the end of the first call on the last of them."""
    outcomes: tuple[StepOutcome, ...]
    """One for each step of the plan."""
    torch_version: str = ""
    nccl_version: str = ""
    nccl: NcclNotes = NcclNotes()

    def first(self, purpose: Purpose) -> StepOutcome | None:
        """The first step with a purpose: of a collective's cycle there is one of each."""
        return next((one for one in self.outcomes if one.step.purpose == purpose), None)


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A cycle that started and gave no good result."""

    finished_at: float
    occupied_seconds: float
    reason: FailureReason
    detail: str
    phase: Phase | None = None
    """Phase of the rank that failed; None where no rank had started."""
    rank: int | None = None
    """The rank that failed, or was furthest behind; None where none can be named."""
    device: str = ""
    """Its GPU as the plan names it; empty without."""
    nccl: NcclNotes = NcclNotes()


class Skipped(msgspec.Struct, frozen=True, kw_only=True, tag="skipped"):
    """A cycle that did not start, or whose ranks found that they cannot run on this node at all."""

    finished_at: float
    occupied_seconds: float = 0.0
    reason: SkipReason
    detail: str


class Yielded(msgspec.Struct, frozen=True, kw_only=True, tag="yielded"):
    """A cycle that yielded to a job."""

    finished_at: float
    occupied_seconds: float
    reason: YieldReason
    detail: str


CycleResult: TypeAlias = Measured | Failed | Skipped | Yielded
