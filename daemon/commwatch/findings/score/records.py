"""The records of the communication score: readings, the four parts, the score, and what reduced it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

PartName: TypeAlias = Literal["bandwidth", "latency", "balance", "stability"]
Word: TypeAlias = Literal["excellent", "good", "needs work", "not measured"]

WEIGHTS: Mapping[PartName, float] = MappingProxyType(
    {"bandwidth": 0.30, "latency": 0.25, "balance": 0.25, "stability": 0.20}
)
"""Share of the score of each part while all are measured."""
_CAP = 0.99
"""Of the score that it stays below: what is capped prints as less."""


class Reading(msgspec.Struct, frozen=True):
    subject: str
    """``probe all_reduce``, ``GPU3 to GPU5``, ``NVLinks of GPU2``."""
    ratio: float
    """0 to 1; 1 costs nothing."""
    words: str
    """The numbers behind it, with their units."""


class PartReadings(msgspec.Struct, frozen=True):
    """The measurements of one part, before its weight is known."""

    name: PartName
    readings: tuple[Reading, ...]
    """None: the part was not measured."""
    least_counts: bool
    """Whether the part has the value of its worst reading; else the mean of all."""
    needs: str
    """The requirements for a measurement of this part, in words."""


class Part(msgspec.Struct, frozen=True):
    name: PartName
    weight: float
    """Its share of this score: the weights of parts that were not measured go to the others. 0 where it was not."""
    ratio: float | None
    """0 to 1; None where it was not measured."""
    readings: tuple[Reading, ...]
    """The worst first."""
    missing: str = ""
    """The requirements for measuring it; empty if it was measured."""


class Loss(msgspec.Struct, frozen=True):
    """A reason for lost points."""

    part: PartName | Literal["cap"]
    """cap: what keeps the score below good, or below excellent, whatever its parts give."""
    lost: float
    """Share of the score. 0: not what decides its part now, but in line to do so next."""
    ratio: float
    """Of the reading, below 1."""
    subject: str
    words: str

    @property
    def heading(self) -> str:
        """The part as an operator reads it."""
        return "held down" if self.part == "cap" else self.part


class JobWord(msgspec.Struct, frozen=True):
    """How a job fares that has been on the node for ten minutes."""

    name: str
    """``job on GPU0, GPU1``."""
    word: str
    """``held up by the network``, ``half used``, ``no remarks``."""
    use: dict[str, float]
    """Mean over the last ten minutes and its GPUs, 0 to 1, of what was read: ``busy time``, ``NVLink``, ``PCIe``,
    ``network``."""


class Score(msgspec.Struct, frozen=True):
    ratio: float | None
    """0 to 1; None where nothing was measured."""
    word: Word
    parts: tuple[Part, ...]
    """All four, also those that were not measured."""
    losses: tuple[Loss, ...]
    """The cap, then the greatest first. They add up to 1 less the score."""
    jobs: tuple[JobWord, ...] = ()
    """Beside the score of the node: one that is well may be too slow for a job, and a job may fare badly by itself."""


def weighted(parts: Sequence[PartReadings], excellent: float, good: float) -> Score:
    """The score of parts.

    Args:
        parts: all four.
        excellent: the score from which on it is called so.
        good: likewise.
    """
    measured = sum(WEIGHTS[part.name] for part in parts if part.readings)
    found = tuple(_part(part, WEIGHTS[part.name] / measured if part.readings else 0.0) for part in parts)
    losses = [loss for before, part in zip(parts, found, strict=True) for loss in _losses(before, part)]
    losses.sort(key=lambda loss: (-loss.lost, loss.ratio))
    ratio = sum(part.weight * part.ratio for part in found if part.ratio is not None) if measured else None
    return Score(ratio, word_of(ratio, excellent, good), found, tuple(losses))


def capped(score: Score, below: float, good: float, subject: str, words: str) -> Score:
    """A score that stays below a mark.

    Args:
        score: of the parts.
        below: the mark: that of good or that of excellent.
        good: the score from which on it is called so.
        subject: where it is that something keeps it down.
        words: what.
    """
    ceiling = _CAP * below
    if score.ratio is None or score.ratio <= ceiling:
        return score
    loss = Loss("cap", score.ratio - ceiling, 0.0, subject, words)
    word = word_of(ceiling, max(below, good), good)
    return msgspec.structs.replace(score, ratio=ceiling, word=word, losses=(loss, *score.losses))


def _part(part: PartReadings, weight: float) -> Part:
    readings = tuple(sorted(part.readings, key=lambda one: one.ratio))
    if not readings:
        return Part(part.name, weight, None, (), part.needs)
    ratios = [one.ratio for one in readings]
    return Part(part.name, weight, ratios[0] if part.least_counts else sum(ratios) / len(ratios), readings)


def _losses(before: PartReadings, part: Part) -> list[Loss]:
    """Of a mean each reading loses its share; of a least the worst loses all, and the others show what comes next."""
    short = [one for one in part.readings if one.ratio < 1.0]
    if before.least_counts:
        shares = [float(place == 0) for place in range(len(short))]
    else:
        shares = [1.0 / len(part.readings) for _ in short]
    return [
        Loss(part.name, part.weight * share * (1.0 - one.ratio), one.ratio, one.subject, one.words)
        for one, share in zip(short, shares, strict=True)
    ]


def word_of(ratio: float | None, excellent: float, good: float) -> Word:
    if ratio is None:
        return "not measured"
    if ratio >= excellent:
        return "excellent"
    return "good" if ratio >= good else "needs work"
