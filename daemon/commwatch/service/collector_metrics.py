"""The metrics of the collectors and their sources, as they are when the page is rendered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector as Registered

from commwatch_exporters.catalogue import CATALOGUE

if TYPE_CHECKING:
    from commwatch.service.collection import Collection

_FAMILIES = (
    "collector_success", "collector_duration_seconds", "collector_interval_seconds",
    "collector_last_success_timestamp_seconds", "source_available", "source_unread",
)  # fmt: skip


class CollectorMetrics(Registered):
    """Gauges about the collectors of the configuration in force."""

    def __init__(self) -> None:
        self.of: Collection | None = None
        """None: no series, as between two configurations."""

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """As of now."""
        rows = [CATALOGUE[f"commwatch_{name}"] for name in _FAMILIES]
        families = [GaugeMetricFamily(row.name, row.text, labels=row.labels) for row in rows]
        success, duration, interval, last_success, available, unread = families
        if self.of is None:
            return families
        for name, one in self.of.collectors.items():
            interval.add_metric([name], one.current_interval)
            if one.attempted:
                success.add_metric([name], not one.failing)
                duration.add_metric([name], one.duration)
            if one.last_success is not None:
                last_success.add_metric([name], round(one.last_success, 3))
        for source, flag in self.of.available.items():
            available.add_metric([source], flag)
        for source, flag in self.of.exposed_as_unread().items():
            unread.add_metric([source], flag)
        return families
