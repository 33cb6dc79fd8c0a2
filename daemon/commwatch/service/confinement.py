"""The cores and the nice value of the daemon and its readers."""

from __future__ import annotations

import os

from commwatch.config.settings import Process
from commwatch.errors import UsageError
from commwatch.probes.cycle.numa import parse_cpus


def confine(settings: Process) -> None:
    """Stay on the cores that are given, and yield to others.

    Call before any thread or process is started: they inherit both.

    Raises:
        UsageError: none of the cores may be used.
    """
    if settings.cpus:
        allowed = os.sched_getaffinity(0)
        if not (cpus := parse_cpus(settings.cpus) & allowed):
            raise UsageError(
                f"process.cpus: none of {settings.cpus} is among the {len(allowed)} cores that the daemon may use"
            )
        os.sched_setaffinity(0, cpus)
    os.nice(settings.nice)
