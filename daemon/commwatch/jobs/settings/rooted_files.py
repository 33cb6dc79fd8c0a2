"""Files below the root of another process: its symbolic links are followed within that root, never out of it."""

from __future__ import annotations

import errno
import os
import stat

_MOST_LINKS = 40
"""As many as the kernel follows."""
_MOST_PARTS = 512


def open_directory(path: str, at: int | None = None) -> int:
    """A descriptor that only names a directory, such as ``/proc/PID/root``.

    Raises:
        OSError: as the kernel gave it.
    """
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)


class RootedFiles:
    """The files that a process sees.

    Each part of a path is opened by itself and no link is left to the kernel, so that neither ``..`` nor a link that
    its owner changes meanwhile leads to files of others.

    Args:
        root: descriptor of its root directory; absolute paths and links begin there. Not closed here.
        start: of the directory where relative paths begin. Not closed here.
    """

    def __init__(self, root: int, start: int | None = None) -> None:
        self._root, self._start = root, start

    def exists(self, path: str) -> bool:
        """Whether there is anything of this name.

        Raises:
            OSError: it cannot be known.
        """
        try:
            os.close(self._resolve(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read(self, path: str, limit: int) -> bytes:
        """The content of a regular file, at most ``limit`` bytes.

        Raises:
            OSError: as the kernel gave it; ``EINVAL`` for what is no regular file, and is not opened.
        """
        found = self._resolve(path)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise OSError(errno.EINVAL, "no regular file", path)
            # The name of our own descriptor leads to the very file that was checked.
            opened = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        finally:
            os.close(found)
        with open(opened, "rb") as file:
            return file.read(limit)

    def identity(self, path: str) -> tuple[int, int]:
        """Numbers of the device of a file or directory, and of itself there.

        Raises:
            OSError: as the kernel gave it.
        """
        found = self._resolve(path)
        try:
            status = os.fstat(found)
        finally:
            os.close(found)
        return status.st_dev, status.st_ino

    def names(self, path: str) -> list[str]:
        """The names in a directory.

        Raises:
            OSError: as the kernel gave it.
        """
        found = self._resolve(path)
        try:
            return os.listdir(f"/proc/self/fd/{found}")
        finally:
            os.close(found)

    def _resolve(self, path: str) -> int:
        """A descriptor that only names what a path leads to."""
        above: list[int] = []
        """The directories on the way, the present one last; below them is the root or the start."""
        base = self._root if path.startswith("/") else self._start
        if base is None:
            raise FileNotFoundError(errno.ENOENT, "no working directory", path)
        left, links, parts = _parts(path), 0, 0
        try:
            while left:
                part, parts = left.pop(), parts + 1
                if parts > _MOST_PARTS:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
                if part == "..":
                    if above:
                        os.close(above.pop())
                    elif base != self._root:
                        raise PermissionError(errno.EACCES, "leads out of the working directory", path)
                    continue
                found = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above[-1] if above else base)
                above.append(found)
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    links += 1
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                    target = os.readlink("", dir_fd=found)
                    os.close(above.pop())
                    if target.startswith("/"):
                        _close(above)
                        base = self._root
                    left += _parts(target)
            return above.pop() if above else os.dup(base)
        finally:
            _close(above)


def _parts(path: str) -> list[str]:
    """The parts of a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
