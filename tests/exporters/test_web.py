"""The paths of the endpoint."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence

import pytest

from commwatch.views.node_page.page import NodePage
from commwatch.views.node_page.records import Status
from commwatch_exporters.http_server import Request
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.node_collector import Format
from commwatch_exporters.snapshot import Snapshot
from commwatch_exporters.web import Endpoint
from support.http import Answer, ask, serving
from support.pages import families_of, snapshot_of


class Clock:
    """Stands where it is put."""

    now = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


SERIES = ("commwatch_simulated", ())


def answer(
    path: str,
    *headers: str,
    snapshot: Snapshot | None = None,
    unready: Sequence[str] = (),
    documents: Mapping[str, Callable[[], bytes]] | None = None,
    telemetry_path: str = "/metrics",
) -> Answer:
    """The answer of an endpoint to one request."""

    def no_snapshot() -> Snapshot:
        raise AssertionError("the snapshot was asked for")

    give = no_snapshot if snapshot is None else lambda: snapshot
    endpoint = Endpoint(
        metrics=MetricsPage(give),
        unready=lambda: unready,
        pages=NodePage(give, lambda: Status("1.2.3"), telemetry_path).pages(),
        documents=documents or {},
        telemetry_path=telemetry_path,
    )

    async def exchange() -> Answer:
        async with serving(endpoint) as port:
            return await ask(port, path, *headers)

    return asyncio.run(exchange())


def test_metrics_in_plain_text() -> None:
    """Without wishes of the client the page is text 0.0.4, as it is."""
    found = answer("/metrics", snapshot=snapshot_of({SERIES: 1}))
    families = {family.name: family for family in families_of(found.body.decode(), Format.TEXT)}

    assert (found.status, found.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert found.headers["vary"] == "Accept, Accept-Encoding"
    assert "content-encoding" not in found.headers
    assert families["commwatch_simulated"].samples[0].value == 1


def test_metrics_as_prometheus_asks_for_them() -> None:
    """OpenMetrics under gzip."""
    found = answer(
        "/metrics?x=1",
        "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1",
        "Accept-Encoding: gzip",
        snapshot=snapshot_of({SERIES: 1}),
    )
    page = zlib.decompress(found.body, wbits=31).decode()
    families = {family.name: family for family in families_of(page, Format.OPENMETRICS)}

    assert found.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert found.headers["content-encoding"] == "gzip"
    assert families["commwatch_simulated"].samples[0].value == 1


def test_metrics_elsewhere() -> None:
    """The telemetry path is the operator's choice, and the node's page links to it."""
    snapshot = snapshot_of({SERIES: 1})

    assert answer("/gpu/metrics", snapshot=snapshot, telemetry_path="/gpu/metrics").status == 200
    assert answer("/metrics", snapshot=snapshot, telemetry_path="/gpu/metrics").status == 404
    assert b'href="/gpu/metrics"' in answer("/", snapshot=snapshot, telemetry_path="/gpu/metrics").body


def test_health_needs_no_snapshot() -> None:
    """The process is alive whatever the collectors do."""
    found = answer("/healthz", unready=["no snapshot"])

    assert (found.status, found.body) == (200, b"ok\n")


@pytest.mark.parametrize(
    ("unready", "status", "body"),
    [
        ((), 200, "ready\n"),
        (["collector nvml has not run", "größte Not"], 503, "collector nvml has not run\ngrößte Not\n"),
    ],
)
def test_readiness(unready: Sequence[str], status: int, body: str) -> None:
    """What is missing stands in the answer, one line for each reason."""
    found = answer("/readyz", unready=unready)

    assert (status, body) == (found.status, found.body.decode())


def test_the_page_of_the_node_is_html() -> None:
    """The root shows the page to a browser, in both forms, and compressed where that is wanted."""
    found = answer("/", snapshot=snapshot_of({SERIES: 0}))
    still = answer("/still", "Accept-Encoding: gzip", snapshot=snapshot_of({SERIES: 0}))

    assert (found.status, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"1.2.3" in found.body
    assert b"http-equiv" in found.body
    assert (still.status, still.headers["content-encoding"]) == (200, "gzip")
    assert still.headers["vary"] == found.headers["vary"] == "Accept-Encoding"
    assert b"http-equiv" not in zlib.decompress(still.body, wbits=31)


def test_a_document_is_made_once_a_second() -> None:
    """For a second everybody gets the same bytes, compressed where that is wanted; what fails is tried again."""
    clock, made = Clock(), list[float]()

    def make() -> bytes:
        made.append(clock.now)
        if clock.now == 2.0:
            raise ValueError("not now")
        return b'{"at":%d}' % clock.now

    endpoint = Endpoint(
        metrics=MetricsPage(lambda: snapshot_of({SERIES: 0})),
        documents={"/api/v1/snapshot": make}, monotonic=clock.monotonic,
    )  # fmt: skip

    async def exchange() -> None:
        async with serving(endpoint) as port:
            for at in (0.0, 0.99, 1.0, 1.5):
                clock.now = at
                plain = await ask(port, "/api/v1/snapshot")
                compressed = await ask(port, "/api/v1/snapshot", "Accept-Encoding: gzip")
                assert plain.headers["vary"] == compressed.headers["vary"] == "Accept-Encoding"
                assert compressed.headers["content-encoding"] == "gzip"
                assert plain.body == zlib.decompress(compressed.body, wbits=31) == b'{"at":%d}' % int(at)
            clock.now = 2.0
            assert [(await ask(port, "/api/v1/snapshot")).status for _ in range(2)] == [500, 500]

    asyncio.run(exchange())

    assert made == [0.0, 1.0, 2.0, 2.0]


def test_many_readers_cost_one_rendering_a_second() -> None:
    """For a second everybody gets the same page; then it is made again, also where nothing has changed: ages grow."""
    asked: list[float] = []
    clock = Clock()

    def status() -> Status:
        asked.append(clock.now)
        return Status(f"made at {clock.now:g}")

    snapshot = snapshot_of({SERIES: 0})
    pages = NodePage(lambda: snapshot, status, "/metrics").pages()
    metrics = MetricsPage(lambda: snapshot)
    endpoint = Endpoint(metrics=metrics, pages=pages, monotonic=clock.monotonic)
    for at in (0.0, 0.5, 0.99, 1.0, 1.5):
        clock.now = at
        plain = endpoint.answer(Request("/", {})).body
        compressed = endpoint.answer(Request("/", {"accept-encoding": "gzip"})).body

        assert plain == zlib.decompress(compressed, wbits=31)
        assert f"made at {int(at)}".encode() in plain
    assert asked == [0.0, 1.0]


def test_documents_are_json_of_whoever_gives_them() -> None:
    """They are made again for each request, and no cache between keeps them."""
    made = []

    def give() -> bytes:
        made.append(1)
        return b'{"schema": "x/1"}'

    found = answer("/api/v1/x?pretty", documents={"/api/v1/x": give})

    assert (found.status, found.body) == (200, b'{"schema": "x/1"}')
    assert (found.headers["content-type"], found.headers["cache-control"]) == ("application/json", "no-store")
    assert made == [1]
    assert answer("/api/v1/y", documents={"/api/v1/x": give}).status == 404
