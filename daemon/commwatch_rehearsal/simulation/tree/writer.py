"""Writes files and links beneath a folder, only what changed, so that open descriptors keep seeing the file."""

from __future__ import annotations

import os
from pathlib import Path


class TreeWriter:
    """Keeps the files of one tree; remembers what it wrote.

    A file that is there is written in place: whoever holds it open reads the new content, as with an attribute of the
    kernel. A new file appears whole. Content is one ``write``; where it gets shorter, a reader of just that moment may
    see the rest of the old text behind the new line, never a shorter number.

    Args:
        root: the folder; it is made where it is not there.
        only_missing: leave alone what is there: another process keeps it up to date.
    """

    def __init__(self, root: Path, only_missing: bool = False) -> None:
        self.root = root
        self._only_missing = only_missing
        self._written: dict[str, str] = {}
        self._folders: set[str] = set()

    def put(self, path: str, content: str, end: str = "\n") -> None:
        """Give a file this content.

        Args:
            path: relative to the root.
            content: text; each character is a byte (ISO 8859-1).
            end: what follows it in the file.
        """
        before = self._written.get(path)
        if before == content:
            return
        target = f"{self.root}/{path}"
        data = f"{content}{end}".encode("latin-1")
        if self._only_missing:
            if not os.path.lexists(target):
                self._create(target, data)
        else:
            self._overwrite(target, data, None if before is None else len(before) + len(end))
        self._written[path] = content

    def link(self, path: str, to: str) -> None:
        """Make a symbolic link to a folder of the tree, and the folder where it is not there."""
        if self._written.get(path) == to:
            return
        link, target = f"{self.root}/{path}", f"{self.root}/{to}"
        for folder in (target, os.path.dirname(link)):
            self._make_folder(folder)
        text = os.path.relpath(target, os.path.dirname(link))
        try:
            os.symlink(text, link)
        except FileExistsError:
            # From an earlier run, or another process of the same node was faster.
            if os.readlink(link) != text:
                raise
        self._written[path] = to

    def obstruct(self, path: str) -> None:
        """Put a folder in the place of a file: to open it and read fails, and who holds it open reads nothing."""
        if self._only_missing or self._written.get(path) == "\0":
            return
        target = f"{self.root}/{path}"
        if not os.path.isdir(target):
            if os.path.exists(target):
                os.truncate(target, 0)
                os.unlink(target)
            os.makedirs(target)
        self._written[path] = "\0"

    def remove(self, *paths: str) -> None:
        """Remove folders with all they hold, and links."""
        if self._only_missing:
            return
        import shutil  # with three libraries of compression; most nodes never lose a device

        for path in paths:
            target = f"{self.root}/{path}"
            if os.path.islink(target):
                os.unlink(target)
            else:
                shutil.rmtree(target, ignore_errors=True)
        beneath = tuple(f"{path}/" for path in paths)
        self._written = {
            path: content
            for path, content in self._written.items()
            if path not in paths and not path.startswith(beneath)
        }
        self._folders.clear()

    def unlink(self, path: str) -> None:
        if not self._only_missing:
            Path(f"{self.root}/{path}").unlink(missing_ok=True)
            self._written.pop(path, None)

    def _make_folder(self, folder: str) -> None:
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)

    def _overwrite(self, target: str, data: bytes, length_before: int | None) -> None:
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._create(target, data)
            return
        except IsADirectoryError:  # it was obstructed
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
        self._make_folder(os.path.dirname(target))
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
