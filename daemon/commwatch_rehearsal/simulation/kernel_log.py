"""The kernel log of a simulated node, read as ``/dev/kmsg`` is."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable

from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.kernel_log_texts import FIRST_BOOT, Line, Stream, streams_of
from commwatch_rehearsal.simulation.node import SimulatedNode

RING_RECORDS = 10_000
"""Records that the log holds; older ones are overwritten."""


class SimulatedKernelLog:
    """The log of a node from its last boot on, newly opened: the oldest record that is left comes first.

    Records are numbered by the microsecond in which they came, so that a log that is opened again, by whatever process,
    gives each the same number. They are stamped by this machine's monotonic clock.

    Args:
        monotonic: seconds since the machine started.
        with_first_boot: whether the lines of the first boot are in it.

    Raises:
        PermissionError: a fault makes the log unreadable.
    """

    def __init__(
        self, node: SimulatedNode, monotonic: Callable[[], float] = time.monotonic, *, with_first_boot: bool = True
    ) -> None:
        self._node = node
        self._with_first_boot = with_first_boot
        self._queue: deque[bytes] = deque()
        self._streams: list[tuple[object, Stream, int]] = []
        """The key of a stream, the stream, and the number of its records so far."""
        self._next = 0.0
        """When the next record comes, seconds since the node started."""
        self._last_number = -1
        self._overwritten = False
        hardware, now = node.now()
        _refuse(hardware, now)
        self._offset = monotonic() - now
        self._hardware = hardware
        self._open(hardware, now)

    def read(self) -> bytes | None:
        """The next record, ``LEVEL,NUMBER,MICROSECONDS,-;TEXT`` with its newline and properties; None: none now.

        Raises:
            BrokenPipeError: records were overwritten before they were read.
            PermissionError: a fault makes the log unreadable.
        """
        if not self._queue:
            hardware, now = self._node.now()
            _refuse(hardware, now)
            if hardware is not self._hardware:
                self._hardware = hardware
                self._take(hardware)
            if now >= self._next:
                self._fill(now)
            if self._overwritten:
                self._overwritten = False
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        return self._queue.popleft() if self._queue else None

    def close(self) -> None:
        """Nothing to close."""

    def _open(self, hardware: Hardware, now: float) -> None:
        """Begin behind what came before the last boot, and what has been overwritten since."""
        boot = hardware.last_boot(now)
        for key, stream in self._streams_of(hardware):
            came = stream.count(boot)
            # A record of this very instant is not over yet.
            while came and stream.moment(came - 1) >= boot:
                came -= 1
            self._streams.append((key, stream, max(came, stream.count(now) - RING_RECORDS)))
        self._fill(now)
        self._overwritten = False

    def _streams_of(self, hardware: Hardware) -> list[tuple[object, Stream]]:
        return [one for one in streams_of(hardware) if self._with_first_boot or one[0] != FIRST_BOOT]

    def _take(self, hardware: Hardware) -> None:
        """Go on under other faults: what has been logged stays so, what is new begins with its first record."""
        before = [(key, came) for key, _, came in self._streams]
        self._streams = [
            (key, stream, next((came for known, came in before if known == key), 0))
            for key, stream in self._streams_of(hardware)
        ]
        self._next = 0.0

    def _fill(self, now: float) -> None:
        due: list[tuple[float, int, tuple[Line, ...]]] = []
        for place, (key, stream, came) in enumerate(self._streams):
            count = stream.count(now)
            due += [(stream.moment(number), place, stream.lines) for number in range(came, count)]
            self._streams[place] = (key, stream, max(came, count))
        for moment, _, lines in sorted(due, key=lambda one: one[:2]):
            for line in lines:
                self._last_number = max(self._last_number + 1, int(moment * 1e6))
                self._queue.append(_record(line, self._last_number, self._offset + moment))
        while len(self._queue) > RING_RECORDS:
            self._queue.popleft()
            self._overwritten = True
        self._next = min((stream.moment(came) for _, stream, came in self._streams), default=float("inf"))


def _refuse(hardware: Hardware, now: float) -> None:
    if any(fault.kind == "kernel_log_unreadable" and fault.active(now) for fault in hardware.faults):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), "/dev/kmsg")


def _record(line: Line, number: int, stamp: float) -> bytes:
    properties = f" SUBSYSTEM=pci\n DEVICE=+pci:{line.pci_address}\n" if line.pci_address else ""
    return f"{line.level},{number},{max(0, int(stamp * 1e6))},-;{line.text}\n{properties}".encode()
