"""The metrics as a file for node_exporter's textfile collector, for nodes where a port is unwanted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from commwatch_exporters.page_parts import join
from commwatch_exporters.prometheus import Format, family_parts
from commwatch_exporters.snapshot import Snapshot


def textfile_page(snapshot: Snapshot) -> bytes:
    """The page as text 0.0.4, without timestamps.

    ``process_*`` is not in it: node_exporter has these of itself, and a second one of that name and no other label is
    an error of its whole page.
    """
    return join(family_parts(snapshot, Format.TEXT))


def replace_file(file: Path, page: bytes) -> None:
    """Put a page in the place of a file, so that whoever reads sees the old one or the new one, both whole.

    Nothing is forced to the disk: after a power failure the next page comes soon enough.

    Raises:
        OSError: it could not be written; what was there still is.
    """
    # Beside it, since a name cannot change its file system; not ending as those that are read; one for each process.
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        # Others may write into this directory: no link there leads us to another file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o644), "wb") as stream:
            os.fchmod(stream.fileno(), 0o644)  # whatever the umask: node_exporter is another user
            stream.write(page)
        temporary.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
