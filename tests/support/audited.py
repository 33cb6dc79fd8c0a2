"""What this process does to files, programs, sockets and pickles, by the audit events of the interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Event = tuple[str, tuple[Any, ...]]
_WATCHED = (
    "open", "os.", "shutil.", "socket.", "subprocess.", "pickle.", "ctypes.dlopen",
)  # fmt: skip
_heard: list[list[Event]] = []
"""Of those who listen now."""
_hooked: list[bool] = []


def _hook(name: str, arguments: tuple[Any, ...]) -> None:
    if _heard and name.startswith(_WATCHED):
        for one in _heard:
            one.append((name, arguments))


@contextmanager
def audited() -> Iterator[list[Event]]:
    """The events while it lasts. A hook cannot be taken away: it stays, and does nothing afterwards."""
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    events: list[Event] = []
    _heard.append(events)
    try:
        yield events
    finally:
        _heard.remove(events)


def changes(event: Event) -> bool:
    """Whether an event may change a file."""
    name, arguments = event
    if name == "open":
        mode, flags = arguments[1], arguments[2]
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)) or bool(
            isinstance(mode, str) and set(mode) & set("wax+")
        )
    kinds = ("chmod", "chown", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate", "utime", "setxattr")
    return name.startswith(("os.", "shutil.")) and name.partition(".")[2] in kinds
