"""Reads /proc for a process: its state, its use of the machine, and the device files that it holds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

DEVICE_PREFIXES = ("/dev/nvidia", "/dev/infiniband/")
"""Device files that block a driver upgrade, a GPU reset or a MIG change while they are open."""

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """CPU time and memory of a process."""

    cpu_seconds: float
    resident_bytes: int


def parse_stat(text: str) -> tuple[str, float] | None:
    """State letter and CPU seconds of a /proc/PID/stat; None where the text makes no sense."""
    # The command name may hold spaces and parentheses: fields count from the last closing one.
    fields = text.rpartition(")")[2].split()
    try:
        return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    except (IndexError, ValueError):
        return None


def process_state(procfs: Path, pid: int) -> str | None:
    """State letter of a process (D: uninterruptible, Z: ended); None where there is no such process."""
    try:
        parsed = parse_stat((procfs / str(pid) / "stat").read_text(errors="replace"))
    except OSError:
        return None
    return None if parsed is None else parsed[0]


def uninterruptible(procfs: Path, pid: int) -> bool:
    """Whether a thread of the process sits in the kernel where no signal reaches it (state D)."""
    tasks = procfs / str(pid) / "task"
    with suppress(OSError):
        for task in tasks.iterdir():
            with suppress(OSError):  # the thread ended meanwhile
                parsed = parse_stat((task / "stat").read_text(errors="replace"))
                if parsed is not None and parsed[0] == "D":
                    return True
    return False


def process_use(procfs: Path, pid: int) -> ProcessUse | None:
    """CPU time and resident memory of a process; None where there is no such process."""
    try:
        parsed = parse_stat((procfs / str(pid) / "stat").read_text(errors="replace"))
        pages = int((procfs / str(pid) / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return None if parsed is None else ProcessUse(parsed[1], pages * _PAGE_BYTES)


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
