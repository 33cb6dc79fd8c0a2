"""Sources as a worker makes and opens them: by their row, on trees that a test wrote."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from commwatch.config.settings import Sources
from commwatch.readings import Batch, DeviceReadings
from commwatch.sources.base import Origin, Source
from commwatch.workers.sources import SOURCES
from commwatch_exporters.snapshot import Value
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.plug import stand_in

_made: list[Source] = []


def close_sources() -> None:
    """Close all that were made since."""
    while _made:
        _made.pop().close()


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
    _made.append(source)
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


def reading_of(batch: Batch, device: str) -> DeviceReadings:
    """The readings of one device; those of the source as a whole are of ""."""
    return next(reading for reading in batch.readings if reading.device == device)


def devices(batch: Batch) -> list[str]:
    """Devices with readings."""
    return [reading.device for reading in batch.readings if reading.device]


def states(batch: Batch) -> dict[str, Value]:
    """The state of each counter by its name: 0 where any device has it, 1 where none has."""
    found = [one for one in batch.readings if not one.device]
    return {labels[1]: value for one in found for (_, labels), value in zip(one.series, one.values, strict=True)}


def failures(batch: Batch) -> list[tuple[str, str]]:
    """Device and reason of each absence."""
    return [(absence.device, absence.reason) for absence in batch.absences]


def refuse(patched: pytest.MonkeyPatch, refusals: Mapping[str, int], tried: list[str] | None = None) -> None:
    """Let the kernel answer with an error for files whose path ends so; note each try."""
    real = os.open

    def refusing(path: str, *arguments: int) -> int:
        for end, number in refusals.items():
            if str(path).endswith(end):
                if tried is not None:
                    tried.append(path)
                raise OSError(number, os.strerror(number), path)
        return real(path, *arguments)

    patched.setattr(os, "open", refusing)
