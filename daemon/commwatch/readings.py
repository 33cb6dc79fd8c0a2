"""Messages from a worker to the daemon: readings, absences with their reasons, and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeAlias

from msgspec import Meta

from commwatch_exporters.snapshot import Series, Value

Word: TypeAlias = Annotated[str, Meta(max_length=256)]
"""A name or key; over the wire no longer one is taken, nor a longer text or a number out of range below."""
Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
_Time: TypeAlias = Annotated[float, Meta(ge=0, le=253_402_300_799)]
"""Seconds since 1970, until the end of the year 9999."""

LARGEST_VALUE = 1e30
"""No reading is larger, up or down: neither NaN nor an infinite one is taken."""

Reason: TypeAlias = Literal[
    "no_driver",  # the origin is not on this node
    "library_mismatch",  # user library and kernel module differ
    "no_permission",
    "lost",  # the device fell off its bus
    "reset_required",
    "not_found",  # the device went away
    "not_listed",  # the device is on its bus and bound to its driver, which does not list it
    "not_ready",  # busy now, try again
    "unreadable",  # the origin answered with an error or with text that makes no sense
    "deadline",  # no answer in time; set by the daemon, never by a source
    "crashed",  # the worker ended; set by the daemon
    "starved",  # no answer in time, and the node had too little CPU or memory for it; set by the daemon
]
"""Why something was not read: the bounded reasons of ``commwatch_collector_errors_total``."""


class DeviceReadings(NamedTuple):
    """Values read from one device at one time."""

    device: str
    """Key of the device within its source: a PCI address, an interface name; empty for the source as a whole."""
    time: float
    """``time.monotonic()`` when they were taken, seconds; of one clock in all processes of the node."""
    series: tuple[Series, ...]
    """The series of the values; sent only if they differ from those of the reading before."""
    values: Sequence[Value]
    """As many as series; None for what was not read."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Something that should have been read and was not."""

    device: Word
    reason: Reason
    detail: Text
    """The failure as an operator should read it: the call or file, and the driver's own words."""


EventKind: TypeAlias = Literal["xid", "sxid", "message", "adapter"]


@dataclass(frozen=True, slots=True)
class HardwareEvent:
    """Something that happened once, as the driver or the kernel log reported it."""

    kind: EventKind
    """``xid``: of a GPU; ``sxid``: of an NVSwitch; ``message``: a line of the kernel log that has no number;
    ``adapter``: a line about a network adapter."""
    device: Word
    """PCI address as sysfs spells it; empty where the report names none."""
    code: Word
    """Number of the Xid or SXid; for a message its bounded name."""
    origin: Literal["nvml", "kernel_log"]
    time: _Time
    """Seconds since 1970."""
    text: Text = ""
    """The text of the report, without the contents of the other fields."""
    boot: Word = ""
    """Kernel log only: identity of the boot, which ``sequence`` belongs to."""
    sequence: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Kernel log only: number of the record, which grows throughout a boot."""


@dataclass(frozen=True, slots=True)
class LogErrors:
    """Lines of one kind that a run found in the logs of jobs."""

    category: Word
    """One of ``jobs.logs.rules.SIDES``."""
    certain: bool
    """See ``jobs.logs.lines.Finding``."""
    count: Annotated[int, Meta(ge=1, le=2**31)]
    file: Annotated[str, Meta(max_length=8192)]
    """Path of the log that held the first of them."""
    text: Text
    """The first of them, shortened."""
    hca: Word = ""
    """RDMA device that they name; empty: none."""
    rank: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """That wrote them, of time-outs; None where they name none."""
    call: Word = ""
    """Of the first of these time-outs the operation and its number: ``ALLREDUCE 1042``; empty where it names none."""
    log: Word = ""
    """Identity of the log, see ``jobs.logs.files.identity_of``; empty where lines of several logs are counted."""
    fallback: Word = ""
    """One of ``jobs.logs.fallbacks.FALLBACKS``: the log shows that a job left a faster transport, which is counted by
    itself and is no error; empty of errors."""


@dataclass(slots=True)
class Batch:
    """Results of one run of a collector."""

    readings: list[DeviceReadings] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    events: list[HardwareEvent] = field(default_factory=list)
    """In the order in which they happened."""
    occupants: dict[str, tuple[int, ...]] | None = None
    """Ids of the processes with a compute context, by PCI address of the GPU; a GPU whose list was not read is left
    out. None if the collector reads no such list."""
    log_errors: list[LogErrors] = field(default_factory=list)
    """In the order in which the first of each kind was found."""
    resume: bytes | None = None
    """State from which the next process of this source resumes; None: unchanged."""
    audit: bytes | None = None
    """JSON of a record for the collector's tracker: of the settings a ``settings.records.AuditRecord``, of Inspector's
    files an ``inspector.report.InspectorReport``, of Flight Recorder dumps a new list of ``Verdict``; None of all
    others."""


class SourceUnavailable(Exception):
    """The origin cannot be read at all now: no driver, no library, no permission."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


LOST_REASONS = frozenset({"lost", "reset_required", "not_found"})


WORKER_REASONS = frozenset({"deadline", "crashed", "starved"})
"""Reasons that the daemon gives for a worker without an answer."""
