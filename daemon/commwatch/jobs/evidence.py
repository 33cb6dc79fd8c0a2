"""The records of a job that does not go on: its processes, and the word of each source on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from commwatch.state.records import Timestamp

EvidenceSource: TypeAlias = Literal["node", "proc", "flight_recorder", "inspector", "log", "ras"]
"""In the order of trust: signals of the node, the process table, then what the job wrote, and what it answers."""


class JobEvidence(msgspec.Struct, frozen=True):
    source: str
    """One of ``EvidenceSource``, or one of a later version."""
    words: str
    """One sentence without its full stop; printable."""
    parts: tuple[str, ...] = ()
    """PCI addresses of GPUs, RDMA devices and interfaces that it names; empty where it names none."""
    since: Timestamp | None = None
    """When that began, seconds since 1970; None where the source does not know."""


class JobRank(msgspec.Struct, frozen=True):
    """A process of a job on a GPU of this node."""

    gpu: int
    """NVML index of the GPU."""
    address: str
    """Its PCI address."""
    pid: int
    """In the process table that the daemon sees."""
    is_busy: bool
    """Whether the GPU is: while a job is stuck, its kernel waits there for peers."""
    started: float | None = None
    """Seconds after the boot at which it began, which tells it from another one with its number; None: it has ended,
    or could not be read."""


def has_arrived_alone(pid: int, ranks: Iterable[JobRank]) -> bool:
    """Whether the kernel of this process alone waits for its peers: it is there, and the others are not."""
    busy = {one.pid for one in ranks if one.is_busy}
    return busy == {pid}


class SuspectedJob(msgspec.Struct, frozen=True):
    """A job that has moved no data for a while, with its processes."""

    seconds: float
    """Since its last payload."""
    ranks: tuple[JobRank, ...]
    """By GPU; a process on several GPUs is there for each."""


def first_gpu(job: SuspectedJob) -> str:
    """PCI address of its lowest GPU, by which findings name it."""
    return min(job.ranks, key=lambda one: one.gpu).address
