"""One probe cycle at a time on a node, whoever starts it: a lock that lives as long as any rank does."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from commwatch.regular_file import open_folder, open_regular

LOCK_FILE = "probe.lock"
"""Its name in the state directory."""


class ProbeLock:
    """A lock on a file, shared with the rank processes by inheritance.

    It is flock(2)'s, which belongs to the open file: it goes when the last process that has the file open closes it or
    ends, and so is held by a rank that is stuck in the kernel or has outlived its daemon.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock without waiting; False if someone else has it. A state directory that is missing is made.

        Raises:
            OSError: the file cannot be opened or made.
        """
        if self._descriptor is not None:
            return False
        with suppress(OSError):  # what cannot be made cannot be opened below either
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        # To lock a file it need not be writable: a command of another user can see that a cycle runs.
        folder = open_folder(self._path.parent)
        try:
            place = f"/proc/self/fd/{folder}/{self._path.name}"
            descriptor = open_regular(place, flags=os.O_RDONLY | os.O_CREAT, mode=0o644)
        finally:
            os.close(folder)
        if not _lock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give up this process's share of the lock; ranks that still live keep it."""
        if self._descriptor is not None:
            # Not LOCK_UN: that would unlock the file for the ranks too.
            os.close(self._descriptor)
            self._descriptor = None

    def fileno(self) -> int:
        """The descriptor that rank processes inherit.

        Raises:
            ValueError: the lock is not held.
        """
        if self._descriptor is None:
            raise ValueError("the probe lock is not held")
        return self._descriptor


class RunLock(ProbeLock):
    """Held from the first cycle of a run to its end."""

    def acquire(self) -> bool:
        """Take the lock, or still have it."""
        return self._descriptor is not None or super().acquire()

    def release(self) -> None:
        """The next cycle of the run has it too."""

    def give_up(self) -> None:
        """The run has ended."""
        super().release()


def held_elsewhere(path: Path) -> bool:
    """Whether a cycle runs under the lock, or a rank of one still lives; False where no lock was ever taken.

    A cycle that starts at the moment of this check finds the lock taken and is skipped.

    Raises:
        OSError: the file is there, and cannot be opened.
    """
    with suppress(FileNotFoundError):
        descriptor = open_regular(path)
        try:
            return not _lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)
    return False


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
