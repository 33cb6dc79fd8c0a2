"""State files as another hand leaves them behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def unsealed(content: bytes) -> dict[str, Any]:
    """What a state file says, without its check sum: as version 0.1.0 wrote it."""
    document = json.loads(content)
    document.pop("sha256", None)
    return dict(document)


def sealed(document: Any) -> bytes:
    """A document with the check sum that makes it what was written."""
    rest = json.dumps(document, indent=2).encode()[1:]
    return b'{"sha256": "%b",' % hashlib.sha256(rest).hexdigest().encode() + rest


def change(file: Path, old: str, new: str) -> None:
    """Change a state file by hand, as the documentation says: its check sum goes."""
    file.write_text(json.dumps(unsealed(file.read_bytes())).replace(old, new))


SPECIAL_FILES = ("pipe", "folder", "socket", "device", "link", "link to a device", "sparse")


@contextmanager
def special_file(file: Path, kind: str, target: Path | None = None) -> Iterator[None]:
    """Something that is no file of ours, in the place of one.

    Args:
        file: its place.
        kind: one of ``SPECIAL_FILES``.
        target: of the link.
    """
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            (file / "inside").mkdir(parents=True)
        elif kind == "socket":
            folder = os.open(file.parent, os.O_RDONLY)
            listening.bind(f"/proc/self/fd/{folder}/{file.name}")  # a path of a socket is short
            os.close(folder)
        elif kind == "device":
            os.mknod(file, 0o20666, os.makedev(1, 5))  # /dev/zero
        elif kind == "link":
            file.symlink_to(target or "/etc/passwd")
        elif kind == "link to a device":
            file.symlink_to("/dev/zero")
        else:
            with file.open("wb") as stream:
                stream.truncate(2**30)
        try:
            yield
        finally:
            shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
