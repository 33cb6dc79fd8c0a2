"""The endpoint of the daemon: metrics, health, readiness, and the pages and documents that it is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType

from commwatch_exporters.http_server import Handler, HttpServer, Limits, Request, Response
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.shared_answer import SharedAnswer

_HTML = "text/html; charset=utf-8"


class Endpoint(HttpServer):
    """Answers scrapes from the last snapshot; no answer waits for anything.

    Args:
        metrics: The page of the metrics.
        ready: Whether the daemon is ready, and if not, why, one line for each reason.
        pages: By path what makes its HTML.
        documents: By path what makes its JSON.
        telemetry_path: Where the metrics are.
        limits: What a client may use.
        monotonic: Seconds by a clock that nobody sets, for what is made once a second at most.
    """

    def __init__(
        self,
        *,
        metrics: MetricsPage,
        ready: Callable[[], tuple[bool, Sequence[str]]],
        pages: Mapping[str, Callable[[], bytes]] = MappingProxyType({}),
        documents: Mapping[str, Callable[[], bytes]] = MappingProxyType({}),
        telemetry_path: str = "/metrics",
        limits: Limits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ready = ready
        routes: dict[str, Handler] = {
            "/healthz": _healthz,
            "/readyz": self._readyz,
            **{path: SharedAnswer(make, _HTML, monotonic) for path, make in pages.items()},
            **{path: SharedAnswer(make, "application/json", monotonic) for path, make in documents.items()},
            telemetry_path: metrics.answer,
        }
        # Health is about the process: whoever asks gets an answer, at any rate and without a password.
        super().__init__(routes, limits, open_paths=("/healthz", "/readyz"))

    def _readyz(self, _: Request) -> Response:
        is_ready, reasons = self._ready()
        if is_ready:
            return Response(HTTPStatus.OK, b"ready\n")
        return Response(HTTPStatus.SERVICE_UNAVAILABLE, "".join([f"{reason}\n" for reason in reasons]).encode())


def _healthz(_: Request) -> Response:
    """The process answers; whether collectors succeed is the metrics' to say."""
    return Response(HTTPStatus.OK, b"ok\n")
