"""Limits of the host that NCCL meets, as this command sees them: read at once, from the kernel's memory."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is asked for its size alone


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits of this process and its mounts: a job in a container, or of a scheduler, may have others."""

    locked_memory: float | None
    """Bytes that a process may pin; infinite where there is no limit; None where not read."""
    shared_memory: int | None
    """Size of ``/dev/shm`` in bytes; None where it is not mounted."""
    shared_memory_free: int | None
    """Bytes of it that are free."""


def read_host_limits() -> HostLimits:
    """Read them: ``ulimit -l`` and the size of ``/dev/shm``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        shared = os.statvfs(_SHARED_MEMORY) if os.path.ismount(_SHARED_MEMORY) else None
    except OSError:
        shared = None
    return HostLimits(
        locked_memory=float("inf") if soft == resource.RLIM_INFINITY else float(soft),
        shared_memory=None if shared is None else shared.f_blocks * shared.f_frsize,
        shared_memory_free=None if shared is None else shared.f_bavail * shared.f_frsize,
    )
