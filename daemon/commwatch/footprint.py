"""Keeps the processes small and quiet: objects that no collection visits, one heap, timers that may be late."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

_LATE_NANOSECONDS = 5_000_000
_M_ARENA_MAX = -8
"""Of glibc's malloc.h."""


def spare_the_garbage_collector() -> None:
    """Leave all objects that exist now out of every later collection.

    Call before anything is made that may be replaced: these objects are never freed. A collection writes to each object
    that it visits, and so copies pages that are shared with processes that were forked.
    """
    gc.collect()
    gc.freeze()


def share_one_heap() -> None:
    """Let all threads allocate from one heap; glibc gives each new thread one that keeps up to some MiB for ever.

    A thread more is started whenever all others are busy, so the daemon would grow by a heap at such moments.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # musl has none, and one heap
        mallopt(_M_ARENA_MAX, 1)


def name_process(name: str) -> None:
    """Name this process for ``ps -e`` and ``top``, which show 15 characters."""
    with suppress(OSError):  # a kernel that names none
        Path("/proc/self/comm").write_text(name[:15], encoding="utf-8")


def allow_late_timers() -> None:
    """Let the kernel wake this process a little late, together with others. Inherited: not for the parent of ranks."""
    with suppress(OSError):  # a kernel that has no such file
        Path("/proc/self/timerslack_ns").write_text(str(_LATE_NANOSECONDS), encoding="ascii")
