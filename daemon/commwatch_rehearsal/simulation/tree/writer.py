"""Writes files and links beneath a folder, only what changed, so that open descriptors keep seeing the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias


class Link(NamedTuple):
    """A symbolic link."""

    to: str
    """A folder of the same tree."""


Entry: TypeAlias = str | Link | None
"""The content of a file, each character a byte (ISO 8859-1); a link; None: a folder, which is not to be read."""
Tree: TypeAlias = Mapping[str, Entry]
"""By path from the root; the folders on the way to a file are there without an entry."""


class TreeWriter:
    """Keeps the files of one tree; remembers what it wrote.

    A file that is there is written in place: whoever holds it open reads the new content, as with an attribute of the
    kernel. A new file appears whole. Content is one ``write``; where it gets shorter, a reader of just that moment may
    see the rest of the old text behind the new line, never a shorter number.

    Args:
        root: the folder; it is made where it is not there.
        left: paths that an earlier process may have left; they go where the first tree lacks them.
    """

    def __init__(self, root: Path, left: Iterable[str] = ()) -> None:
        self.root = root
        self._left = set(left)
        self._written: Tree = {}

    def write(self, tree: Tree) -> None:
        """Make the entries of a tree, and take away those of the tree before it that it lacks."""
        before = self._written
        gone = (self._left | before.keys()) - tree.keys()
        for path in gone:
            self._remove(f"{self.root}/{path}")
        beneath = tuple(f"{path}/" for path in gone)
        for path, entry in tree.items():
            if path not in before or before[path] != entry or path.startswith(beneath):
                self._put(f"{self.root}/{path}", entry, before.get(path))
        self._left, self._written = set(), dict(tree)

    def write_missing(self, tree: Tree) -> None:
        """Make those entries of a tree that are not there: another process keeps the others up to date."""
        for path, entry in tree.items():
            target = f"{self.root}/{path}"
            if os.path.lexists(target):
                continue
            if isinstance(entry, Link):
                self._link(target, f"{self.root}/{entry.to}")
            elif entry is not None:
                self._create(target, entry.encode("latin-1"))
            else:
                with suppress(FileExistsError):  # another process was faster, and made a file
                    os.makedirs(target)

    def _put(self, target: str, entry: Entry, before: Entry) -> None:
        if isinstance(before, Link):
            self._remove(target)
        if isinstance(entry, Link):
            self._link(target, f"{self.root}/{entry.to}")
        elif entry is not None:
            self._overwrite(target, entry.encode("latin-1"), len(before) if isinstance(before, str) else None)
        elif not os.path.isdir(target):
            if os.path.exists(target):  # who holds the file open reads nothing from now on
                os.truncate(target, 0)
                os.unlink(target)
            os.makedirs(target, exist_ok=True)

    @staticmethod
    def _link(link: str, target: str) -> None:
        folder = os.path.dirname(link)
        os.makedirs(folder, exist_ok=True)
        text = os.path.relpath(target, folder)
        try:
            os.symlink(text, link)
        except FileExistsError:
            # From an earlier run, or another process of the same node was faster.
            if os.readlink(link) != text:
                raise

    @staticmethod
    def _remove(target: str) -> None:
        if os.path.isdir(target) and not os.path.islink(target):
            import shutil  # with three libraries of compression; most nodes never lose a device

            shutil.rmtree(target, ignore_errors=True)
        else:
            Path(target).unlink(missing_ok=True)

    def _overwrite(self, target: str, data: bytes, length_before: int | None) -> None:
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._create(target, data)
            return
        except IsADirectoryError:  # it was a folder
            os.rmdir(target)
            self._create(target, data)
            return
        try:
            os.pwrite(descriptor, data, 0)
            if length_before is None or length_before > len(data):
                os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    def _create(self, target: str, data: bytes) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        # Beside the tree, not in it, so that no reader meets it; the process id keeps writers apart.
        draft = f"{self.root}/.draft-{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        try:
            os.link(draft, target)
        except FileExistsError:
            pass  # another process of the same node was faster
        finally:
            os.unlink(draft)
