"""What the daemon and the worker that audits NCCL settings tell each other; no value of a setting is in it."""

from __future__ import annotations

import msgspec

from commwatch.node.topology.nvlink import DriverFacts


class AuditOrder(msgspec.Struct, frozen=True, array_like=True):
    """What the worker is told."""

    pids: tuple[int, ...] = ()
    """Processes on the GPUs."""
    driver: DriverFacts = DriverFacts(note="nothing was read of the driver")
    """GPUs and NVLinks, as the collectors of the driver read them."""


class UnreadRecord(msgspec.Struct, frozen=True):
    """A process on a GPU whose settings are not known: not one without fault."""

    pid: int
    reason: str
    """One of ``sources.process_environment.UnreadReason``."""


class RemarkRecord(msgspec.Struct, frozen=True):
    """What is to be said of one setting."""

    code: str
    """One of ``jobs.settings.CODES``."""
    variable: str
    """As it was written, made printable."""
    severity: str
    """``harmful``, ``suspicious``, ``useless`` or ``note``."""
    words: str
    next_step: str
    origin: str
    """``environment``, ``conf_file``, ``home_file`` or ``system_file``; empty where it is not set."""
    processes: int
    """Of how many it is said."""
    pids: tuple[int, ...]
    """The first of them."""


class AuditRecord(msgspec.Struct, frozen=True):
    """The outcome of one audit."""

    read: int = 0
    """Processes whose settings were read and judged."""
    unread: tuple[UnreadRecord, ...] = ()
    """The first of those that were not."""
    unread_count: int = 0
    """All of them."""
    remarks: tuple[RemarkRecord, ...] = ()
    """The gravest first."""
    remarks_left_out: int = 0
    """Further remarks, none graver than those that are here."""
