"""Replaces the contents of a file: whole, and never through a file that another user has prepared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of open(2) for a file that must not be there yet."""
UNFINISHED: Final = f".commwatch-{'[0-9a-f]' * 16}.new"
"""Pattern of the files that a killed writer leaves."""


@contextlib.contextmanager
def replacing(file: Path, mode: int, *, durable: bool) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of a file at the end; what was there stays if that fails.

    A link or a pipe in its place is replaced, and never followed or opened. Others may write into the directory.

    Args:
        mode: its permissions, less those that the umask takes.
        durable: whether it must outlive a power failure from then on.

    Raises:
        OSError: it could not be written.
    """
    # Beside it, since a name cannot change its file system; its end is none of those that are read. The name cannot be
    # foreseen and the file must be a new one: what is written and given away is always our own file.
    temporary = file.with_name(f".commwatch-{os.urandom(8).hex()}.new")
    try:
        with open(os.open(temporary, NEW_FILE, mode), "wb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_file(
    file: Path, content: bytes, mode: int, *, owner: tuple[int, int] | None = None, durable: bool = False
) -> None:  # fmt: skip
    """Put a content in the place of a file, so that whoever reads sees the old one or the new one, both whole.

    Args:
        mode: its permissions, whatever the umask.
        owner: user and group that it is given to; None: whoever runs this.
        durable: see ``replacing``.

    Raises:
        OSError: it could not be written; what was there still is.
    """
    with replacing(file, mode, durable=durable) as stream:
        os.fchmod(stream.fileno(), mode)
        if owner is not None:
            os.fchown(stream.fileno(), *owner)
        stream.write(content)
