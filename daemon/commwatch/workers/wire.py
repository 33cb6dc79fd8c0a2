"""Messages between the daemon and a worker process: MessagePack frames, and the mark of progress.

The daemon takes no more than the bounds here allow, whatever has become of the process.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import select
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from commwatch.config.simulated import SimulationPlan
from commwatch.lines import printable
from commwatch.readings import LARGEST_VALUE, Absence, HardwareEvent, LogErrors, Reason, Text, Word
from commwatch.state.records import LONGEST_LABEL
from commwatch_exporters.snapshot import Series

MOST_DEVICES = 8192
"""Devices of one worker, over all its collectors."""
MOST_EARLY = 10
"""Batches of one collector that may come before they are due."""
MOST_WAITING = 1000
"""Batches of one collector that may wait in the socket, as after a time in which the daemon itself was not run."""
MOST_ALIASES = 8192
LARGEST_FRAME = 4 * 2**20
"""Bytes; the largest of b200x8 with all metrics has 340 kB."""
LONGEST_DETAIL = 1024
"""Characters of the details of a failure or an event."""
MOST_OF_ONE: int = 40_000
"""Series, values, absences or events in one batch."""
LONGEST_TEXT = 2**20
"""Bytes of what a source goes on from, and of an audit."""

WireValue: TypeAlias = int | Annotated[float, Meta(ge=-LARGEST_VALUE, le=LARGEST_VALUE)] | None
"""A number that is finite: sources take what is none for not read."""
_ProcessId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31)]
_Bytes: TypeAlias = Annotated[bytes, Meta(max_length=LONGEST_TEXT)]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on a worker's metrics and frames."""

    prefixes: tuple[str, ...] = ("commwatch_",)
    """Names of its metrics begin so."""
    most_series: int = 40_000
    """Of all its collectors and devices together."""
    largest_frame: int = LARGEST_FRAME
    """Bytes."""

    def checked(self, series: tuple[Series, ...]) -> tuple[Series, ...]:
        """Series as they may be shown: label values in one line, without what moves a terminal's cursor, not too long.

        Raises:
            ValueError: a name is none of its metrics.
        """
        for name, _ in series:
            if not name.startswith(self.prefixes):
                raise ValueError(f"a series {shortened(name, LONGEST_LABEL)!r}, which is not of this worker")
        if all(label.isprintable() and len(label) <= LONGEST_LABEL for _, labels in series for label in labels):
            return series
        return tuple([(name, tuple([shortened(label, LONGEST_LABEL) for label in labels])) for name, labels in series])


def shortened(text: str, most: int) -> str:
    """A text in one printable line of at most ``most`` characters."""
    if len(text) > most:
        text = text[: most - 1] + "…"
    return text if text.isprintable() else printable(text)


class WorkerPlan(msgspec.Struct, array_like=True, frozen=True):
    """What a worker process reads; the first frame that it gets. Orders follow."""

    name: str
    """Of its reader; the process has it behind ``commwatch-``."""
    sources: tuple[str, ...]
    settings: bytes = b"{}"
    """JSON of the configuration's section ``sources``."""
    sysfs: str = "/sys"
    procfs: str = "/proc"
    """Root of the ``/proc`` tree in which the sources read the node's processes."""
    leave_out: tuple[str, ...] = ()
    """Devices that are not touched."""
    only: tuple[str, ...] | None = None
    """The devices that are touched; None: all others."""
    simulation: SimulationPlan | None = None
    opt_in: tuple[str, ...] = ()
    """Metrics that are read only where the configuration asks for them."""
    resume: dict[str, bytes] = {}
    """The state from which a source resumes, by its name: ``Batch.resume`` of an earlier process, or an
    ``AuditOrder``."""
    confined: bool = False
    """It only reads what others wrote: see ``seccomp``."""
    rest_when_unavailable: bool = False
    """Run nothing more once a source cannot be read: the process is asked to end, and another one tries again later.
    While a device is lost, the process is replaced now and then. For drivers: a handle of a lost device stays dead
    after the device has come back."""


class Order(msgspec.Struct, array_like=True, frozen=True):
    """A change of what the process runs; the collector "" means: let go of everything and exit."""

    collector: str
    every: float = 0.0
    """Seconds between two runs from now on; 0: it is not repeated."""
    now: bool = False
    """Run it at once, too."""


class WireReadings(msgspec.Struct, array_like=True, frozen=True):
    """``DeviceReadings`` on the wire: the series of a device travel only where the batch before had others."""

    device: Word
    time: Annotated[float, Meta(ge=0, le=1e12)]
    series: Annotated[tuple[Series, ...], Meta(max_length=MOST_OF_ONE)] | None
    values: Annotated[Sequence[WireValue], Meta(max_length=MOST_OF_ONE)]


class WireBatch(msgspec.Struct, array_like=True, frozen=True):
    """The result of one run of a collector, on the wire."""

    collector: Word
    readings: Annotated[list[WireReadings], Meta(max_length=MOST_DEVICES)]
    absences: Annotated[list[Absence], Meta(max_length=MOST_DEVICES)]
    events: Annotated[list[HardwareEvent], Meta(max_length=MOST_OF_ONE)]
    unavailable: tuple[Reason, Text] | None
    """Set where the source as a whole could not be read."""
    aliases: Annotated[dict[Word, Word], Meta(max_length=MOST_ALIASES)]
    """``Source.aliases``, in the first batch after the source was opened, and whenever they have changed."""
    began: Annotated[float, Meta(ge=0, le=1e12)]
    """Monotonic seconds at which the run began."""
    duration: Annotated[float, Meta(ge=0, le=1e9)]
    """Seconds that the run took in the worker."""
    occupants: (
        Annotated[dict[Word, Annotated[tuple[_ProcessId, ...], Meta(max_length=65536)]], Meta(max_length=256)] | None
    ) = None
    """``Batch.occupants``."""
    log_errors: Annotated[list[LogErrors], Meta(max_length=1024)] = []
    resume: _Bytes | None = None
    """``Batch.resume``."""
    audit: _Bytes | None = None
    """``Batch.audit``."""


GRIDS_SECONDS = (5.0, 1.0)
"""Runs fall on multiples of these on the monotonic clock, which all processes share: what is due together costs one
wake-up."""


def on_grid(moment: float, interval: float) -> float:
    """A moment, moved back to the coarsest grid that an interval is a multiple of; any other one has its own."""
    coarse, fine = GRIDS_SECONDS
    grid = interval if interval % fine else fine if interval % coarse else coarse
    return math.floor(moment / grid + 1e-6) * grid  # what a fraction lacks to a point of the grid is rounding


class Cadence:
    """When a collector is due, in monotonic seconds: the process goes by it, and the daemon expects by it."""

    __slots__ = ("due", "every")

    def __init__(self) -> None:
        self.every = 0.0
        """Seconds between two runs; 0: it is not repeated."""
        self.due = math.inf

    def order(self, every: float, now: float, *, at_once: bool) -> None:
        """Repeat it at another interval from now on; at once: it is due now, too."""
        self.every = every
        if at_once:
            self.due = min(self.due, now)
        else:
            self.ran(now)

    def ran(self, now: float) -> None:
        """It has run, and is due once an interval has gone by; what was missed is not made up for."""
        self.due = on_grid(now + self.every, self.every) if self.every else math.inf


_LENGTH = struct.Struct("<I")
_PART_BYTES = 64 * 2**10


def frame(message: bytes) -> bytes:
    """A message with its length in front."""
    return _LENGTH.pack(len(message)) + message


def take_frames(buffer: bytearray, largest: int = LARGEST_FRAME) -> list[bytes]:
    """Remove the complete messages from the front of a buffer; each has at most ``largest`` bytes.

    Raises:
        ValueError: the length is absurd, so the other side is not what we think.
    """
    messages = []
    while len(buffer) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer)
        if length > largest:
            raise ValueError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(buffer) < end:
            break
        messages.append(bytes(memoryview(buffer)[_LENGTH.size : end]))
        del buffer[:end]
    return messages


class Inbox:
    """The messages that come over a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()
        # A reader that blocks in recv is also woken when the other side takes what was sent; a poller is not.
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)

    def take(self, wait: float = math.inf) -> list[bytes] | None:
        """The messages that have come, after a wait in seconds where there is none; None when the other side has
        closed, whatever it said before."""
        while not (messages := take_frames(self._buffer)):
            ready = self._readable.poll(None if wait == math.inf else math.ceil(wait * 1000))
            if not ready:
                return []
            if any(events & select.POLLHUP for _, events in ready):
                return None
            try:
                part = self._connection.recv(_PART_BYTES)
            except ConnectionResetError:  # closed with a reply of ours unread
                return None
            if not part:
                return None
            self._buffer += part
        return messages


class ProgressMark:
    """A few bytes of shared memory in which a worker names the device that it is touching.

    The daemon reads it only when a deadline was missed, so that progress costs neither side a system call.
    """

    SIZE = 4096
    """Bytes: a device of the reader of job files is a path."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, self.SIZE)

    @classmethod
    def create(cls) -> ProgressMark:
        """A new mark; its descriptor is handed to the worker, which cannot cut it: reading it then would end us."""
        descriptor = os.memfd_create("commwatch-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, cls.SIZE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return cls(descriptor)

    def set(self, device: str) -> None:
        """Say that this device is touched from now on."""
        text = device.encode()[: self.SIZE - 1]
        self._memory[: len(text) + 1] = text + b"\0"

    def get(self) -> str:
        """The device said last; empty where there is none."""
        return self._memory[: self.SIZE].split(b"\0", 1)[0].decode(errors="replace")

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        os.close(self.descriptor)
