"""A snapshot of the daemon with the probes of a full scan in place of its own; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from commwatch.diagnosis.fresh import FreshProbe
from commwatch.findings.api_documents import MetricRecord, SeriesRecord, SnapshotDocument
from commwatch.probes.results.record import Reading
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.node.model import Pair, Suspect
from commwatch_exporters.node.parts import KIND_OF


def overlaid(snapshot: SnapshotDocument, fresh: Iterable[FreshProbe]) -> SnapshotDocument:
    """The snapshot as it would be had these been cycles of the daemon; counts and histograms stay the daemon's."""
    for probe in fresh:
        if probe.readings:
            snapshot = _with_probe(snapshot, probe)
    return snapshot


def _with_probe(snapshot: SnapshotDocument, probe: FreshProbe) -> SnapshotDocument:
    new: dict[str, list[SeriesRecord]] = {}
    for reading in probe.readings:
        if _is_state(reading[0]):
            new.setdefault(reading[0], []).extend(_series(reading))
    kept = [_replaced(metric, probe, new) for metric in snapshot.metrics]
    known = {metric.name for metric in snapshot.metrics}
    added = [_metric(name, series) for name, series in new.items() if series and name not in known]
    return msgspec.structs.replace(snapshot, metrics=(*(one for one in kept if one.series), *added))


def _is_state(metric: str) -> bool:
    """Whether it is a number of now, and not one that counts from the start of the daemon."""
    return metric in CATALOGUE and CATALOGUE[metric].type in ("gauge", "info")


def _series(reading: Reading) -> list[SeriesRecord]:
    metric, labels, value = reading
    if value is None:
        return []
    return [SeriesRecord(dict(zip(CATALOGUE[metric].labels, labels, strict=True)), value)]


def _replaced(metric: MetricRecord, probe: FreshProbe, new: dict[str, list[SeriesRecord]]) -> MetricRecord:
    if metric.type not in ("gauge", "info"):
        return metric
    of_matrix = probe.matrix is not None and KIND_OF.get(metric.name) in (Pair, Suspect)
    others = [one for one in metric.series if not of_matrix and one.labels.get("probe") != probe.name]
    return msgspec.structs.replace(metric, series=(*others, *new.get(metric.name, ())))


def _metric(name: str, series: Sequence[SeriesRecord]) -> MetricRecord:
    metric = CATALOGUE[name]
    return MetricRecord(name, metric.type, metric.unit, tuple(series))
