"""Messages to and from a rank. It may run on another Python than the daemon: the standard library alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

INSTALL_TORCH = "pip install torch, or name an interpreter that has torch in probes.python"

ELEMENT_BYTES = 4
"""Buffers hold 32-bit floats, as those of nccl-tests do."""

Backend: TypeAlias = Literal["nccl", "gloo", "simulated", "tcp"]
"""tcp: plain sockets without torch; between two nodes only."""

Collective: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]

Operation: TypeAlias = Literal[
    Collective,
    "send_recv",
    "host_to_device",
    "device_to_host",
    "matrix_product",
    "overlapped",
]
"""One call that is timed: names of torch.distributed, both directions of a copy with pinned host memory, a product of
matrices on each rank, and an all_reduce under such a product."""

Purpose: TypeAlias = Literal["latency", "bandwidth", "work", "sustained"]
"""work: its time alone counts. sustained: as bandwidth, for as long as the step may take; such steps follow each other
in a stress run."""

Phase: TypeAlias = Literal["start", "rendezvous", "setup", "measure", "done"]

PHASES: tuple[Phase, ...] = get_args(Phase)
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
    "starved",  # the node is too short of CPU or memory: ranks would start late or never
    "yielded",  # the node is held for a job (commwatch yield)
    "no_torch",
    "no_gpu_backend",  # nccl is wanted, but there is no GPU or torch has no NCCL
    "single_gpu",  # one GPU has no peer
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


@dataclass(frozen=True, kw_only=True)
class SimulatedNodePlan:
    preset: str
    faults_file: str | None
    started_at: float
    """Seconds since 1970 at which the simulated node booted; the same in all processes."""


@dataclass(frozen=True, kw_only=True)
class Step:
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


@dataclass(frozen=True, kw_only=True)
class Meeting:
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
    """Hexadecimal; a secret shared by both ends alone."""


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """The plan of one rank process, which it reads from its standard input."""

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


@dataclass(frozen=True, kw_only=True)
class RankResult:
    timings: tuple[tuple[float, ...], ...]
    """For each step of the plan: seconds of one call, a number for each timing; empty where it did not take part."""
    torch_version: str = ""
    nccl_version: str = ""
    """Version of the NCCL library that is loaded; empty for other backends."""


@dataclass(frozen=True)
class PhaseEvent:
    phase: Phase


@dataclass(frozen=True)
class GateEvent:
    """A rank has met the others (gate 0), or is through with the steps before step ``gate - 1``, and waits to go on.

    The parent checks the node once more and then writes one byte to the rank's standard input.
    """

    gate: int


@dataclass(frozen=True)
class ResultEvent:
    """A rank has measured, and what it received was exact."""

    result: RankResult


@dataclass(frozen=True)
class ErrorEvent:
    """A rank cannot go on."""

    reason: FailureReason | SkipReason
    detail: str


RankEvent: TypeAlias = PhaseEvent | GateEvent | ResultEvent | ErrorEvent
"""One line of a rank's standard output."""

EVENTS: dict[str, type[RankEvent]] = {
    "phase": PhaseEvent,
    "gate": GateEvent,
    "result": ResultEvent,
    "error": ErrorEvent,
}
"""By what a line has under ``type``."""


def event_line(event: RankEvent) -> bytes:
    """An event as the parent reads it."""
    [name] = [name for name, kind in EVENTS.items() if isinstance(event, kind)]
    return json.dumps({"type": name, **asdict(event)}).encode() + b"\n"


def read_plan(line: bytes) -> RankPlan:
    """The plan as the parent wrote it, which has checked it."""
    fields = _with_tuples(json.loads(line))
    fields["steps"] = tuple(Step(**step) for step in fields["steps"])
    for name, kind in (("simulation", SimulatedNodePlan), ("meeting", Meeting)):
        if fields[name] is not None:
            fields[name] = kind(**fields[name])
    return RankPlan(**fields)


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))
    if isinstance(value, dict):
        return {name: _with_tuples(one) for name, one in value.items()}
    return value
