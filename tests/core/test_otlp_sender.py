"""When the metrics are sent to a collector, and what the log has where they do not arrive."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from structlog.testing import capture_logs

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'commwatch[otlp]'")

from commwatch.config.settings import Otlp
from commwatch.service.otlp_sender import OtlpSender
from commwatch_exporters.metrics_page import Families, MetricsPage
from support.otlp import receiving
from support.pages import snapshot_of
from support.waiting import PATIENCE_SECONDS, until

STATE = ("commwatch_gpu_state", ("0", "0000:17:00.0"))


def sender() -> OtlpSender:
    """Of a node with one series."""
    return OtlpSender(MetricsPage(lambda: snapshot_of({STATE: 0})).families)


def exports() -> list[threading.Thread]:
    """Those that are under way."""
    return [one for one in threading.enumerate() if one.name == "otlp"]


def send(exporter: OtlpSender, endpoint: str) -> None:
    """A turn, and the end of what it began."""
    asyncio.run(exporter.send(Otlp(endpoint=endpoint)))
    for thread in exports():
        thread.join(PATIENCE_SECONDS)


def test_nothing_is_sent_without_an_endpoint() -> None:
    """The default; no thread is made, and the node is not asked for its metrics."""

    def families() -> Families:
        raise AssertionError("asked")

    asyncio.run(OtlpSender(families).send(Otlp()))

    assert exports() == []


def test_each_turn_sends_what_is_now() -> None:
    """To the endpoint in force."""
    exporter = sender()
    with receiving() as first, receiving() as second:
        for endpoint in (first.endpoint, first.endpoint, second.endpoint):
            send(exporter, endpoint)

        assert (len(first.requests), len(second.requests)) == (2, 1)
        assert "commwatch_gpu_state" in second.metrics


def test_a_collector_that_does_not_answer_holds_nothing_up() -> None:
    """A turn returns at once, one export is under way at most, and one line says so, and one that it is over."""
    exporter = sender()
    with receiving() as receiver, capture_logs() as logs:
        receiver.answers.clear()
        for _ in range(3):
            asyncio.run(exporter.send(Otlp(endpoint=receiver.endpoint)))
            until(lambda: receiver.requests)
        under_way = exports()
        receiver.answers.set()
        for thread in under_way:
            thread.join(PATIENCE_SECONDS)

        assert (len(under_way), len(receiver.requests)) == (1, 1)
    assert [(one["log_level"], one.get("error")) for one in logs] == [
        ("warning", "the last export has not come back"), ("info", None),
    ]  # fmt: skip


def test_a_collector_that_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """However often; the library writes none of its own. When exports arrive again, another line."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "0.1")
    exporter = sender()
    with receiving() as receiver, capture_logs() as logs:
        for receiver.status in (503, 400, 503, 200, 200):
            send(exporter, receiver.endpoint)

    assert [(one["log_level"], one["event"]) for one in logs] == [
        ("warning", "the metrics are not sent; it is tried again at each interval"),
        ("info", "the metrics are sent again"),
    ]
    assert capfd.readouterr() == ("", "")


def test_another_collector_that_refuses_is_another_line() -> None:
    """Who has corrected the endpoint sees that it is still wrong."""
    exporter = sender()
    with receiving() as first, receiving() as second, capture_logs() as logs:
        first.status = second.status = 400
        for endpoint in (first.endpoint, second.endpoint, second.endpoint):
            send(exporter, endpoint)

    assert [one["log_level"] for one in logs] == ["warning", "warning"]


def test_a_turn_off_forgets_the_collector() -> None:
    """Its connection is closed, and if it still refuses after the exports are on again, a line says so."""
    exporter = sender()
    with receiving() as receiver, capture_logs() as logs:
        receiver.status = 400
        for endpoint in (receiver.endpoint, "", receiver.endpoint):
            send(exporter, endpoint)

        assert receiver.connections == 2
    assert [one["log_level"] for one in logs] == ["warning", "warning"]


def test_without_the_extra_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon goes on."""
    monkeypatch.setitem(sys.modules, "commwatch_exporters.otlp", None)
    exporter = sender()
    with capture_logs() as logs:
        for _ in range(2):
            send(exporter, "http://127.0.0.1:1")

    [line] = logs
    assert "pip install 'commwatch[otlp]'" in line["error"]


def test_an_export_that_fails_in_the_middle_is_one_line() -> None:
    """A defect of ours or of the library ends neither the daemon nor the exports."""
    with receiving() as receiver, capture_logs() as logs:
        exporter = OtlpSender(lambda: iter([None]))  # type: ignore[list-item]  # no family
        for _ in range(2):
            send(exporter, receiver.endpoint)

        assert receiver.requests == []
    [line] = logs
    assert "AttributeError" in line["error"]
