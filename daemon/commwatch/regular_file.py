"""The one way to open a file that another user may write: a regular file, behind no link, that never makes us wait.

The same of a folder, and of a lock that another user may hold.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

_LOCK_PAUSE = 0.01


def open_regular(path: Path | str, *, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a regular file; closed when a program is started.

    A pipe, a device or a folder in its place is refused before anything is read, and opening never blocks.

    Args:
        path: of the file. The folders on the way to it may be links, the file itself may not.
        flags: further flags of open(2).

    Raises:
        OSError: it cannot be opened, or is no regular file (EINVAL), or is a link (ELOOP).
    """
    careful = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags | careful, mode)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_regular(path: Path | str, most_bytes: int) -> bytes:
    """The content of a regular file.

    Args:
        path: as for ``open_regular``.
        most_bytes: that it may have. No more is read, whatever size the file claims to have.

    Raises:
        OSError: as of ``open_regular``; EFBIG where it has more.
    """
    with open(open_regular(path), "rb") as file:
        # One that is as large as it says is not read at all.
        is_larger = os.fstat(file.fileno()).st_size > most_bytes
        content = b"" if is_larger else file.read(most_bytes + 1)
    if is_larger or len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def open_folder(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a folder, through no link that another user may have made.

    A link is followed only if it lies in a folder that root or this user alone can change: systemd makes such a one.

    Args:
        flags: further flags of open(2).

    Raises:
        OSError: it cannot be opened, or is no folder or such a link (ENOTDIR).
    """
    path = path.absolute()
    above = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(above)
        others = status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid())
        )
        is_ours = status.st_uid in (0, os.geteuid()) and not others
        careful = os.O_DIRECTORY | os.O_CLOEXEC | (0 if is_ours else os.O_NOFOLLOW)
        return os.open(path.name or "/", flags | careful, dir_fd=above)
    finally:
        os.close(above)


def lock_within(descriptor: int, seconds: float) -> None:
    """Keep others out by flock(2), until the descriptor is closed.

    Raises:
        BlockingIOError: another one holds the lock for longer than that.
    """
    give_up = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process keeps it locked") from None
            time.sleep(_LOCK_PAUSE)
