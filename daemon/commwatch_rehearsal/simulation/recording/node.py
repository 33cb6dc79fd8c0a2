"""A recorded node: the answers of a recording, played beneath the unchanged readers."""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from functools import lru_cache
from pathlib import Path
from typing import Final, Generic, TypeVar

from commwatch.errors import ConfigError
from commwatch.sources import files
from commwatch_rehearsal.simulation.recording.file import Recording, read_recording
from commwatch_rehearsal.simulation.recording.lines import File, Folder, Root
from commwatch_rehearsal.simulation.tree.writer import TreeWriter

_T = TypeVar("_T")
_ABSENT: Final = frozenset({"ENOENT", "ENOTDIR", "ESRCH"})
"""Errors that a file has by not being there."""


class Track(Generic[_T]):
    """The answers to one question, by time; before the first one it holds already."""

    __slots__ = ("_answers", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._answers: list[_T] = []

    def add(self, at: float, answer: _T) -> None:
        """Add a later one."""
        self._times.append(at)
        self._answers.append(answer)

    def at(self, moment: float) -> _T:
        """The answer at a time."""
        return self._answers[max(0, bisect_right(self._times, moment) - 1)]

    @property
    def last(self) -> _T:
        """The latest one."""
        return self._answers[-1]


def tracks() -> defaultdict[Hashable, Track[_T]]:
    """Tracks by their question."""
    return defaultdict(Track)


@lru_cache(maxsize=1)
def _loaded(path: Path, _modified: int) -> Recording:
    return read_recording(path)


class RecordedNode:
    """A node as it was recorded; after the end of the recording it stays as it was last.

    Args:
        path: of the recording.
        faults_file: must be None: a fault is computed for a preset, and cannot change an answer that was recorded.
        started_at: when the recording begins to play, seconds since 1970.
        clock: the time now, seconds since 1970.
        loops: it begins again after its end, except for events and the lines of the kernel log.

    Raises:
        ConfigError: the recording cannot be used, or there is a file of faults.
    """

    def __init__(
        self,
        path: Path,
        faults_file: Path | None,
        started_at: float,
        clock: Callable[[], float] = time.time,
        loops: bool = False,
    ) -> None:
        if faults_file is not None:
            raise ConfigError(
                str(faults_file), None, "", "no fault can be injected into a recording; leave out --simulate.faults"
            )
        try:
            modified = path.stat().st_mtime_ns
        except OSError as error:
            raise ConfigError(str(path), None, "", error.strerror or str(error)) from None
        self.recording = _loaded(path, modified)
        self.started_at = started_at
        self._clock = clock
        self._loops = loops
        self._trees: dict[tuple[Root, Path, bool], _Tree] = {}

    @property
    def moment(self) -> float:
        """Where the recording is, seconds since it began."""
        return self.age % self.recording.seconds if self._loops else self.age

    @property
    def age(self) -> float:
        """Seconds since it began to play."""
        return max(0.0, self._clock() - self.started_at)

    def write_sysfs(self, root: Path, parts: Collection[str] = ()) -> None:
        """Bring the tree of ``/sys`` up to date; it has no parts."""
        self._tree("sys", root).write(self.moment)

    def write_procfs(self, root: Path, only_missing: bool = False) -> None:
        """Bring the tree of ``/proc`` up to date."""
        self._tree("proc", root, only_missing).write(self.moment)

    def _tree(self, name: Root, root: Path, only_missing: bool = False) -> _Tree:
        key = (name, root, only_missing)
        if key not in self._trees:
            self._trees[key] = _Tree(self.recording, name, root, only_missing)
        return self._trees[key]


class _Tree:
    """The files of one root, written as they are at a time; what fails to be read fails by a layer beneath the readers.

    A path of the recording was checked to have no link on its way, so that nothing is written outside of the root.
    """

    def __init__(self, recording: Recording, name: Root, root: Path, only_missing: bool) -> None:
        self._writer = TreeWriter(root, only_missing)
        self._root = root
        self._real = os.path.realpath(root)
        self._changes: list[tuple[float, File | Folder]] = []
        seen: set[str] = set()
        for one in recording.answers:
            if isinstance(one, File | Folder) and one.root == name:
                self._changes.append((one.at if one.path in seen else 0.0, one))
                seen.add(one.path)
        self._changes.sort(key=lambda one: one[0])
        self._next = 0
        self._entries: dict[str, dict[str, str]] = {}
        self._errors: dict[str, int] = {}
        """By path below the root."""
        self._known: set[str] = set()
        """Files that were read."""
        self._has_layer = False

    def write(self, moment: float) -> None:
        """Make everything that has changed up to a time."""
        if self._next and moment < self._changes[self._next - 1][0]:
            self._next = 0  # it has begun again
        latest: dict[str, File | Folder] = {}
        while self._next < len(self._changes) and self._changes[self._next][0] <= moment:
            one = self._changes[self._next][1]
            latest[one.path] = one
            self._next += 1
        os.makedirs(self._root, exist_ok=True)
        for path, one in sorted(latest.items()):
            if isinstance(one, Folder):
                self._put_folder(path, one.entries)
                self._put_names(path, one.files)
        for path, one in latest.items():
            if isinstance(one, File):
                self._put_file(path, one)
        if self._errors and not self._has_layer:
            self._has_layer = True
            files.put_beneath(self._layer)

    def _put_folder(self, path: str, entries: dict[str, str] | None) -> None:
        before = self._entries.get(path, {})
        now = self._entries[path] = entries or {}
        below = f"{path}/" if path else ""
        self._writer.remove(*(f"{below}{name}" for name, to in before.items() if now.get(name) != to))
        if entries is None:
            self._writer.remove(path)
            return
        os.makedirs(self._root / path, exist_ok=True)
        for name, to in now.items():
            if to:
                self._writer.link(f"{below}{name}", to)
            else:
                os.makedirs(self._root / below / name, exist_ok=True)

    def _put_names(self, path: str, names: tuple[str, ...]) -> None:
        """Files that are there and were not read: what they hold is not known."""
        for name in names:
            file = f"{path}/{name}" if path else name
            if file not in self._known:
                self._writer.put(file, "", end="")
                self._errors[file] = errno.ENODATA

    def _put_file(self, path: str, one: File) -> None:
        self._errors.pop(path, None)
        self._known.add(path)
        if one.error in _ABSENT:
            self._writer.unlink(path)
            return
        self._writer.put(path, one.content, end="")
        if one.error:
            self._errors[path] = getattr(errno, one.error, errno.EIO)

    def _layer(self, below: files.Reading) -> files.Reading:
        real, errors = f"{self._real}/", self._errors

        def read(path: str, most_bytes: int) -> bytes:
            if errors:
                folder, _, name = path.rpartition("/")
                place = f"{os.path.realpath(folder)}/{name}"
                if place.startswith(real) and (number := errors.get(place[len(real) :])) is not None:
                    raise OSError(number, os.strerror(number), path)
            return below(path, most_bytes)

        return read
