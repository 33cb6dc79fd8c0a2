"""What the kernel says of this process, by the names that exporters of all languages have."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

FAMILIES: Mapping[str, tuple[str, str]] = {
    "process_virtual_memory_bytes": ("gauge", "Virtual memory size in bytes."),
    "process_resident_memory_bytes": ("gauge", "Resident memory size in bytes."),
    "process_start_time_seconds": ("gauge", "Start time of the process since unix epoch in seconds."),
    "process_cpu_seconds_total": ("counter", "Total user and system CPU time spent in seconds."),
    "process_open_fds": ("gauge", "Number of open file descriptors."),
    "process_max_fds": ("gauge", "Maximum number of open file descriptors."),
}
"""Type and help by name, in the order of the page."""

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def own_use() -> dict[str, int | float]:
    """The values of now by name; what cannot be read is not there."""
    values: dict[str, int | float] = {}
    with suppress(OSError):
        # The command name may hold spaces and parentheses: fields count from the last closing one.
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        values["process_virtual_memory_bytes"] = float(fields[20])
        values["process_resident_memory_bytes"] = float(fields[21]) * _PAGE_BYTES
        values["process_start_time_seconds"] = float(fields[19]) / _TICKS_PER_SECOND + _boot_time()
        values["process_cpu_seconds_total"] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    with suppress(OSError):
        values["process_open_fds"] = len(os.listdir("/proc/self/fd"))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY:
        values["process_max_fds"] = float(limit)
    return values


@cache
def _boot_time() -> float:
    """Wall clock seconds since 1970."""
    lines = Path("/proc/stat").read_bytes().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(b"btime "))
