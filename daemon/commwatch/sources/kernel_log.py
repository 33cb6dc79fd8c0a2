"""The source ``kernel_log``: reports on GPUs, NVSwitches and network adapters in the kernel log, from ``/dev/kmsg``."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from commwatch.config.settings import KernelLogSection
from commwatch.readings import Batch, DeviceReadings, HardwareEvent, SourceUnavailable
from commwatch.sources import files
from commwatch.sources.adapter_lines import SIGNS
from commwatch.sources.base import Origin, Report, Source
from commwatch.sources.kernel_log_lines import parse_record, parse_report
from commwatch_exporters.snapshot import Series

RECORDS_PER_RUN = 20_000
"""A run takes some 40 ms at most; a large log is read in several, long before any deadline."""

EVENTS_PER_RUN = 2000
"""Reports that fit into one batch of a worker; further ones come with the next one."""

_RECORD_BYTES = 16_384
"""More than any kernel's longest record (8,192 bytes): a buffer that is too small would never get past it."""

_WANTED = re.compile(b"|".join((b"NVRM", b"SXid", *SIGNS)))

_SERIES: tuple[Series, ...] = (("commwatch_kernel_log_losses_total", ()),)


class LogDevice(Protocol):
    """A kernel log, read from its beginning."""

    def read(self) -> bytes | None:
        """The next whole record; None where there is none now.

        Raises:
            BrokenPipeError: records were overwritten before they were read; the next one is the oldest that is left.
            OSError: it cannot be read.
        """

    def close(self) -> None:
        """Let go of it."""


class KernelLogDevice:
    """``/dev/kmsg``: one read gives one record, and a newly opened file begins with the oldest record.

    Raises:
        OSError: it cannot be opened; EPERM where kernel.dmesg_restrict is 1 and the process lacks CAP_SYSLOG.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> bytes | None:
        try:
            record = os.read(self._descriptor, _RECORD_BYTES)
        except BlockingIOError:
            return None
        if not record:
            raise OSError(errno.ENODATA, "it has an end, so it is not the kernel log")
        return record

    def close(self) -> None:
        os.close(self._descriptor)


class HandedKernelLog(KernelLogDevice):
    """The same by a descriptor that was opened for us, in a process that may not open it itself.

    All processes that were given the descriptor share one position. One at a time reads, but one before it that hung
    in here may still go on. The kernel numbers records without a gap: one that does not follow the last shows that
    another process has read, and then reading begins again with the oldest record. So the records that it took are
    late, not lost.

    Raises:
        OSError: it is not the kernel log.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        os.set_blocking(self._descriptor, False)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._expected: int | None = None
        """The number of the next record; None: any."""

    def read(self) -> bytes | None:
        expected, self._expected = self._expected, None
        record = super().read()
        if record is not None and expected is not None and _number(record) != expected:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            record = super().read()
        self._expected = expected if record is None else _number(record) + 1
        return record


def _number(record: bytes) -> int:
    """Of a record, from its head, which is the kernel's own; see ``parse_record``."""
    return int(record.split(b",", 2)[1])


class KernelLogSource(Source):
    """Reads what was added to the kernel log since the last run; begins with the oldest record.

    The kernel stamps records by a clock that drifts from the others by seconds a day. So the time of an event is kept
    between the last run that found nothing more and the present one; of what was there before the source was opened,
    the time may be off by as much as the clocks are.

    Args:
        procfs: root of procfs; the boot is known by ``sys/kernel/random/boot_id``.
        user_messages: whether lines count that a program wrote into the log.
        clock: seconds since 1970.
        monotonic: seconds since the boot.
    """

    collectors = ("kernel_log",)

    def __init__(
        self,
        open_log: Callable[[], LogDevice],
        procfs: Path,
        user_messages: bool = False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._open_log = open_log
        self._boot_file = str(procfs / "sys/kernel/random/boot_id")
        self._user_messages = user_messages
        self._clock = clock
        self._monotonic = monotonic
        self._log: LogDevice | None = None
        self._boot = ""
        self._emptied = float("-inf")
        """When a run last found nothing more, seconds since 1970."""
        self._losses = 0

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """Open the log; see ``Source.open``."""
        super().open(report, leave_out, only)
        if only is not None:
            return
        try:
            self._boot = files.parse_word(files.read(self._boot_file))
        except OSError as error:
            raise SourceUnavailable(files.reason_of(error), f"{self._boot_file}: {error.strerror}") from error
        try:
            self._log = self._open_log()
        except PermissionError as error:
            raise SourceUnavailable(
                "no_permission",
                f"{error.filename or 'the kernel log'}: {error.strerror}; where kernel.dmesg_restrict is 1 that takes "
                "CAP_SYSLOG, or the open log as standard input, as the shipped unit gives it",
            ) from error
        except OSError as error:
            raise _unavailable(error) from error
        self._emptied = float("-inf")

    def collect(self, collector: str) -> Batch:
        """Read what was added; see ``Source.collect``. A process for one device alone leaves that to the other one."""
        if self._only is not None:
            return Batch()
        if self._log is None:
            raise ValueError("the kernel log is not open")
        batch = Batch()
        now, monotonic = self._clock(), self._monotonic()
        offset = now - monotonic
        try:
            for _ in range(RECORDS_PER_RUN):
                record = self._next(self._log)
                if record is None:
                    self._emptied = now
                    break
                # Most records are of other drivers: their form is not parsed.
                if _WANTED.search(record):
                    event = self._event(record, offset, now)
                    if event is not None:
                        batch.events.append(event)
                        if len(batch.events) == EVENTS_PER_RUN:
                            break
        except OSError as error:
            raise _unavailable(error) from error
        batch.readings.append(DeviceReadings("", monotonic, _SERIES, (self._losses,)))
        return batch

    def _next(self, log: LogDevice) -> bytes | None:
        """The next record; None where there is none now, or where records are overwritten as fast as they are read."""
        for _ in range(2):
            try:
                return log.read()
            except BrokenPipeError:
                self._losses += 1
        return None

    def _event(self, record: bytes, offset: float, now: float) -> HardwareEvent | None:
        parsed = parse_record(record)
        if parsed is None or not (parsed.from_kernel or self._user_messages):
            return None
        report = parse_report(parsed.text)
        if report is None:
            return None
        when = min(max(offset + parsed.microseconds / 1e6, self._emptied), now)
        return HardwareEvent(
            kind=report.kind,
            device=report.device,
            code=report.code,
            origin="kernel_log",
            time=when,
            text=report.text,
            boot=self._boot,
            sequence=parsed.sequence,
        )

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def opener(origin: Origin) -> Callable[[], LogDevice]:
    """The function that opens the kernel log of this node at its beginning."""
    if origin.stand_in is not None:
        return origin.stand_in
    path = origin.settings.kernel_log.path
    if origin.kernel_log is not None and path == KernelLogSection().path:
        return partial(HandedKernelLog, origin.kernel_log)
    return partial(KernelLogDevice, path)


def make_source(origin: Origin) -> KernelLogSource:
    user_messages = origin.settings.kernel_log.user_messages
    return KernelLogSource(opener(origin), origin.procfs, user_messages, monotonic=origin.monotonic)


def _unavailable(error: OSError) -> SourceUnavailable:
    return SourceUnavailable(files.reason_of(error), f"{error.filename or 'the kernel log'}: {error.strerror}")
