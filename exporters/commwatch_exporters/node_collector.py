"""What is known of a node as metric families: for a registry of prometheus_client, and in bulk as text of a page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache

from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from commwatch_exporters.blocks import format_number
from commwatch_exporters.catalogue import CATALOGUE, Metric
from commwatch_exporters.negotiation import Format
from commwatch_exporters.snapshot import Block, Series, Snapshot

_log = logging.getLogger("commwatch.web")


class NodeCollector(Collector):
    """Gives the families of the snapshot of now; register it in the registry whose page shall show the node.

    Args:
        snapshot: The one of now.
        without: Names of metrics that somebody else gives: a registry takes each one once.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], without: Collection[str] = ()) -> None:
        self._snapshot = snapshot
        self._without = frozenset(without)

    def describe(self) -> Iterable[Family]:
        """All families that there may be, without samples."""
        return [_family(metric) for name, metric in CATALOGUE.items() if name not in self._without]

    def collect(self) -> Iterator[Family]:
        """The families of now that have samples, in the order of the catalogue."""
        snapshot = self._snapshot()
        for metric in self._shown(snapshot):
            family = _family(metric)
            for (name, labels), _, value in _once(snapshot.family_blocks(metric.name), metric.name):
                names = (*metric.labels, "le") if name == f"{metric.name}_bucket" else metric.labels
                family.add_sample(name, dict(zip(names, labels, strict=True)), value)
            if family.samples:
                yield family

    def text(self, snapshot: Snapshot, page_format: Format, families: Collection[str] | None = None) -> str:
        """The same samples as lines of a page, of all families or of some, without a mark of the end."""
        pieces: list[str] = []
        for metric in self._shown(snapshot, families):
            name, blocks = metric.name, snapshot.family_blocks(metric.name)
            if name in snapshot.repeated:
                texts = [f"{prefix}{format_number(value)}\n" for _, prefix, value in _once(blocks, name)]
            else:
                texts = [block.text(name) for block in blocks]
            if any(texts):
                pieces += (_header(name, page_format), *texts)
        return "".join(pieces)

    def _shown(self, snapshot: Snapshot, families: Collection[str] | None = None) -> Iterator[Metric]:
        left_out = self._without | snapshot.unexported | frozenset(snapshot.hidden)
        for name, metric in CATALOGUE.items():
            if name in snapshot.holders and name not in left_out and (families is None or name in families):
                yield metric


def _once(blocks: Sequence[Block], family: str) -> Iterator[tuple[Series, str, int | float]]:
    """Each series with its line up to the value, and the value: some readers refuse the page for one given twice."""
    seen = set()
    for block in blocks:
        for position in block.layout.families[family]:
            value, series = block.values[position], block.layout.series[position]
            if value is None:
                continue
            if series in seen:
                _report_repeat(family)
            else:
                seen.add(series)
                yield series, block.layout.prefixes[position], value


@cache
def _report_repeat(family: str) -> None:
    """Log a series given twice, once per family: the cache remembers which."""
    _log.error("%s: two blocks give the same series; the first one is exposed", family)


def _family(metric: Metric) -> Family:
    """A family by the library's name, which has no suffix of its type."""
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    return Family(metric.name.removesuffix(suffix), metric.text, metric.type, metric.unit)


@cache
def _header(name: str, page_format: Format) -> str:
    """What the library writes before the samples."""
    return page_format.encode(_Alone(_family(CATALOGUE[name]))).decode().removesuffix("# EOF\n")


class _Alone(Collector):
    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Family]:
        return [self._family]
