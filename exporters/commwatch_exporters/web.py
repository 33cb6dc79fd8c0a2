"""The endpoint of the daemon: metrics, health, readiness, and the pages and documents that it is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType

from commwatch_exporters.http_server import Handler, HttpServer, Limits, Request, Response
from commwatch_exporters.metrics_page import Body, MetricsPage

_HTML = "text/html; charset=utf-8"
KEPT_SECONDS = 1.0
"""Within this time every client gets the same body: readers, many or hostile, take little from the scrapes."""


class Endpoint(HttpServer):
    """Answers scrapes from the last snapshot; no answer waits for anything.

    Args:
        unready: Why the daemon is not ready, one line for each reason; nothing once it is.
        pages: Functions that make the HTML, by path.
        documents: Functions that make the JSON, by path.
    """

    def __init__(
        self,
        *,
        metrics: MetricsPage,
        unready: Callable[[], Sequence[str]] = tuple,
        pages: Mapping[str, Callable[[], bytes]] = MappingProxyType({}),
        documents: Mapping[str, Callable[[], bytes]] = MappingProxyType({}),
        telemetry_path: str = "/metrics",
        limits: Limits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unready = unready
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
        if reasons := self._unready():
            return Response(HTTPStatus.SERVICE_UNAVAILABLE, "".join([f"{reason}\n" for reason in reasons]).encode())
        return Response(HTTPStatus.OK, b"ready\n")


def _healthz(_: Request) -> Response:
    """The process answers; the metrics show whether collectors succeed."""
    return Response(HTTPStatus.OK, b"ok\n")


class SharedAnswer:
    """The handler of a path whose answer costs something; what ``make`` raises is the answer of who asked."""

    def __init__(
        self, make: Callable[[], bytes], content_type: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._content_type = content_type
        self._monotonic = monotonic
        self._until = float("-inf")
        self._body = Body(b"", content_type)

    def __call__(self, request: Request) -> Response:
        """The answer of this second."""
        now = self._monotonic()
        if now >= self._until:
            self._body, self._until = Body(self._make(), self._content_type), now + KEPT_SECONDS
        return self._body.answer(request)
