"""A snapshot of the daemon with the probes of a full scan in place of its own; pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from commwatch.diagnosis.fresh import FreshProbe
from commwatch.findings.api_documents import MetricRecord, SeriesRecord, SnapshotDocument, metric_records
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.node.model import Pair, Suspect
from commwatch_exporters.node.parts import KIND_OF
from commwatch_exporters.snapshot import Block, Layout, Snapshot

_OF_NOW = ("gauge", "info")
"""Types of metrics that do not count from the start of the daemon."""


def overlaid(snapshot: SnapshotDocument, fresh: Iterable[FreshProbe]) -> SnapshotDocument:
    """The snapshot as it would be had these been cycles of the daemon; counts and histograms stay the daemon's."""
    for probe in fresh:
        if probe.readings:
            snapshot = _with_probe(snapshot, probe)
    return snapshot


def _with_probe(snapshot: SnapshotDocument, probe: FreshProbe) -> SnapshotDocument:
    values = {
        (metric, labels): value
        for metric, labels, value in probe.readings
        if metric in CATALOGUE and CATALOGUE[metric].type in _OF_NOW
    }
    new = {one.name: one for one in metric_records(Snapshot([Block(Layout(values), tuple(values.values()), 0.0)]))}
    kept = [
        replace(metric, series=(*_others(metric, probe), *(new.pop(metric.name).series if metric.name in new else ())))
        for metric in snapshot.metrics
    ]
    return replace(snapshot, metrics=(*(metric for metric in kept if metric.series), *new.values()))


def _others(metric: MetricRecord, probe: FreshProbe) -> tuple[SeriesRecord, ...]:
    """The series of a metric that the probe says nothing of."""
    if metric.type not in _OF_NOW:
        return metric.series
    if probe.matrix is not None and KIND_OF.get(metric.name) in (Pair, Suspect):
        return ()
    return tuple(one for one in metric.series if one.labels.get("probe") != probe.name)
