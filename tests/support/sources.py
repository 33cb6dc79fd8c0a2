"""Sources as a worker makes and opens them: by their row, on trees that a test wrote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from commwatch.config.settings import Sources
from commwatch.sources.base import Origin, Source
from commwatch.workers.sources import SOURCES


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
