"""A simulated node whose clock and file of faults belong to the test."""

from __future__ import annotations

import os
from pathlib import Path

from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.probe_answers import SimulatedProbes

STARTED_AT = 1_900_000_000.0


class Rehearsal:
    """A node that has run for ``now`` seconds, with a file of faults written when it started."""

    def __init__(self, folder: Path, preset: str, faults: str = "", now: float = 100.0) -> None:
        self.now = now
        """Seconds since the node started."""
        self.file = folder / "faults.yaml"
        self._write(faults, 0.0)
        self.node = SimulatedNode(preset, self.file, STARTED_AT, lambda: STARTED_AT + self.now)
        self.probes = SimulatedProbes(self.node)

    def write(self, faults: str) -> None:
        """Write the file of faults now, and let the time pass after which it is looked at."""
        self._write(faults, self.now)
        self.now += 1

    def _write(self, faults: str, time: float) -> None:
        self.file.write_text(faults, encoding="utf-8")
        os.utime(self.file, (STARTED_AT + time, STARTED_AT + time))
