"""The private folder of a cycle, and what is left of those whose owner was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from commwatch.caller import temporary_folder
from commwatch.probes.cycle.guard import FOLDER_PREFIX

_YOUNG_SECONDS = 60.0
"""A folder may be this old and not locked yet."""


class PrivateFolder:
    """A folder that only this user can open; locked while the process that made it lives.

    It has its name before it exists, so that a rank whose guard removes it can be there first.
    """

    def __init__(self, parent: Path | None) -> None:
        """Choose the name.

        Args:
            parent: where; by default ``temporary_folder``.

        Raises:
            OSError: the system has no such folder.
        """
        self.path = Path(parent or temporary_folder()) / f"{FOLDER_PREFIX}{os.urandom(8).hex()}"
        self._descriptor: int | None = None

    def make(self) -> None:
        """Make it, and remove unlocked ones in the same place.

        Raises:
            OSError: it cannot be made.
        """
        self.path.mkdir(mode=0o700)
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            self.path.rmdir()  # which needs no descriptor
            raise
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_abandoned(self.path.parent)

    def remove(self) -> None:
        """Remove it with all that is in it, if it was made; blocks."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # gone meanwhile, held, or another user's
            status = path.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _YOUNG_SECONDS:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
