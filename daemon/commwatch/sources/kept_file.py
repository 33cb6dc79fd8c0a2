"""A small file that is read again and again through one descriptor."""

from __future__ import annotations

import errno
import os

_PAGE_BYTES = 4096
_GONE = frozenset({errno.ENODEV, errno.ESTALE})
"""The device behind the descriptor went away; another of the same name may have come."""


class KeptFiles:
    """How many descriptors may stay open; further files are opened for each reading."""

    def __init__(self, limit: int) -> None:
        self.free = limit


class KeptFile:
    """One attribute of sysfs. Opening costs more than reading, and sysfs makes the content again for each ``pread``.

    A file that was replaced by another of the same name, as in trees that are not the kernel's, is opened again.

    Args:
        path: of the file; it need not be there.
        kept: what other files share with this one.
    """

    __slots__ = ("_descriptor", "_kept", "path")

    def __init__(self, path: str, kept: KeptFiles) -> None:
        self.path = path
        self._kept = kept
        self._descriptor = -1

    def read(self) -> bytes:
        """The content.

        Raises:
            OSError: as the kernel gave it.
        """
        descriptor = self._descriptor
        if descriptor >= 0:
            try:
                if os.fstat(descriptor).st_nlink:
                    return os.pread(descriptor, _PAGE_BYTES, 0)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
            self.close()
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if self._kept.free <= 0:
            try:
                return os.pread(descriptor, _PAGE_BYTES, 0)
            finally:
                os.close(descriptor)
        self._descriptor = descriptor
        self._kept.free -= 1
        return os.pread(descriptor, _PAGE_BYTES, 0)

    def close(self) -> None:
        """Let go of the descriptor; the next reading opens the file again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._kept.free += 1
            os.close(descriptor)
