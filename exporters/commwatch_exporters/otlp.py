"""Metric families as OTLP, over HTTP to an OpenTelemetry collector. Needs the extra ``otlp``."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as Family

UNITS: Final[Mapping[str, str]] = {
    "": "", "bytes": "By", "bytes_per_second": "By/s", "celsius": "Cel", "hertz": "Hz", "joules": "J",
    "lanes": "{lane}", "ratio": "1", "seconds": "s", "watts": "W",
}  # fmt: skip
"""By the units of the catalogue, those of UCUM."""

_NETWORK: Final = ("commwatch_rdma_", "commwatch_ethernet_")
_MOST_OF_ANSWER: Final = 65_536
"""Bytes that are read of a collector's answer, which is empty or some hundred bytes."""
_CUMULATIVE: Final = otel.AggregationTemporality.CUMULATIVE
_Key: TypeAlias = tuple[str, tuple[str, ...]]


class OtlpClient:
    """Sends to one collector; the variables ``OTEL_EXPORTER_OTLP_*`` give headers, certificates and the time-out.

    A cumulative series starts when it was first seen, or seen to have fallen: when hardware began to count is not
    known, which OTLP writes as a first point that starts at its own time.

    Args:
        endpoint: URL of the collector, without ``/v1/metrics``.
    """

    def __init__(self, endpoint: str, version: str) -> None:
        host = socket.gethostname()
        own = {"service.name": "commwatch", "service.version": version, "service.instance.id": host, "host.name": host}
        self._resource = Resource(own).merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("commwatch", version)
        self._now = 0
        """Nanoseconds since 1970, of the points of this export."""
        self._before: dict[_Key, tuple[int, float]] = {}
        self._starts: dict[_Key, tuple[int, float]] = {}
        """Start and value of each cumulative series, in the last export and in this one."""
        self._log = _FirstMessage()
        library = logging.getLogger("opentelemetry")
        library.propagate = False  # it writes a line for each try
        library.handlers = [self._log]
        session = requests.Session()
        session.stream = True  # the answer is read by _check_answer
        session.hooks["response"].append(_check_answer)
        self._exporter = OTLPMetricExporter(f"{endpoint}/v1/metrics", compression=Compression.Gzip, session=session)

    def send(self, families: Iterable[Family]) -> str:
        """Send families, again within the time-out if need be; returns why they did not arrive, empty if they did."""
        self._now, self._before, self._starts = time.time_ns(), self._starts, {}
        metrics = [self._metric(family) for family in families if family.samples]
        scoped = otel.ScopeMetrics(self._scope, metrics, schema_url="")
        data = otel.MetricsData([otel.ResourceMetrics(self._resource, [scoped], schema_url="")])
        self._log.text = ""
        succeeded = self._exporter.export(data) is otel.MetricExportResult.SUCCESS
        return "" if succeeded else self._log.text or "no reason is known"

    def _metric(self, family: Family) -> otel.Metric:
        """A family under the name that a scrape has; as the specification maps Prometheus, an info is a sum."""
        name, data = family.samples[0].name, otel.Gauge(list(self._numbers(family)))
        if family.type == "histogram":
            name, data = family.name, otel.Histogram(list(self._histograms(family)), _CUMULATIVE)
        elif family.type in ("counter", "info"):
            data = otel.Sum(data.data_points, _CUMULATIVE, family.type == "counter")
        return otel.Metric(name, family.documentation, UNITS[family.unit], data)

    def _numbers(self, family: Family) -> Iterator[otel.NumberDataPoint]:
        for name, labels, value, *_ in family.samples:
            start = self._start((name, tuple(labels.values())), value) if family.type == "counter" else self._now
            yield otel.NumberDataPoint(_attributes(name, labels), start, self._now, float(value))

    def _histograms(self, family: Family) -> Iterator[otel.HistogramDataPoint]:
        found: dict[tuple[str, ...], dict[str, float]] = {}
        for name, labels, value, *_ in family.samples:
            key = tuple(text for label, text in labels.items() if label != "le")
            found.setdefault(key, {})[labels.get("le", name)] = value
        names = [label for label in family.samples[0].labels if label != "le"]
        for key, values in found.items():
            total, count = values.pop(f"{family.name}_sum"), values.pop(f"{family.name}_count")
            bounds = sorted(map(float, values))
            below = sorted(values.values())
            yield otel.HistogramDataPoint(
                _attributes(family.name, dict(zip(names, key, strict=True))),
                self._start((family.name, key), count), self._now, int(count), total,
                [int(high - low) for low, high in zip([0.0, *below], below, strict=False)], bounds[:-1],
                min=None, max=None,
            )  # fmt: skip

    def _start(self, key: _Key, value: float) -> int:
        start, last = self._before.get(key, (self._now, value))
        self._starts[key] = (start if value >= last else self._now, value)
        return self._starts[key][0]


def _attributes(name: str, labels: Mapping[str, str]) -> Mapping[str, str]:
    """The labels, and ``hw.*`` of the GPU or network adapter that the series belongs to."""
    if "gpu" in labels and (slot := labels.get("pci_bus_id")):
        return {**labels, "hw.type": "gpu", "hw.id": slot, "hw.name": f"GPU {labels['gpu']}"}
    if name.startswith(_NETWORK) and (device := labels.get("device")):
        return {**labels, "hw.type": "network", "hw.id": device, "hw.name": device}
    return labels


def _check_answer(response: requests.Response, **_: object) -> None:
    """Read an answer, so that its connection is used again, and refuse what the library takes for success.

    Raises:
        requests.RequestException: it is a redirection, which the library does not follow.
    """
    response.raw.read(_MOST_OF_ANSWER)
    if 300 <= response.status_code < 400:
        raise requests.RequestException(f"{response.status_code} {response.reason}: redirections are not followed")


class _FirstMessage(logging.Handler):
    """Keeps the first message of the library about an export, which names the reason; its result has none."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()
