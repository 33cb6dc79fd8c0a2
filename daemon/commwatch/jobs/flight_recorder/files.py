"""The files that may be Flight Recorder dumps, and the ranks in their names."""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from commwatch.jobs.flight_recorder.dump import MOST_BYTES

MOST_FILES: Final = 4096
"""Of one user the files that were written last; older ones are left out, and no other user's are."""
MOST_NAMES: Final = 65_536
"""Names of a folder or a pattern that are looked at."""
_RANK: Final = re.compile(r"rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_LAST_NUMBER: Final = re.compile(r"(?<!\d)(\d{1,6})(?:\.(?:json|pickle|pkl|bin))?\Z")


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A regular file."""

    path: str
    owner: int
    """Id of the user."""
    written: float
    """Seconds since 1970."""
    size: int
    """Bytes."""
    stamp: tuple[int, int, int]
    """Number of the file, time of its last change in ns, and size: a rewritten file has another one."""
    folder: tuple[int, int] | None = None
    """Numbers of the device of its folder, and of that itself there."""

    @property
    def series(self) -> str:
        """See ``series_of``; empty where the folder is not known."""
        return "" if self.folder is None else series_of(self.folder, os.path.basename(self.path))


def rank_of(path: str) -> int | None:
    """The rank in the name of a dump: ``nccl_trace_rank_3``, ``trace_3.json``; None where there is none."""
    found = _rank_in(os.path.basename(path))
    return int(found[1]) if found else None


@lru_cache(maxsize=2 * MOST_FILES)
def series_of(folder: tuple[int, int], name: str) -> str:
    """A digest of where a dump lies and of its name without the rank: torch appends the rank alone, so that it is the
    same for all dumps of a job, and differs between jobs that do not overwrite each other's.

    Args:
        folder: numbers of its device and of itself there: a container may see it at another path.
    """
    if (found := _rank_in(name)) is not None:
        name = f"{name[: found.start(1)]}\0{name[found.end(1) :]}"
    return hashlib.sha256(os.fsencode(f"{folder[0]}:{folder[1]}/{name}")).hexdigest()[:32]


def _rank_in(name: str) -> re.Match[str] | None:
    found = list(_RANK.finditer(name))
    return found[-1] if found else _LAST_NUMBER.search(name)


def find_files(names: Iterable[str]) -> tuple[list[DumpFile], list[str]]:
    """The files of one job that may be dumps, as ``find_all`` finds them: those of the user who owns most.

    Raises:
        OSError: see ``find_all``.
    """
    files, notes = find_all(names)
    kept, others = _of_one_owner(files)
    return kept, notes + others


def find_all(names: Iterable[str]) -> tuple[list[DumpFile], list[str]]:
    """The files that may be dumps, the last written first, and what was left out and why, as sentences.

    A link, a pipe or a device is no dump: whoever may write to the folder may have put it there.

    Args:
        names: of files and folders, and shell patterns.

    Raises:
        OSError: a name cannot be read; ``FileNotFoundError`` where it matches nothing.
    """
    found: dict[str, DumpFile] = {}
    folders: dict[str, tuple[int, int]] = {}
    notes: list[str] = []
    for name in map(os.path.abspath, names):
        for path in sorted(itertools.islice(glob.iglob(name), MOST_NAMES)) if glob.has_magic(name) else (name,):
            if os.path.isdir(path):
                with os.scandir(path) as listed:
                    for inside in itertools.islice(listed, MOST_NAMES):
                        if not inside.name.startswith(".") and rank_of(inside.name) is not None:
                            with suppress(FileNotFoundError):  # gone since the folder was listed
                                _take(inside.path, found, folders, notes)
            else:
                _take(path, found, folders, notes)
    kept: list[DumpFile] = []
    numbers: Counter[int] = Counter()
    for one in sorted(found.values(), key=lambda one: (-one.written, one.path)):
        numbers[one.owner] += 1
        if numbers[one.owner] <= MOST_FILES:
            kept.append(one)
    if left := len(found) - len(kept):
        notes.append(f"{left:,} older files are left out: {MOST_FILES:,} of a user are read at most.")
    return kept, notes


def _take(
    path: str, found: dict[str, DumpFile], folders: dict[str, tuple[int, int]], notes: list[str]
) -> None:  # fmt: skip
    folder = os.path.dirname(path)
    try:
        status = os.lstat(path)
        if folder not in folders:
            there = os.stat(folder)
            folders[folder] = there.st_dev, there.st_ino
    except FileNotFoundError:
        if not found:
            raise
        return  # gone since the folder was listed
    if not stat.S_ISREG(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "no regular file"
        notes.append(f"{path} is left out: it is {kind}.")
    elif status.st_size > MOST_BYTES:
        notes.append(f"{path} is left out: it has {status.st_size:,} bytes, more than {MOST_BYTES:,}.")
    else:
        found[path] = file_of(path, status, folders[folder])


def file_of(path: str, status: os.stat_result, folder: tuple[int, int] | None = None) -> DumpFile:
    """A file by its status."""
    stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
    return DumpFile(path, status.st_uid, status.st_mtime, status.st_size, stamp, folder)


def _of_one_owner(files: Sequence[DumpFile]) -> tuple[list[DumpFile], list[str]]:
    """The files of the user who owns most: a job has one, and another user may plant a dump in a folder of all."""
    owners = Counter(one.owner for one in files).most_common(2)
    if len(owners) < 2:
        return list(files), []
    (owner, number), (_, next_number) = owners
    if number == next_number:
        return [], [f"Users {owners[0][0]} and {owners[1][0]} own {number} files each: name the files of one job."]
    left = [one for one in files if one.owner != owner]
    shown = ", ".join(one.path for one in left[:4]) + (" and more" if len(left) > 4 else "")
    return [one for one in files if one.owner == owner], [
        f"{shown} left out: user {owner} owns the other files, and another user these."
    ]
