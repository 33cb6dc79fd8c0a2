"""The probes of a full scan, held against the past that the daemon knows of them; pure."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.analysis.pair_matrix import PairMatrix
from commwatch.commands.probe_answer import Answer
from commwatch.probes.plan import Measured
from commwatch.probes.record import Reading


@dataclass(frozen=True, slots=True)
class FreshProbe:
    """One probe of a scan, measured once or several times."""

    name: str
    backend: str
    answers: tuple[Answer, ...]
    """Of each time, the oldest first."""
    bad: tuple[bool, ...]
    """Of each: whether it failed, or was slow or low."""
    readings: tuple[Reading, ...] = ()
    """What the daemon would expose after these; empty where nothing was measured."""
    matrix: PairMatrix | None = None
    """Of pairs: the last one, with what three in a row have in common."""
    comparable: bool = True
    """Whether it was measured as the daemon measures it: the same GPUs, sizes and versions."""

    @property
    def measured(self) -> bool:
        """Whether the last time gave a result."""
        return bool(self.answers) and isinstance(self.answers[-1].result, Measured)

    @property
    def first_bad_at(self) -> float:
        """When the first of the last bad ones in a row ended, seconds since 1970; of a good one the last."""
        found = self.answers[-1].result.finished_at
        for answer, bad in zip(reversed(self.answers), reversed(self.bad), strict=True):
            if not bad:
                break
            found = answer.result.finished_at
        return found

    @property
    def seen(self) -> str:
        """How a fault that it shows was seen: ``seen by this scan, 3 times in a row``."""
        run = 0
        for bad in reversed(self.bad):
            if not bad:
                break
            run += 1
        if run > 1:
            return f"seen by this scan, {run} times in a row"
        return "seen by this scan, in a single reading: no streak"
