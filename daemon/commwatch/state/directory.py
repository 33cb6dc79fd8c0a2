"""The state directory: what must survive a restart, written atomically and read back, one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from commwatch.config.settings import Config
from commwatch.config.simulated import node_name
from commwatch.errors import StateError
from commwatch.regular_file import open_folder, open_regular, read_regular
from commwatch.state.records import encode, read_file
from commwatch.state.replace import UNFINISHED, replace_file

SOCKET_NAME = "control.sock"
"""Where the daemon answers the commands of this node, in its state directory."""
API = "/api/v1/"
"""Before the names of its documents, there and at its endpoint."""

_IN_THE_WAY: Final = (errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""Of a pipe or a device, of a link, of a folder, of a socket."""

_WRITING_SECONDS: Final = 3600.0
"""No file takes longer to be written."""

_Record = TypeVar("_Record", bound=msgspec.Struct)
_Used = TypeVar("_Used")


def default_state_path() -> Path:
    """The default state directory: systemd's folder, the system's for root, else the user's."""
    if systemd := os.environ.get("STATE_DIRECTORY"):
        return Path(systemd.split(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/commwatch")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "commwatch"


def state_path(config: Config) -> Path:
    """The state directory in force; a simulated node keeps its own, so that it never mixes with the real one."""
    path = Path(config.paths.state) if config.paths.state else default_state_path()
    return path / f"simulated-{node_name(config.simulation.preset)}" if config.simulation.preset else path


class StateDirectory:
    """Named records in one folder, each a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._saving = threading.Lock()

    def open(self) -> None:
        """Make the folder if needed and lock it for this process.

        Raises:
            StateError: it cannot be made or written, or another daemon uses it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._lock = open_regular(self.path / "lock", flags=os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.filename == str(self.path / "lock") and error.errno in _IN_THE_WAY:
                raise StateError(
                    f"state directory {self.path}: lock is no regular file, so that nobody can lock it; remove it"
                ) from error
            raise StateError(
                f"state directory {self.path}: {error.strerror}; make it writable or choose another with --path.state"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(
                f"state directory {self.path}: another commwatch daemon uses it; stop that one, "
                "or choose another directory with --path.state"
            ) from error
        self._sweep()

    def _sweep(self) -> None:
        """Remove what processes left that were killed while they wrote. A command may be writing right now."""
        for left in self.path.glob(UNFINISHED):
            with suppress(OSError):
                if time.time() - left.lstat().st_mtime > _WRITING_SECONDS:
                    left.unlink()

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self, name: str, kind: type[_Record]) -> _Record | None:
        """A record; None where there is none. A damaged file is set aside with a warning.

        Raises:
            StateError: there is one and it cannot be read.
        """
        file = self.path / f"{name}.json"
        try:
            return read_file(file, kind)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"state file {file}: {error.strerror}; make it readable for the daemon's user") from error
        except (ValueError, RecursionError) as error:  # msgspec's own errors, text that is not UTF-8, endless nesting
            self._set_aside(file, error)
            return None

    def restore(self, name: str, kind: type[_Record], use: Callable[[_Record | None], _Used]) -> _Used:
        """An object built from a record, or from None if there is no record.

        Whatever the record says, it never keeps the daemon from starting: if it is damaged, or cannot be used, the
        file is set aside with a warning.

        Args:
            use: builds something from the record, or from None; must change nothing else before it succeeds.

        Raises:
            StateError: there is a file and it cannot be read.
        """
        record = self.load(name, kind)
        if record is not None:
            try:
                return use(record)
            except Exception as error:
                self._set_aside(self.path / f"{name}.json", error)
        return use(None)

    def _set_aside(self, file: Path, error: Exception) -> None:
        import structlog  # only here: it takes a fifth of the start of a command

        log = structlog.get_logger("commwatch.state")
        aside = file.with_suffix(f".damaged-{int(time.time())}")
        try:
            file.rename(aside)
        except OSError as failure:
            log.warning("a state file is damaged, and stays where it is", file=str(file), error=str(error),
                        why=failure.strerror)  # fmt: skip
        else:
            log.warning("a state file is damaged and set aside", file=str(file), aside=str(aside), error=str(error))

    def save(self, name: str, record: msgspec.Struct) -> None:
        """As ``write``."""
        self.write(name, encode(record))

    def write(self, name: str, content: bytes) -> None:
        """Write an encoded record whole or not at all, unless the file has it already.

        Blocks, so the daemon calls it in a thread.

        Raises:
            OSError: it could not be written; the earlier record is still there.
        """
        file = self.path / f"{name}.json"
        with self._saving:
            if not _has(file, content):
                write_atomically(file, content)


def _has(file: Path, content: bytes) -> bool:
    try:
        return read_regular(file, len(content)) == content
    except OSError:  # it is gone, longer, or no file
        return False


def write_atomically(file: Path, content: bytes) -> None:
    """Replace a file by another content, so that a reader or a crash sees either the old one or the new one.

    A file that root writes belongs to the owner of the directory, whatever root's umask: the daemon must be able to
    read it. Whoever owns the folder above, as that of a simulated node, cannot have it written elsewhere.
    """
    folder = open_folder(file.parent)
    try:
        owner = None
        if os.geteuid() == 0:
            directory = os.fstat(folder)
            owner = (directory.st_uid, directory.st_gid)
        replace_file(Path(f"/proc/self/fd/{folder}", file.name), content, 0o640, owner=owner, durable=True)
    finally:
        os.close(folder)


def remove(file: Path) -> None:
    """Remove a file by the same careful way.

    Raises:
        OSError: it cannot be removed, or is not there.
    """
    folder = open_folder(file.parent)
    try:
        os.unlink(file.name, dir_fd=folder)
    finally:
        os.close(folder)
