"""Output files of a diagnosis: checked before any long scan, written whole or not at all."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from commwatch.errors import CommwatchError, ExitCode
from commwatch.state.replace import replacing


class BadOutput(CommwatchError):
    """A file that cannot be written as it was named."""

    exit_code = ExitCode.WRONG_USE


def check_output(option: str, file: Path, endings: tuple[str, ...]) -> None:
    """Say beforehand what speaks against a file.

    A file of that name is replaced, as one expects of a file that one names; the ending guards against a slip.

    Args:
        option: that named it, for the message.
        endings: of names that are right.

    Raises:
        BadOutput: it cannot be written.
    """
    name, folder = f"{option} {file}", file.absolute().parent
    if not file.name.endswith(endings):
        raise BadOutput(f"{name}: expected a name that ends in {' or '.join(endings)}")
    if not folder.is_dir():
        raise BadOutput(f"{name}: there is no folder {folder}")
    try:
        tempfile.TemporaryFile(dir=folder).close()  # only a write finds a full or read-only file system
    except OSError as error:
        raise BadOutput(f"{name}: the folder {folder} cannot be written: {error.strerror}") from error
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadOutput(f"{name}: {error.strerror}") from error
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise BadOutput(f"{name}: is {'a folder' if stat.S_ISDIR(mode) else 'no regular file'}; choose another name")


@contextmanager
def new_file(option: str, file: Path, mode: int) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of a file at the end; what was there stays if that fails.

    Args:
        mode: its permissions, less those that the umask takes.

    Raises:
        BadOutput: it cannot be written.
    """
    try:
        with replacing(file.absolute(), mode, durable=True) as stream:
            yield stream
    except OSError as error:
        raise BadOutput(f"{option} {file}: {error.strerror}") from error
