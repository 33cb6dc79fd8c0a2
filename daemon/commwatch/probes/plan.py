"""What a cycle and each of its ranks are told, and what they answer: the records between daemon and rank processes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal, TypeAlias

import msgspec

Backend: TypeAlias = Literal["nccl", "gloo", "simulated", "tcp"]
"""tcp: plain sockets without torch; between two nodes only."""

Collective: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
Operation: TypeAlias = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "send_recv",
    "host_to_device",
    "device_to_host",
    "matrix_product",
    "overlapped",
]
"""One call that is timed: names of torch.distributed, both directions of a copy with pinned host memory, a product of
matrices on each rank, and an all_reduce under such a product."""

Measure: TypeAlias = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "pairs",  # send/recv of every ordered pair of ranks
    "host_copies",  # copies between each GPU and the host
    "scaling",  # all_reduce over the first 2, 4, 8, ... ranks
    "training",  # all_reduce of a bucket of gradients, alone and under a product of matrices
]
"""What a probe measures."""

Purpose: TypeAlias = Literal["latency", "bandwidth", "work", "sustained"]
"""work: its time alone counts. sustained: as bandwidth, for as long as the step may take; such steps follow each other
in a stress run."""

Phase: TypeAlias = Literal["start", "rendezvous", "setup", "measure", "done"]

PHASES: tuple[Phase, ...] = ("start", "rendezvous", "setup", "measure", "done")
"""In the order in which a rank goes through them; ``setup`` ends with the first, discarded call."""

FailureReason: TypeAlias = Literal[
    "start",  # a rank process did not start, or did not get as far as the rendezvous
    "rendezvous_timeout",
    "setup_timeout",
    "measure_timeout",
    "crashed",  # a rank ended by itself or by a signal, or raised an error that is not NCCL's
    "wrong_result",  # what arrived was not, bit by bit, what was sent or summed
    "stuck",  # a rank sits in the kernel and was left alone
    "nccl_error",
    "internal",  # commwatch itself failed; its log has the error
]
"""Why a cycle that started gave no good result: the bounded reasons of ``commwatch_probe_failures_total``."""

SkipReason: TypeAlias = Literal[
    "disabled",
    "maintenance",
    "yielded",  # the node is held for a job (commwatch yield)
    "no_torch",
    "no_gpu_backend",  # nccl is wanted, but there is no GPU or torch has no NCCL
    "single_gpu",  # one GPU has nobody to talk to
    "backend_changed",  # the name already belongs to results of another backend
    "previous_stuck",
    "probe_running",  # another commwatch process runs a cycle
    "scheduler_busy",
    "scheduler_unknown",
    "foreign_pid_namespace",
    "gpu_unknown",
    "gpu_busy",
    "gpu_memory_used",
    "compute_mode",
    "mig",
    "budget",
]
"""Why a cycle did not start: the bounded reasons of ``commwatch_probe_skips_total``."""

YieldReason: TypeAlias = Literal[
    "process_appeared",  # a process that is not ours came to a GPU
    "scheduler_busy",  # the scheduler gave the node to a job
    "requested",  # commwatch yield
    "maintenance",
    "stopping",  # the daemon, or the command, ends
    "gpu_unknown",  # the GPUs could not be looked at any more
]
"""Why a cycle under way gave way: the bounded reasons of ``commwatch_probe_yields_total``."""


class SimulatedNodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The node that simulated ranks measure."""

    preset: str
    faults_file: str | None
    started_at: float
    """Seconds since 1970 at which the simulated node booted; the same in all processes."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is timed: an operation at a size. Steps follow each other, and the parent opens each of them."""

    operation: Operation
    purpose: Purpose
    size_bytes: int
    """S of nccl-tests: all_gather, reduce_scatter and all_to_all count the bytes of all ranks together."""
    members: tuple[int, ...]
    """Ranks that take part, rising; the others wait for the next step."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Of send_recv: source and destination of each pair; disjoint, and measured at the same time."""
    both_ways: bool = False
    """Of send_recv for bandwidth: destination sends to source at the same time."""

    @property
    def clocks(self) -> tuple[int, ...]:
        """Ranks whose clock gives the result.

        Latency of send_recv is half a round trip on the source's clock; its bandwidth is timed where the bytes arrive.
        """
        if not self.pairs:
            return self.members
        return tuple(source if self.purpose == "latency" else destination for source, destination in self.pairs)


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


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank meets that of another node, and what it may use on the way."""

    end: Literal[0, 1]
    """Its number in the group of the two; 0 listens."""
    address: str
    """Of end 0, with its port."""
    port: int
    descriptor: int = -1
    """Of end 0: its listening socket, which the rank inherits."""
    own_address: str
    interface: str
    adapter: str = ""
    """The RDMA device that NCCL takes; empty: sockets."""
    key: str
    """Hexadecimal; both ends have it, and nobody else."""


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank process is told, on its standard input."""

    backend: Backend
    rank: int
    ranks: int
    device: int | None
    """CUDA ordinal among the visible devices; None without GPUs."""
    devices: tuple[str, ...] = ()
    """UUIDs of the simulated GPUs, by rank; empty for other backends."""
    rendezvous_file: str
    steps: tuple[Step, ...]
    timed_seconds: float
    """Time that all timed calls of all steps may take together."""
    collective_timeout: float
    """Seconds after which torch gives up by itself; longer than the parent's deadlines, which decide."""
    simulation: SimulatedNodePlan | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """As of the cycle; real ranks have them in their environment."""
    meeting: Meeting | None = None
    """With the rank of another node; None: all ranks are on this one."""


class CyclePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle of one probe."""

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
        """GPUs that the cycle occupies."""
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
        """The part of one rank."""
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


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured."""

    timings: tuple[tuple[float, ...], ...]
    """For each step of the plan: seconds of one call, a number for each timing; empty where it did not take part."""
    first_call_seconds: float
    torch_version: str = ""
    nccl_version: str = ""
    """Version of the NCCL library that is loaded; empty for other backends."""


class PhaseEvent(msgspec.Struct, frozen=True, tag="phase"):
    """A rank entered a phase."""

    phase: Phase


class GateEvent(msgspec.Struct, frozen=True, tag="gate"):
    """A rank has met the others (gate 0), or is through with the steps before step ``gate - 1``, and waits to go on.

    The parent looks at the node once more and then writes one byte to the rank's standard input.
    """

    gate: int


class ResultEvent(msgspec.Struct, frozen=True, tag="result"):
    """A rank has measured, and what it received was exact."""

    result: RankResult


class ErrorEvent(msgspec.Struct, frozen=True, tag="error"):
    """A rank cannot go on."""

    reason: FailureReason | SkipReason
    detail: str


RankEvent: TypeAlias = PhaseEvent | GateEvent | ResultEvent | ErrorEvent
"""One line of a rank's standard output."""


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one step gave."""

    step: Step
    seconds: tuple[float | None, ...]
    """Time of one call by rank: median over its timings; None for a rank whose clock does not count."""

    @property
    def slowest_seconds(self) -> float:
        """The slowest rank holds all others, so its time stands for the step."""
        return max(one for one in self.seconds if one is not None)

    @property
    def slowest_rank(self) -> int:
        """The rank of ``slowest_seconds``."""
        return self.seconds.index(self.slowest_seconds)

    @property
    def median_seconds(self) -> float:
        """Over the ranks."""
        return median(one for one in self.seconds if one is not None)


class NcclNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL's own log of a cycle says, all ranks together."""

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
    """A cycle that gave way."""

    finished_at: float
    occupied_seconds: float
    reason: YieldReason
    detail: str


CycleResult: TypeAlias = Measured | Failed | Skipped | Yielded
