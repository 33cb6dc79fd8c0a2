"""A source over a library with a clock that stands, and its values by name."""

from __future__ import annotations

from commwatch.readings import Batch
from commwatch.sources.base import Source
from commwatch.sources.nvml.source import NvmlSource
from commwatch_exporters.snapshot import Layout, Value
from nvml.library import Library


class Opened:
    """A source over a library, with a clock that stands until it is moved."""

    def __init__(self, library: Library, opt_in: frozenset[str], kind: type[NvmlSource] = NvmlSource) -> None:
        self.library = library
        self.now = 1000.0
        self.reports: list[str] = []
        self.source: Source = kind(lambda: self.now, opt_in)

    def open(self, leave_out: frozenset[str] = frozenset(), only: frozenset[str] | None = None) -> Opened:
        self.source.open(self.reports.append, leave_out, only)
        return self

    def collect(self, collector: str) -> Batch:
        return self.source.collect(collector)

    def read(self, collector: str) -> dict[tuple[str, ...], Value]:
        """All values of one run, by metric without namespace and label values; the catalogue must know them all."""
        return values_of(self.collect(collector))


def values_of(batch: Batch) -> dict[tuple[str, ...], Value]:
    """The values of a batch by metric without namespace and label values; the catalogue must know them all."""
    values: dict[tuple[str, ...], Value] = {}
    for readings in batch.readings:
        Layout(readings.series)
        for (metric, labels), value in zip(readings.series, readings.values, strict=True):
            values[(metric.removeprefix("commwatch_"), *labels)] = value
    return values
