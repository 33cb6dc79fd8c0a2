"""The hold on a node: for a job that is about to start, running probes yield and none begins."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import structlog

from commwatch.errors import StateError
from commwatch.regular_file import lock_within, open_folder
from commwatch.state.directory import remove, write_atomically
from commwatch.state.records import Timestamp, read_file

log = structlog.get_logger("commwatch.probes.hold")

FILE_NAME = "hold.json"
_LOCK_SECONDS = 2.0
"""For the prologues of other jobs, which hold the lock for some milliseconds."""
_MOST_BYTES = 65_536


class Hold(msgspec.Struct, frozen=True):
    """A request for a hold; times are wall clock seconds since 1970."""

    until: Timestamp
    """No probe starts before this."""
    since: Timestamp
    """Time of the last request: a cycle that began before it yields, however short the hold."""

    def left(self, now: float) -> float:
        """Seconds for which it is still in force; 0 where it is not."""
        return max(0.0, self.until - now)


class HoldFile:
    """The hold of a state directory; anyone who may write it may hold the node."""

    def __init__(self, state: Path) -> None:
        self.path = state / FILE_NAME
        self._seen: tuple[int, int, int] | None = None
        self._current: Hold | None = None

    def read(self) -> Hold | None:
        """The last hold, in force or not; None where there is none, or it cannot be understood, which is logged once.

        One ``stat`` while nothing changes.
        """
        try:
            status = self.path.lstat()
        except OSError:
            self._seen = self._current = None
            return None
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        if stamp != self._seen:
            self._seen = stamp
            self._current = self._parse()
        return self._current

    def _parse(self) -> Hold | None:
        try:
            return read_file(self.path, Hold, _MOST_BYTES)
        except (OSError, ValueError, RecursionError) as error:
            log.error("the hold file is ignored", file=str(self.path), error=str(error))
            return None

    def hold(self, seconds: float, now: float) -> Hold:
        """Make a running cycle yield, and let none start for ``seconds``; a longer hold is unchanged.

        Raises:
            StateError: the file cannot be written.
        """
        with self._alone():
            before = self.read()
            hold = Hold(until=max(now + seconds, before.until if before else 0.0), since=now)
            write_atomically(self.path, msgspec.json.encode(hold))
            return hold

    def end(self, now: float) -> bool:
        """Let probes start again; False if there was no hold.

        Raises:
            StateError: the file cannot be removed.
        """
        with self._alone():
            before = self.read()
            with suppress(FileNotFoundError):
                remove(self.path)
            return before is not None and before.left(now) > 0

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prologues of several jobs may run at once; the directory is locked, which leaves no file of another owner."""
        try:
            descriptor = open_folder(self.path.parent)
            try:
                lock_within(descriptor, _LOCK_SECONDS)
                yield
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StateError(f"{self.path}: {error.strerror}{_hint(error)}") from error


def _hint(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "; run this as root or as the daemon's user"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "; name the state directory of the daemon with --path.state, and --simulate for a simulated node"
    return ""
