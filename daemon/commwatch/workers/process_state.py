"""Reads /proc for a process: its state, and the device files that it holds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

DEVICE_PREFIXES = ("/dev/nvidia", "/dev/infiniband/")
"""Device files that block a driver upgrade, a GPU reset or a MIG change while they are open."""


def _state_in(stat: Path) -> str | None:
    """State letter of a process or thread; None where it is gone, or the text makes no sense."""
    with suppress(OSError):
        # The command name may hold spaces and parentheses: fields count from the last closing one.
        return next(iter(stat.read_text(errors="replace").rpartition(")")[2].split()), None)
    return None


def process_state(procfs: Path, pid: int) -> str | None:
    """State letter of a process (D: uninterruptible, Z: ended); None where there is no such process."""
    return _state_in(procfs / str(pid) / "stat")


def uninterruptible(procfs: Path, pid: int) -> bool:
    """Whether a thread of the process sits in the kernel where no signal reaches it (state D)."""
    with suppress(OSError):
        return any(_state_in(task / "stat") == "D" for task in (procfs / str(pid) / "task").iterdir())
    return False


def held_devices(procfs: Path, pids: Iterable[int]) -> dict[int, list[str]]:
    """Device files that processes have open, by process; a process that cannot be inspected is left out."""
    held: dict[int, list[str]] = {}
    for pid in pids:
        paths = set()
        try:
            for descriptor in os.listdir(procfs / str(pid) / "fd"):
                try:
                    target = os.readlink(procfs / str(pid) / "fd" / descriptor)
                except OSError:  # closed meanwhile
                    continue
                if target.startswith(DEVICE_PREFIXES):
                    paths.add(target)
        except OSError:  # ended meanwhile, or not ours
            continue
        if paths:
            held[pid] = sorted(paths)
    return held
