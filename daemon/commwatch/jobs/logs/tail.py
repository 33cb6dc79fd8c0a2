"""One log that is followed: what was added is read once, also when the file is truncated, rewritten or renamed."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from commwatch.jobs.logs.files import LogFile, identity_of
from commwatch.jobs.logs.position import Position
from commwatch.jobs.logs.transport import TransportLines

LONGEST_LINE = 64 * 1024
"""Of a longer line only the first 64 KiB are read, once they are there."""
PIECE_BYTES = 4 * LONGEST_LINE
MOST_BEHIND_BYTES = 64 << 20
"""Where more than this waits to be read, all but the last ``CATCH_UP_BYTES`` is passed over."""
CATCH_UP_BYTES = 1 << 20
UNFINISHED_SECONDS = 30.0
"""A line without an end that has not grown within this time is taken as it is."""
_CHECKED_BYTES = 64
MOST_HOSTS = 64
_MOST_PIDS = 512


class Piece(NamedTuple):
    """The whole lines of a piece of a log."""

    body: bytes
    """Whole lines, or the beginning of one that is too long; later bytes are not to be parsed yet."""
    begins: int
    """Where the body begins in the piece."""
    used: int
    """Bytes of the piece that need not be read again."""
    skips: bool
    """Whether the following bytes are the remainder of a line that is too long, or of one that was given up."""


def whole_lines(data: bytes, skips: bool) -> Piece:
    """The whole lines at the beginning of a piece; a carriage return ends a line too, as in progress bars.

    Args:
        skips: whether it begins within a line that is to be skipped.
    """
    begins = 0
    if skips:
        ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
        if not ends:
            return Piece(b"", len(data), len(data), True)
        begins = min(ends) + 1
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if end > begins:
        return Piece(data[begins:end], begins, end, False)
    if len(data) - begins >= LONGEST_LINE:
        return Piece(data[begins : begins + LONGEST_LINE], begins, len(data), True)
    return Piece(b"", begins, begins, False)


class LogTail:
    """A file that is being written; read in pieces."""

    def __init__(self, file: LogFile, position: Position) -> None:
        self.path, self.name, self.identity, self.owner = file.path, file.name, file.identity, file.owner
        self.position = position
        self.replaced = Position()
        """How far it was read before it was cut or written again: what a copy holds that was made before."""
        self._skipped = 0
        self.hosts: set[str] = set()
        """Hosts that write into it, by its lines."""
        self.transport = TransportLines()
        """Transport of the job that is being set up."""
        self.set_up = float("-inf")
        """When NCCL wrote last, monotonic seconds."""
        self.pids: set[bytes] = set()
        """The processes of that job that NCCL names."""
        self.fallback: str | None = None if position.told else ""
        """Result of these lines at the last run: a kind of fallback, empty for none; None: it was reported."""
        self.goes_on = position.told
        """Whether the next lines of NCCL are of the job whose fallback an earlier process reported."""
        self.looked = self.grown = float("-inf")
        """Times of the last check and of the last new data, monotonic seconds."""
        self._descriptor = -1
        self._unfinished: tuple[int, float] | None = None
        """Length of the file and time at which a line without an end was seen first."""

    @property
    def is_open(self) -> bool:
        """Whether it holds a descriptor."""
        return self._descriptor >= 0

    def begin_job(self) -> None:
        """Forget the transport of another job."""
        self.transport, self.fallback, self.pids, self.goes_on = TransportLines(), "", set(), False

    def take_hosts(self, hosts: Iterable[str]) -> None:
        """Remember who writes into it; of many hosts only the first."""
        for host in hosts:
            if len(self.hosts) < MOST_HOSTS:
                self.hosts.add(host)

    def take_pids(self, pids: Iterable[bytes]) -> None:
        """Remember processes of the job that is being set up; of many only the first."""
        for pid in pids:
            if len(self.pids) < _MOST_PIDS:
                self.pids.add(pid)

    def start_at_end(self) -> None:
        """Pass over what is there now.

        Raises:
            OSError: as the kernel gave it.
        """
        size = self._size()
        last = os.pread(self._descriptor, 1, size - 1) if size else b"\n"
        self.position = Position(size, self._check(size), last not in (b"\n", b"\r"))

    def holds_before(self, position: Position) -> bool:
        """Whether the file goes on from where another one was read to: it is a copy of that one.

        Raises:
            OSError: as the kernel gave it.
        """
        return 0 < position.offset <= self._size() and self._check(position.offset) == position.check

    def read(self, now: float) -> Piece | None:
        """The next piece; None where nothing is to be read now. ``advance`` goes on behind it.

        Args:
            now: monotonic seconds.

        Raises:
            OSError: as the kernel gave it.
        """
        self.looked = now
        size = self._size()
        position = self.position
        if size < position.offset or self._check(position.offset) != position.check:
            self.replaced = position
            position = self.position = Position()
            self.begin_job()
        if size - position.offset > MOST_BEHIND_BYTES:
            self._skipped += size - CATCH_UP_BYTES - position.offset
            position = self.position = Position(size - CATCH_UP_BYTES, self._check(size - CATCH_UP_BYTES), True)
        if size == position.offset:
            return None
        data = os.pread(self._descriptor, PIECE_BYTES, position.offset)
        if not data:
            return None
        piece = whole_lines(data, position.skips)
        if piece.used:
            self._unfinished, self.grown = None, now
            return piece
        if self._unfinished is None or self._unfinished[0] != size:
            self._unfinished = (size, now)
        if now - self._unfinished[1] < UNFINISHED_SECONDS:
            return None
        self._unfinished = None
        return Piece(data, 0, len(data), True)

    def advance(self, used: int, skips: bool) -> None:
        """Go on behind what was read.

        Args:
            used: bytes from the present position.
            skips: see ``Piece.skips``.

        Raises:
            OSError: as the kernel gave it.
        """
        offset = self.position.offset + used
        self.position = Position(offset, self._check(offset), skips, self.fallback is None)

    def _size(self) -> int:
        if self._descriptor < 0:
            # Neither a pipe that no one writes to nor a terminal may hold us, whatever the name leads to by now.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or identity_of(found.st_dev, found.st_ino) != self.identity:
                os.close(descriptor)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
            self._descriptor = descriptor
            return found.st_size
        return os.fstat(self._descriptor).st_size

    def _check(self, offset: int) -> int:
        begin = max(0, offset - _CHECKED_BYTES)
        return zlib.crc32(os.pread(self._descriptor, offset - begin, begin)) if offset else 0

    def take_skipped(self) -> int:
        """Bytes that were passed over since this was asked last."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def close(self) -> None:
        """Let go of the descriptor; the next reading opens the file again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
