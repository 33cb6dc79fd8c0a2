"""Maintenance: the file that pauses probes and driver workers, and its expiry."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import msgspec

from commwatch.errors import StateError
from commwatch.state.directory import remove, write_atomically
from commwatch.state.records import Timestamp, read_file

FILE_NAME = "maintenance.json"
_MOST_BYTES = 65_536
_REASON = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


class Maintenance(msgspec.Struct, frozen=True):
    """A pause that ends by itself."""

    reason: str
    """A short word, since it becomes a label value: lower-case letters, digits, ``-`` and ``_``."""
    until: Timestamp
    """Wall clock seconds since 1970."""
    since: Timestamp

    def __post_init__(self) -> None:
        if not _REASON.fullmatch(self.reason):
            raise ValueError("reason must be one word of lower-case letters, digits, - and _, at most 32 long")


class MaintenanceFile:
    """The maintenance file of a state directory; anyone who may write it may pause the daemon."""

    def __init__(self, state: Path) -> None:
        self.path = state / FILE_NAME
        self._seen: tuple[int, int] | None = None
        self._current: Maintenance | None = None

    def read(self, now: float) -> Maintenance | None:
        """The pause in force at a wall clock time; None where there is none or it has expired.

        A file that cannot be understood pauses nothing and is reported once.
        """
        try:
            status = self.path.lstat()
        except OSError:
            self._seen = self._current = None
            return None
        stamp = (status.st_mtime_ns, status.st_ctime_ns)
        if stamp != self._seen:
            self._seen = stamp
            self._current = self._parse()
        current = self._current
        return current if current is not None and now < current.until else None

    def _parse(self) -> Maintenance | None:
        try:
            return read_file(self.path, Maintenance, _MOST_BYTES)
        except (OSError, ValueError, RecursionError) as error:
            import structlog  # only here: it takes a fifth of the start of a command

            log = structlog.get_logger("commwatch.maintenance")
            log.error("the maintenance file is ignored", file=str(self.path), error=str(error))
            return None

    def write(self, maintenance: Maintenance) -> None:
        """Put a pause into force.

        Raises:
            StateError: the file cannot be written.
        """
        try:
            write_atomically(self.path, msgspec.json.encode(maintenance))
        except OSError as error:
            raise _failure(self.path, error) from error

    def remove(self) -> bool:
        """End the pause; False where there was none.

        Raises:
            StateError: the file cannot be removed.
        """
        try:
            remove(self.path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failure(self.path, error) from error
        return True


def _failure(path: Path, error: OSError) -> StateError:
    hint = ""
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "; run this as root or as the daemon's user"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        hint = "; name the right one of the daemon with --path.state, and --simulate for a simulated node"
    return StateError(f"{path}: {error.strerror}{hint}")
