"""What crosses from a worker to the daemon: readings, what could not be read and why, and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from commwatch_exporters.snapshot import Series, Value

Reason: TypeAlias = Literal[
    "no_driver",  # the origin is not on this node
    "library_mismatch",  # user library and kernel module differ
    "no_permission",
    "lost",  # the device fell off its bus
    "reset_required",
    "not_found",  # the device went away
    "not_ready",  # busy now, try again
    "unreadable",  # the origin answered with an error or with text that makes no sense
    "deadline",  # no answer in time; set by the daemon, never by a source
    "crashed",  # the worker ended; set by the daemon
]
"""Why something was not read: the bounded reasons of ``commwatch_collector_errors_total``."""


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """Values read from one device at one time."""

    device: str
    """Key of the device within its source: a PCI address, an interface name; empty for the source as a whole."""
    time: float
    """``time.monotonic()`` when they were taken, seconds; of one clock in all processes of the node."""
    series: tuple[Series, ...]
    """What the values are; the same object for each reading of the same series, so that it travels only once."""
    values: Sequence[Value]
    """As many as series; None for what was not read."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Something that should have been read and was not."""

    device: str
    reason: Reason
    detail: str
    """What failed, as an operator should read it: the call or file, and the driver's own words."""


EventKind: TypeAlias = Literal["xid", "sxid", "message"]


@dataclass(frozen=True, slots=True)
class HardwareEvent:
    """Something that happened once, as the driver or the kernel log reported it."""

    kind: EventKind
    """``xid``: of a GPU; ``sxid``: of an NVSwitch; ``message``: a line of the kernel log that has no number."""
    device: str
    """PCI address as sysfs spells it; empty where the report names none."""
    code: str
    """Number of the Xid or SXid; for a message its bounded name."""
    origin: Literal["nvml", "kernel_log"]
    time: float
    """Seconds since 1970."""
    text: str = ""
    """What the report says, without what stands in the other fields."""
    boot: str = ""
    """Kernel log only: identity of the boot, which ``sequence`` belongs to."""
    sequence: int = 0
    """Kernel log only: number of the record, which grows throughout a boot."""


@dataclass(frozen=True, slots=True)
class LogErrors:
    """Lines of one kind that a run found in the logs of jobs."""

    category: str
    """One of ``jobs.logs.rules.SIDES``."""
    certain: bool
    """See ``jobs.logs.lines.Finding``."""
    count: int
    file: str
    """Path of the log that held the first of them."""
    text: str
    """The first of them, shortened."""
    hca: str = ""
    """RDMA device that they name; empty: none."""
    rank: int | None = None
    """That wrote them, of time-outs; None where they name none."""


@dataclass(slots=True)
class Batch:
    """What one run of a collector gave."""

    readings: list[DeviceReadings] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    events: list[HardwareEvent] = field(default_factory=list)
    """In the order in which they happened."""
    occupants: dict[str, tuple[int, ...]] | None = None
    """Ids of the processes with a compute context, by PCI address of the GPU; a GPU whose list was not read is left
    out. None where the collector does not look."""
    log_errors: list[LogErrors] = field(default_factory=list)
    """In the order in which the first of each kind was found."""
    resume: bytes | None = None
    """What the next process of this source is to be given, so that it goes on from here; None: what was told last."""
    audit: bytes | None = None
    """JSON of a ``settings_records.AuditRecord``; None of all collectors but that of settings."""


class SourceUnavailable(Exception):
    """The origin cannot be read at all now: no driver, no library, no permission."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


LOST_REASONS = frozenset({"lost", "reset_required", "not_found"})


WORKER_REASONS = frozenset({"deadline", "crashed"})
