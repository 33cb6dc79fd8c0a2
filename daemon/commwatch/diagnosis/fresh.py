"""The probes of a full scan, held against the past that the daemon knows of them; pure."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.by_hand.answer import Answer
from commwatch.probes.plan import Failed, Measured
from commwatch.probes.results.record import Reading


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
    def told(self) -> tuple[tuple[Answer, bool], ...]:
        """The times that say something, and whether it was bad: not those that were skipped or gave way."""
        both = zip(self.answers, self.bad, strict=True)
        return tuple((answer, bad) for answer, bad in both if isinstance(answer.result, Measured | Failed))

    @property
    def measured(self) -> bool:
        """Whether the last of these gave a result."""
        return bool(self.told) and isinstance(self.told[-1][0].result, Measured)

    @property
    def last_at(self) -> float:
        """When the last time ended, seconds since 1970."""
        return self.answers[-1].result.finished_at

    @property
    def bad_in_a_row(self) -> tuple[Answer, ...]:
        """The last ones that were bad, the oldest first; empty where the last one was well."""
        found: list[Answer] = []
        for answer, bad in reversed(self.told):
            if not bad:
                break
            found.insert(0, answer)
        return tuple(found)

    @property
    def first_bad_at(self) -> float:
        """When the first of them ended, seconds since 1970; without any, the last time."""
        return self.bad_in_a_row[0].result.finished_at if self.bad_in_a_row else self.last_at

    @property
    def seen(self) -> str:
        """How a fault that it shows was seen: ``seen by this scan, 3 times in a row``."""
        times = len(self.bad_in_a_row)
        if times > 1:
            return f"seen by this scan, {times} times in a row"
        return "seen by this scan, in a single reading: no streak"
