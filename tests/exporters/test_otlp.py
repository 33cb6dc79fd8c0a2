"""The metrics as a receiver of OTLP takes them: those of a scrape."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'commwatch[otlp]'")

from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.node_collector import Format
from commwatch_exporters.otlp import UNITS, OtlpClient
from commwatch_exporters.snapshot import Series, Snapshot, Value
from support.otlp import Receiver, attributes, points, receiving
from support.pages import asked, families_of, snapshot_of, whole_catalogue

TRANSMITTED = "commwatch_nvlink_transmit_bytes_total"
LINK = (TRANSMITTED, ("0", "0000:17:00.0", "3"))
Sample = tuple[str, frozenset[tuple[str, str]]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """That takes all."""
    with receiving() as found:
        yield found


def sent(receiver: Receiver, values: dict[Series, Value]) -> dict[str, Any]:
    """The metrics of a node with these values, as they arrive."""
    page = MetricsPage(lambda: snapshot_of(values))
    assert OtlpClient(receiver.endpoint, "1.2").send(page.families()) == ""
    return receiver.metrics


def scraped(page: MetricsPage) -> dict[Sample, float]:
    """The samples of its text."""
    text = asked(page).decode()
    families = families_of(text, Format.TEXT)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def received(metrics: dict[str, Any]) -> dict[Sample, float]:
    """The samples that a scrape would have, from what arrived."""
    found: dict[Sample, float] = {}
    for name, metric in metrics.items():
        for point in points(metric):
            labels = {key: text for key, text in attributes(point).items() if not key.startswith("hw.")}
            if metric.WhichOneof("data") != "histogram":
                found[name, frozenset(labels.items())] = point.as_double
                continue
            found[f"{name}_sum", frozenset(labels.items())] = point.sum
            found[f"{name}_count", frozenset(labels.items())] = point.count
            assert not point.HasField("min")
            for place, bound in enumerate([*point.explicit_bounds, float("inf")]):
                le = "+Inf" if bound == float("inf") else f"{bound:g}"
                bucket = frozenset({**labels, "le": le}.items())
                found[f"{name}_bucket", bucket] = sum(point.bucket_counts[: place + 1])
    return found


def test_what_arrives_is_what_a_scrape_shows(receiver: Receiver) -> None:
    """Every series of the catalogue and of the process, under the same names, with the same values."""
    registry = CollectorRegistry()
    Gauge("own", "Of the program.", ["kind"], registry=registry).labels("a").set(2)
    page = MetricsPage(lambda: snapshot_of(whole_catalogue()), registry)
    assert OtlpClient(receiver.endpoint, "1.2").send(page.families()) == ""

    found, expected = received(receiver.metrics), scraped(page)
    assert found.keys() == expected.keys()
    still = {one for one in found if not one[0].startswith("process_")}
    assert {one: found[one] for one in still} == {one: expected[one] for one in still}
    assert {one[0] for one in found} >= {"process_cpu_seconds_total", "own"}
    assert receiver.requests[0][0] == "/v1/metrics"


def test_what_is_hidden_from_a_scrape_is_not_sent(receiver: Receiver) -> None:
    """And what was not read has no point."""
    values: dict[Series, Value] = {
        LINK: 5,
        ("commwatch_gpu_state", ("0", "a")): 1,
        (TRANSMITTED, ("1", "b", "0")): None,
    }
    shown = snapshot_of(values)
    page = MetricsPage(lambda: Snapshot(shown.blocks, unexported=frozenset({"commwatch_gpu_state"})))
    OtlpClient(receiver.endpoint, "1.2").send(page.families())

    ours = {name: metric for name, metric in receiver.metrics.items() if name.startswith("commwatch_")}
    assert {name: len(points(metric)) for name, metric in ours.items()} == {TRANSMITTED: 1}


def test_kinds_and_units(receiver: Receiver) -> None:
    """Counters only grow; an info is a sum that may fall, as the specification has it; units are those of UCUM."""
    assert {metric.unit for metric in CATALOGUE.values()} <= UNITS.keys()
    for name, metric in sent(receiver, whole_catalogue()).items():
        if name in CATALOGUE:
            row, kind = CATALOGUE[name], metric.WhichOneof("data")
            assert (metric.unit, metric.description) == (UNITS[row.unit], row.text)
            assert kind == {"counter": "sum", "info": "sum"}.get(row.type, row.type)
            assert (kind == "sum" and metric.sum.is_monotonic) is (row.type == "counter")
            assert kind == "gauge" or getattr(metric, kind).aggregation_temporality == 2  # cumulative


@pytest.mark.parametrize(
    ("series", "component"),
    [
        (LINK, {"hw.type": "gpu", "hw.id": "0000:17:00.0", "hw.name": "GPU 0"}),
        (
            ("commwatch_rdma_port_state", ("mlx5_0", "1")),
            {"hw.type": "network", "hw.id": "mlx5_0", "hw.name": "mlx5_0"},
        ),
        (("commwatch_ethernet_carrier", ("eth0",)), {"hw.type": "network", "hw.id": "eth0", "hw.name": "eth0"}),
        (("commwatch_expected", ("gpu",)), {}),
    ],
)
def test_attributes_of_hardware(receiver: Receiver, series: Series, component: dict[str, str]) -> None:
    """By the conventions, of the GPU or the adapter that a series belongs to, beside the labels."""
    name, labels = series
    [point] = points(sent(receiver, {series: 1})[name])

    assert attributes(point) == {**dict(zip(CATALOGUE[name].labels, labels, strict=True)), **component}


def test_the_node(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by its host, unless the variables of OpenTelemetry name it."""
    sent(receiver, {LINK: 1})
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=node7,rack=b")
    sent(receiver, {LINK: 1})
    own, changed = (attributes(request.resource_metrics[0].resource) for _, request in receiver.requests)
    host = socket.gethostname()

    assert own == {
        "service.name": "commwatch", "service.version": "1.2", "service.instance.id": host, "host.name": host,
    }  # fmt: skip
    assert changed == {**own, "service.instance.id": "node7", "rack": "b"}


def test_when_a_counter_began(receiver: Receiver) -> None:
    """At its first point, because nobody knows better; again where it has fallen, or was away."""
    values: dict[Series, Value] = {LINK: 5}
    page = MetricsPage(lambda: snapshot_of(values))
    client = OtlpClient(receiver.endpoint, "1.2")
    found = []
    for value in (5, 7, 7, 3, None, 4):
        values[LINK] = value
        client.send(page.families())
        of_link = points(receiver.metrics[TRANSMITTED]) if TRANSMITTED in receiver.metrics else []
        found.append(next(((one.start_time_unix_nano, one.time_unix_nano) for one in of_link), (0, 0)))
    times = [time for _, time in found]

    assert [start for start, _ in found] == [times[0], times[0], times[0], times[3], 0, times[5]]
    assert times[0] < times[1] < times[2] < times[3] < times[5]


def test_a_collector_that_refuses(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is that of the library; the next export may arrive."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "0.1")
    page = MetricsPage(lambda: snapshot_of({LINK: 5}))
    client = OtlpClient(receiver.endpoint, "1.2")
    receiver.status = 401
    refused = client.send(page.families())
    receiver.status = 200

    assert "401" in refused
    assert client.send(page.families()) == ""


def test_a_redirection_is_no_success(receiver: Receiver) -> None:
    """Nothing has arrived: a proxy that wants a login answers so."""
    receiver.status = 302

    assert "302 Found: redirections are not followed" in OtlpClient(receiver.endpoint, "1.2").send(
        MetricsPage(lambda: snapshot_of({LINK: 5})).families()
    )
    assert len(receiver.requests) == 1


def test_an_answer_is_not_read_whole(receiver: Receiver) -> None:
    """A long one is cut off; after a short one the connection is used again."""
    page, client = MetricsPage(lambda: snapshot_of({LINK: 5})), OtlpClient(receiver.endpoint, "1.2")
    for receiver.answer in (b"a", b"b" * 2**26, b"c"):
        assert client.send(page.families()) == ""

    assert receiver.sent[0] == 1
    assert receiver.sent[1] < 2**25
    assert receiver.connections == 2


def test_a_collector_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out ends the tries."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "0.1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    assert OtlpClient(f"http://127.0.0.1:{port}", "1.2").send(MetricsPage(lambda: snapshot_of({LINK: 5})).families())
