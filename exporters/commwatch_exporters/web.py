"""The endpoint of the daemon: metrics, health, readiness and the node's page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import MappingProxyType

from commwatch_exporters.http_server import Handler, HttpServer, Limits, Request, Response
from commwatch_exporters.listen import EndpointError
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.negotiation import accepts_gzip
from commwatch_exporters.node_page.records import STILL_PATH, Status
from commwatch_exporters.node_page.served import ServedPage
from commwatch_exporters.selection import SelectionError
from commwatch_exporters.shared_body import SharedBody
from commwatch_exporters.snapshot import Snapshot

__all__ = ["Endpoint", "EndpointError", "Limits", "Status"]

_VARY = ("Vary", "Accept, Accept-Encoding")
_VARY_GZIP = ("Vary", "Accept-Encoding")
_GZIP = ("Content-Encoding", "gzip")


class Endpoint(HttpServer):
    """Answers scrapes from the last snapshot; no answer waits for anything.

    Args:
        snapshot: The last complete snapshot.
        metrics: The page of the metrics; without it, the snapshot's and those of this process.
        ready: Whether the daemon is ready, and if not, why, one line for each reason.
        status: What the node's page says beside the snapshot.
        documents: By path what makes its JSON; it is asked once a second at most.
        telemetry_path: Where the metrics are.
        limits: What a client may use.
        monotonic: Seconds by a clock that nobody sets, for the documents.
    """

    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot],
        ready: Callable[[], tuple[bool, Sequence[str]]],
        status: Callable[[], Status],
        metrics: MetricsPage | None = None,
        documents: Mapping[str, Callable[[], bytes]] = MappingProxyType({}),
        telemetry_path: str = "/metrics",
        limits: Limits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics_page = metrics or MetricsPage(snapshot)
        self._ready = ready
        self._page = ServedPage(snapshot, status, telemetry_path)
        routes: dict[str, Handler] = {
            "/": partial(self._node_page, refreshes=True),
            STILL_PATH: partial(self._node_page, refreshes=False),
            "/healthz": _healthz,
            "/readyz": self._readyz,
            **{path: _document(SharedBody(give, monotonic)) for path, give in documents.items()},
            telemetry_path: self._metrics,
        }
        # Health is about the process: whoever asks gets an answer, at any rate and without a password.
        super().__init__(routes, limits, open_paths=("/healthz", "/readyz"))

    def _metrics(self, request: Request) -> Response:
        accept, accept_encoding = (request.headers.get(name, "") for name in ("accept", "accept-encoding"))
        try:
            page = self._metrics_page.answer(accept, accept_encoding, request.query)
        except SelectionError as error:
            return Response(HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
        return Response(HTTPStatus.OK, page.body, page.content_type, (_VARY, _GZIP) if page.is_gzip else (_VARY,))

    def _readyz(self, _: Request) -> Response:
        is_ready, reasons = self._ready()
        if is_ready:
            return Response(HTTPStatus.OK, b"ready\n")
        return Response(HTTPStatus.SERVICE_UNAVAILABLE, "".join([f"{reason}\n" for reason in reasons]).encode())

    def _node_page(self, request: Request, *, refreshes: bool) -> Response:
        gzip = accepts_gzip(request.headers.get("accept-encoding", ""))
        page = self._page.page(refreshes=refreshes, compressed=gzip)
        return Response(HTTPStatus.OK, page, "text/html; charset=utf-8", (_VARY_GZIP, _GZIP) if gzip else (_VARY_GZIP,))


def _healthz(_: Request) -> Response:
    """The process answers; whether collectors succeed is the metrics' to say."""
    return Response(HTTPStatus.OK, b"ok\n")


def _document(body: SharedBody) -> Handler:
    """The handler of a path with JSON."""

    def answer(request: Request) -> Response:
        gzip = accepts_gzip(request.headers.get("accept-encoding", ""))
        headers = (_VARY_GZIP, _GZIP) if gzip else (_VARY_GZIP,)
        return Response(HTTPStatus.OK, body.get(gzip=gzip), "application/json", headers)

    return answer
