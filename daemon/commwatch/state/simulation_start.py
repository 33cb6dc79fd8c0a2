"""When the simulated node of a state directory booted, so that its counters go on, and commands meet the same node."""

from __future__ import annotations

from pathlib import Path

import msgspec

from commwatch.errors import StateError
from commwatch.state.records import Timestamp, read_record

STATE_NAME = "simulation"


class SimulationStart(msgspec.Struct):
    """The daemon's record of the start of a simulation."""

    started_at: Timestamp
    """Seconds since 1970."""


def booted_at(state: Path) -> float | None:
    """When the daemon's node booted, seconds since 1970; None where no daemon has kept it, or it cannot be read."""
    try:
        start = read_record(state / f"{STATE_NAME}.json", SimulationStart)
    except StateError:
        return None
    return None if start is None else start.started_at
