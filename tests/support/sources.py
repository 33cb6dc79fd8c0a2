"""Sources as a worker makes and opens them: by their row, on trees that a test wrote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from commwatch.config.settings import Sources
from commwatch.sources.base import Origin, Source
from commwatch.workers.sources import SOURCES
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.plug import stand_in


def source_of(
    name: str,
    sysfs: Path,
    procfs: Path = Path("/nonexistent"),
    *,
    settings: Sources | None = None,
    opt_in: Iterable[str] = (),
    resume: bytes = b"",
    stand_in: Callable[[], Any] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    report: Callable[[str], None] = lambda device: None,
    leave_out: Iterable[str] = (),
    only: Iterable[str] | None = None,
) -> Source:
    """A source that is open; the arguments are those of ``Origin`` and of ``Source.open``."""
    source = SOURCES[name].make(
        Origin(sysfs, procfs, settings or Sources(), frozenset(opt_in), resume, stand_in, monotonic=monotonic)
    )
    source.open(report, frozenset(leave_out), None if only is None else frozenset(only))
    return source


def why_absent(name: str, sysfs: Path, procfs: Path, settings: Sources | None = None) -> str:
    """Why there is nothing to read on this node; empty where there is."""
    return SOURCES[name].why_absent(Origin(sysfs, procfs, settings or Sources())) or ""


def stand_in_of(name: str, node: SimulatedNode, *clock: Callable[[], float]) -> Any:
    """Stand-ins of the kernel on a simulated node; by a clock of the test where it has one."""
    make = stand_in(name, node)
    assert make is not None
    return make(*clock)
