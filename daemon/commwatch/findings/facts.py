"""The input of the rules: the node at one moment, and the earlier changes of its counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

from commwatch.findings.history import CounterHistory
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.node.model import Collector, Inventory, Node
from commwatch_exporters.node.parts import Column, KeyedColumn, Part

_Derived = TypeVar("_Derived")
_Kind = TypeVar("_Kind", bound=Part)

_SPANS: Mapping[float, str] = {60.0: "minute", 120.0: "2 min", 300.0: "5 min", 3600.0: "hour"}


class Facts:
    """The node at one moment with its recent past; what was not read is absent."""

    def __init__(self, node: Node, history: CounterHistory, now: float) -> None:
        """
        Args:
            history: that has taken this moment in already.
            now: seconds since 1970.
        """
        self.node = node
        self._history = history
        self.now = now
        """Seconds since 1970."""
        self._derived: dict[object, object] = {}

    def derived(self, make: Callable[[Facts], _Derived]) -> _Derived:
        """The result of a function of these facts, computed once for all rules."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return cast(_Derived, self._derived[make])

    def each(self, column: Column[_Kind]) -> Iterator[tuple[_Kind, float]]:
        """The parts that have a number now, with it."""
        return self.node.each(column)

    def each_keyed(self, column: KeyedColumn[_Kind]) -> Iterator[tuple[_Kind, str, float]]:
        """The parts that have numbers by a key now: part, key and number."""
        return self.node.each_keyed(column)

    def rises(
        self, column: Column[_Kind], window: float, *, at_most: bool = False, within: bool = False
    ) -> Iterator[tuple[_Kind, float]]:
        """The parts of which a counter rose in the last seconds, and by how much.

        A counter that was first seen inside the window counts from there: never more than what was seen to happen.

        Args:
            window: in seconds.
            at_most: of counters that move fast, no less than they rose instead of no more: for what others are
                divided by.
            within: without what may have risen before the window, between two readings: for a limit that a healthy
                counter may come close to.
        """
        for labels, rise in self._rises(column.metric, window, at_most=at_most, within=within):
            yield column.kind(self.node, labels), rise

    def rises_keyed(
        self, column: Column[_Kind] | KeyedColumn[_Kind], window: float
    ) -> Iterator[tuple[_Kind, str, float]]:
        """The same of counters by a key: part, key and rise; the key is empty of a counter that has none."""
        for labels, rise in self._rises(column.metric, window):
            key = labels[column.key] if isinstance(column, KeyedColumn) else ""
            yield column.kind(self.node, labels), key, rise

    def rising_since(self, column: Column[_Kind], part: _Kind, amount: float) -> float | None:
        """Since when a counter of a part rose by this amount, seconds since 1970; None where that is not known.

        Args:
            column: a counter that rules watch, with no label but those of the part.
            amount: above 0.
        """
        labels = tuple(part.labels[name] for name in CATALOGUE[column.metric].labels)
        return self._history.rising_since(column.metric, labels, amount)

    def last_rise(self, column: KeyedColumn[_Kind], part: _Kind, key: str) -> float | None:
        """When a counter of a part rose last, seconds since 1970; None where that is not known."""
        if self._history.since_boot:
            return None
        values = {**part.labels, column.key: key}
        labels = tuple(values[name] for name in CATALOGUE[column.metric].labels)
        return self._history.rising_since(column.metric, labels, 1.0)

    def lately(self, window: float) -> str:
        """In words, when counters rose: ``in the last hour``, or ``since the boot`` where the rules run once."""
        return "since the boot" if self._history.since_boot else f"in the last {_SPANS[window]}"

    def _rises(
        self, metric: str, window: float, *, at_most: bool = False, within: bool = False
    ) -> Iterator[tuple[dict[str, str], float]]:
        if not (moved := self._history.moved(metric)):
            return
        names, now = CATALOGUE[metric].labels, self.now
        for labels in moved:
            rise = self._history.increase(metric, labels, now, window, at_most=at_most, within=within)
            if rise and self.node.has(metric, labels):
                yield dict(zip(names, labels, strict=True)), rise


ALL_READ = (Collector.success, Inventory.present)
"""Metrics that ``all_read`` reads."""


def all_read(facts: Facts, collector: str, kind: str) -> bool:
    """Whether a part that is not on the page is not on the node: its collector read all there is.

    Args:
        kind: as the inventory calls it: ``rdma_port``.
    """
    node = facts.node
    return node.part(Collector, collector).success == 1 and node.part(Inventory, kind).present is not None
