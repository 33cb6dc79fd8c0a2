"""A recorded node: the answers of a recording, played beneath the unchanged readers."""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from commwatch.errors import ConfigError
from commwatch.sources import files
from commwatch_rehearsal.simulation.recording.file import Recording, read_recording
from commwatch_rehearsal.simulation.recording.lines import File, Folder, Root
from commwatch_rehearsal.simulation.tree.writer import Entry, Link, TreeWriter

if TYPE_CHECKING:
    from commwatch_rehearsal.simulation.recording.faulty_parts import FaultyParts

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
        self._times.append(at)
        self._answers.append(answer)

    def at(self, moment: float) -> _T:
        return self._answers[max(0, bisect_right(self._times, moment) - 1)]


def tracks() -> defaultdict[Hashable, Track[_T]]:
    """Tracks by their question."""
    return defaultdict(Track)


@lru_cache(maxsize=1)
def _loaded(path: Path, _modified: int) -> Recording:
    return read_recording(path)


def load(path: Path) -> Recording:
    """The recording of a file; kept until another one is asked for.

    Raises:
        ConfigError: it cannot be used.
    """
    try:
        modified = path.stat().st_mtime_ns
    except OSError as error:
        raise ConfigError(str(path), None, "", error.strerror or str(error)) from None
    return _loaded(path, modified)


class RecordedNode:
    """A node as it was recorded; after the end of the recording it stays as it was last.

    Args:
        faults_file: file of the faults that are laid on the recorded answers; None: none.
        started_at: when the recording begins to play, seconds since 1970.
        clock: the time now, seconds since 1970.
        loops: it begins again after its end, except for events and the lines of the kernel log.

    Raises:
        ConfigError: the recording or the faults cannot be used.
    """

    def __init__(
        self,
        path: Path,
        faults_file: Path | None,
        started_at: float,
        clock: Callable[[], float] = time.time,
        loops: bool = False,
    ) -> None:
        self.recording = load(path)
        self.started_at = started_at
        self._clock = clock
        self._loops = loops
        self._trees: dict[tuple[Root, Path, bool], _Tree] = {}
        self.faults: FaultyParts | None = None
        """Computes the answers that faults change; None without a file of faults."""
        if faults_file is not None:
            from commwatch_rehearsal.simulation.recording.faulty_parts import FaultyParts

            self.faults = FaultyParts(path, self.recording, faults_file, started_at, clock)

    @property
    def moment(self) -> float:
        """Where the recording is, seconds since it began."""
        return self.moment_at(self.age)

    def moment_at(self, age: float) -> float:
        """Where the recording is at an age."""
        return age % self.recording.seconds if self._loops else age

    @property
    def age(self) -> float:
        """Seconds since it began to play."""
        return max(0.0, self._clock() - self.started_at)

    def write_sysfs(self, root: Path, parts: Collection[str] = ()) -> None:
        """Bring the tree of ``/sys`` up to date; it has no parts."""
        self._tree("sys", root).write()

    def write_procfs(self, root: Path, only_missing: bool = False) -> None:
        """Bring the tree of ``/proc`` up to date."""
        self._tree("proc", root, only_missing).write()

    def close(self) -> None:
        """Let the readers of this process read as without this node."""
        for tree in self._trees.values():
            tree.close()

    def _tree(self, name: Root, root: Path, only_missing: bool = False) -> _Tree:
        key = (name, root, only_missing)
        if key not in self._trees:
            self._trees[key] = _Tree(self, name, root, only_missing)
        return self._trees[key]


class _Tree:
    """The files of one root, written as they are at a time; what fails to be read fails by a layer beneath the readers.

    A path of the recording was checked to have no link on its way, so that nothing is written outside of the root.
    """

    def __init__(self, node: RecordedNode, name: Root, root: Path, only_missing: bool) -> None:
        self._node = node
        self._writer = TreeWriter(root)
        self._only_missing = only_missing
        self._root = root
        self._real = os.path.realpath(root)
        self._changes: list[tuple[float, File | Folder]] = []
        seen: set[str] = set()
        contents: defaultdict[Hashable, Track[File]] = tracks()
        for one in node.recording.answers:
            if isinstance(one, File | Folder) and one.root == name:
                self._changes.append((one.at if one.path in seen else 0.0, one))
                seen.add(one.path)
                if isinstance(one, File):
                    contents[one.path].add(one.at, one)
        self._changes.sort(key=lambda one: one[0])
        self._next = 0
        self._entries: dict[str, Mapping[str, str]] = {}
        """The last answer of each folder."""
        self._folders: dict[str, Entry] = {}
        """Folders and links, without faults."""
        self._files: dict[str, File] = {}
        """The last answer of each file, without faults."""
        self._errors: dict[str, int] = {}
        """By path below the root."""
        self._remove_layer: Callable[[], None] | None = None
        self._faults = None if node.faults is None else node.faults.files(node, name, contents)

    def write(self) -> None:
        """Make everything as it is now."""
        moment = self._node.moment
        if self._next and moment < self._changes[self._next - 1][0]:
            self._next = 0  # it has begun again
        while self._next < len(self._changes) and self._changes[self._next][0] <= moment:
            one = self._changes[self._next][1]
            if isinstance(one, File):
                self._files[one.path] = one
            else:
                self._take(one)
            self._next += 1
        folders, answers = self._folders, self._files
        if self._faults is not None:
            folders, answers = self._faults.laid_on(folders, answers)
        there = {path: one for path, one in answers.items() if one.error not in _ABSENT}
        self._errors = {path: getattr(errno, one.error, errno.EIO) for path, one in there.items() if one.error}
        os.makedirs(self._root, exist_ok=True)
        tree = {**folders, **{path: one.content for path, one in there.items()}}
        if self._only_missing:
            self._writer.write_missing(tree)
        else:
            self._writer.write(tree)
        if self._errors and self._remove_layer is None:
            self._remove_layer = files.put_beneath(self._layer)

    def close(self) -> None:
        """Take the layer away from beneath the readers."""
        if self._remove_layer is not None:
            self._remove_layer()
            self._remove_layer = None

    def _take(self, one: Folder) -> None:
        """The folders, links and files of a folder as they are from now on."""
        below = f"{one.path}/" if one.path else ""
        before, now = self._entries.get(one.path, {}), one.entries or {}
        self._entries[one.path] = now
        for name, to in before.items():
            if now.get(name) != to:
                self._drop(f"{below}{name}")
        if one.entries is None:
            self._drop(one.path)
            return
        if one.path:
            self._folders[one.path] = None
        for name, to in now.items():
            self._folders[f"{below}{name}"] = Link(to) if to else None
            if to:
                self._folders.setdefault(to, None)
        for name in one.files:
            # It is there and was not read: what it holds is not known.
            unread = File(one.at, root=one.root, path=f"{below}{name}", error="ENODATA")
            self._files.setdefault(unread.path, unread)

    def _drop(self, path: str) -> None:
        """Forget a folder or a link, and what is beneath."""
        for known in (self._folders, self._files):
            for one in [one for one in known if one == path or one.startswith(f"{path}/")]:
                del known[one]

    def _layer(self, below: files.Reading) -> files.Reading:
        real = f"{self._real}/"

        def read(path: str, most_bytes: int) -> bytes:
            if self._errors:
                folder, _, name = path.rpartition("/")
                place = f"{os.path.realpath(folder)}/{name}"
                if place.startswith(real) and (number := self._errors.get(place[len(real) :])) is not None:
                    raise OSError(number, os.strerror(number), path)
            return below(path, most_bytes)

        return read
