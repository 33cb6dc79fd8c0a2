"""Log files by their configured names: files, folders, patterns, and names as NCCL writes them."""

from __future__ import annotations

import errno
import glob
import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from commwatch.sources import files

MOST_NAMES = 4096
"""Names that the daemon reads of one folder or pattern, at most."""
ANY_HOST = "*"
_PACKED = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".zip")
"""Endings of files that rotation has packed: what they hold was read before."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A regular file."""

    path: str
    identity: str
    """Device and number of the file, which stay when it is renamed."""
    changed: float
    """When it was written last, seconds since 1970."""
    size: int
    """Bytes."""
    owner: int
    """Id of the user."""
    name: str
    """The configured name that leads to it."""


def short_host(name: str) -> str:
    """A host name as NCCL writes it: up to the first dot."""
    return name.partition(".")[0].lower()


def pattern_of(name: str, host: str) -> str:
    """A shell pattern for a name as ``NCCL_DEBUG_FILE`` takes it.

    Args:
        name: with ``%h`` for the host, ``%p`` for any process and ``%%`` for ``%``; shell patterns remain.
        host: of this node, see ``short_host``; or ``ANY_HOST``.
    """
    named = host if host == ANY_HOST else glob.escape(host)
    return "%".join(part.replace("%h", named).replace("%p", "[0-9]*") for part in name.split("%%"))


def name_of(name: str, host: str, pid: int) -> str:
    """The path that NCCL makes of a name in ``NCCL_DEBUG_FILE``.

    Args:
        host: of the process, up to the first dot.
        pid: of the process in its own namespace.
    """
    return "%".join(part.replace("%h", host).replace("%p", str(pid)) for part in name.split("%%"))


def find_logs(name: str, host: str, most_names: int = MOST_NAMES) -> tuple[list[LogFile], OSError | None]:
    """The regular files that a configured name stands for now, each once.

    Args:
        name: absolute path of a file or a folder, or a pattern; see ``pattern_of``.
        host: of this node, or ``ANY_HOST``.
        most_names: that are read of a folder, or of the pattern.

    Returns:
        The files, and the error of a path that cannot be read, or has more names; a missing file is no error.
    """
    found: dict[str, LogFile] = {}
    paths = list(itertools.islice(_names(pattern_of(name, host)), most_names + 1))
    failed = _too_many(name, most_names) if len(paths) > most_names else None
    for path in paths[:most_names]:
        try:
            if os.path.isdir(path):
                with os.scandir(path) as listed:
                    inside = list(itertools.islice(listed, most_names + 1))
                if len(inside) > most_names:
                    failed = failed or _too_many(path, most_names)
                names = sorted(one.path for one in inside[:most_names] if not one.name.startswith("."))
            else:
                names = [path]
        except OSError as error:
            failed = failed or error
            continue
        for each in names:
            if each.endswith(_PACKED):
                continue
            try:
                one = stat_log(each, name)
            except OSError as error:
                if files.reason_of(error) != "not_found":
                    failed = failed or error
                continue
            if one is not None:
                found.setdefault(one.identity, one)
    return list(found.values()), failed


def _too_many(path: str, most_names: int) -> OSError:
    return OSError(errno.E2BIG, f"more than {most_names:,} names, of which not all are read; move old ones away", path)


def stat_log(path: str, name: str) -> LogFile | None:
    """A regular file, or one that a link leads to; None for anything else.

    Args:
        name: the configured name that leads to it.

    Raises:
        OSError: as the kernel gave it.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        return None
    return LogFile(path, identity_of(found.st_dev, found.st_ino), found.st_mtime, found.st_size, found.st_uid, name)


def identity_of(device: int, number: int) -> str:
    """The identity of a file while it exists.

    Args:
        device: its number.
        number: of the file there.
    """
    return f"{device:x}:{number:x}"


def _names(pattern: str) -> Iterator[str]:
    if glob.has_magic(pattern):
        return glob.iglob(pattern)
    return iter((pattern,))
