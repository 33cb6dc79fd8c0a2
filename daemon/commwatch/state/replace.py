"""Replaces the contents of a file: whole, and never through a file that another user has prepared."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(
    file: Path, content: bytes, mode: int, *, owner: tuple[int, int] | None = None, durable: bool = False
) -> None:  # fmt: skip
    """Put a content in the place of a file, so that whoever reads sees the old one or the new one, both whole.

    A link or a pipe in its place is replaced, and never followed or opened. Others may write into the directory.

    Args:
        file: that is replaced, or made.
        mode: its permissions, whatever the umask.
        owner: user and group that it is given to; None: whoever runs this.
        durable: whether it must outlive a power failure from now on.

    Raises:
        OSError: it could not be written; what was there still is.
    """
    # Beside it, since a name cannot change its file system; its end is none of those that are read. The name cannot be
    # foreseen and the file must be a new one: what is written and given away is always our own file.
    temporary = file.with_name(f".{file.name}.{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode)
    try:
        with open(descriptor, "wb") as stream:
            os.fchmod(descriptor, mode)
            if owner is not None:
                os.fchown(descriptor, *owner)
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(descriptor)
        temporary.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
