"""Keeps the processes small and quiet: objects that no collection visits, timers that may be late."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

_LATE_NANOSECONDS = 5_000_000


def spare_the_garbage_collector() -> None:
    """Leave all objects that exist now out of every later collection.

    Call before anything is made that may be replaced: these objects are never freed. A collection writes to each object
    that it visits, and so copies pages that are shared with processes that were forked.
    """
    gc.collect()
    gc.freeze()


def name_process(name: str) -> None:
    """Name this process for ``ps -e`` and ``top``, which show 15 characters."""
    with suppress(OSError):  # a kernel that names none
        Path("/proc/self/comm").write_text(name[:15], encoding="utf-8")


def allow_late_timers() -> None:
    """Let the kernel wake this process a little late, together with others. Inherited: not for the parent of ranks."""
    with suppress(OSError):  # a kernel that has no such file
        Path("/proc/self/timerslack_ns").write_text(str(_LATE_NANOSECONDS), encoding="ascii")
