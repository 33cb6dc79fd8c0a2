"""What one screen is made of: the documents of a daemon, and what is known of the asking itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.findings.api_documents import FindingsDocument, ProbesDocument, SnapshotDocument


class Documents(msgspec.Struct, frozen=True):
    """All that a daemon said at one time."""

    findings: FindingsDocument
    probes: ProbesDocument
    snapshot: SnapshotDocument


@dataclass(frozen=True, slots=True)
class View:
    """What is shown."""

    source: str
    """Who is asked: a host name, or the address of an endpoint."""
    thresholds: Thresholds
    """Of the one who looks: which pairs are slow, what a score is called."""
    documents: Documents | None = None
    """The last answer; None before the first."""
    first: SnapshotDocument | None = None
    """That of the first answer: errors since then are new."""
    trouble: str = ""
    """Why the last question was not answered; empty where it was."""
    trouble_seconds: float = 0.0
    """Since when there has been no answer."""


class Series:
    """The series of a snapshot, found by metric."""

    def __init__(self, snapshot: SnapshotDocument) -> None:
        self._metrics = {metric.name: metric.series for metric in snapshot.metrics}

    def samples(self, family: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and number of each series of a metric; ``family`` without the namespace."""
        for series in self._metrics.get(f"commwatch_{family}", ()):
            if series.value is not None and not series.name:
                yield series.labels, series.value

    def by(self, family: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The numbers of a metric by the values of some of its labels; of several series their sum."""
        found: dict[tuple[str, ...], float] = {}
        for have, number in self.samples(family):
            key = tuple(have.get(label, "") for label in labels)
            found[key] = found.get(key, 0.0) + number
        return found

    def sum_by(self, families: tuple[str, ...], *labels: str) -> dict[tuple[str, ...], float]:
        """The sum of several metrics; absent where none of them was read."""
        total: dict[tuple[str, ...], float] = {}
        for family in families:
            for key, number in self.by(family, *labels).items():
                total[key] = total.get(key, 0.0) + number
        return total
