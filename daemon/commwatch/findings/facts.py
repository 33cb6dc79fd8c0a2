"""What the rules read: the numbers of one moment, and how counters moved before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, cast

from commwatch.findings.history import CounterHistory
from commwatch_exporters.catalogue import CATALOGUE

_Derived = TypeVar("_Derived")


class ExposedSeries(Protocol):
    """What a snapshot gives of one metric."""

    def samples(self, family: str) -> Iterator[tuple[dict[str, str], int | float]]:
        """Labels and number of each series."""

    def value(self, metric: str, *labels: str) -> int | float | None:
        """The number of one series; None where it is absent."""


class Facts:
    """The numbers of one moment with their recent past; what was not read is absent."""

    def __init__(self, snapshot: ExposedSeries, history: CounterHistory, now: float) -> None:
        """
        Args:
            snapshot: of this moment.
            history: that has taken this moment in already.
            now: seconds since 1970.
        """
        self._snapshot = snapshot
        self._history = history
        self.now = now
        self._derived: dict[object, object] = {}

    def derived(self, make: Callable[[Facts], _Derived]) -> _Derived:
        """What a function makes of these facts; made once, however many rules ask."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return cast(_Derived, self._derived[make])

    def series(self, metric: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and number of each series of a metric."""
        return self._snapshot.samples(metric)

    def value(self, metric: str, **labels: str) -> float | None:
        """The number of the one series that has these labels, None where there is none.

        Raises:
            ValueError: several have them: the rule forgot a label.
        """
        wanted = labels.items()
        found = [number for have, number in self.series(metric) if wanted <= have.items()]
        if len(found) > 1:
            raise ValueError(f"{metric} has {len(found)} series with {labels}")
        return found[0] if found else None

    def increases(
        self, metric: str, window: float, *, at_most: bool = False
    ) -> Iterator[tuple[dict[str, str], float]]:  # fmt: skip
        """Labels, and by how much each counter of a metric rose in the last seconds; those that rose only.

        A counter that was first seen inside the window counts from there: never more than what was seen to happen.

        Args:
            metric: a counter.
            window: in seconds.
            at_most: of counters that move fast, no less than they rose instead of no more: for what others are
                divided by.
        """
        names = CATALOGUE[metric].labels
        for labels in self._history.moved(metric):
            rise = self._history.increase(metric, labels, self.now, window, at_most=at_most)
            if rise and self._snapshot.value(metric, *labels) is not None:
                yield dict(zip(names, labels, strict=True)), rise
