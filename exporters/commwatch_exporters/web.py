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
from commwatch_exporters.node.model import Node
from commwatch_exporters.node_page.page import render_node_page
from commwatch_exporters.node_page.records import STILL_PATH, Status
from commwatch_exporters.shared_answer import SharedAnswer
from commwatch_exporters.snapshot import Snapshot

__all__ = ["Endpoint", "EndpointError", "Limits", "Status"]

_HTML = "text/html; charset=utf-8"


class Endpoint(HttpServer):
    """Answers scrapes from the last snapshot; no answer waits for anything.

    Args:
        snapshot: The last complete snapshot.
        metrics: The page of the metrics; without it, the snapshot's and those of this process.
        ready: Whether the daemon is ready, and if not, why, one line for each reason.
        status: What the node's page says beside the snapshot.
        documents: By path what makes its JSON.
        telemetry_path: Where the metrics are.
        limits: What a client may use.
        monotonic: Seconds by a clock that nobody sets, for what is made once a second at most.
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
        self._ready = ready
        self._node = Node()
        self._snapshot = snapshot
        self._status = status
        self._telemetry_path = telemetry_path

        def shared(make: Callable[[], bytes], content_type: str) -> Handler:
            return SharedAnswer(make, content_type, monotonic)

        routes: dict[str, Handler] = {
            "/": shared(partial(self._node_page, refreshes=True), _HTML),
            STILL_PATH: shared(partial(self._node_page, refreshes=False), _HTML),
            "/healthz": _healthz,
            "/readyz": self._readyz,
            **{path: shared(make, "application/json") for path, make in documents.items()},
            telemetry_path: (metrics or MetricsPage(snapshot)).answer,
        }
        # Health is about the process: whoever asks gets an answer, at any rate and without a password.
        super().__init__(routes, limits, open_paths=("/healthz", "/readyz"))

    def _readyz(self, _: Request) -> Response:
        is_ready, reasons = self._ready()
        if is_ready:
            return Response(HTTPStatus.OK, b"ready\n")
        return Response(HTTPStatus.SERVICE_UNAVAILABLE, "".join([f"{reason}\n" for reason in reasons]).encode())

    def _node_page(self, *, refreshes: bool) -> bytes:
        self._node.show(self._snapshot())
        page = render_node_page(self._node, self._status(), self._telemetry_path, refreshes=refreshes)
        return page.encode("utf-8", "replace")


def _healthz(_: Request) -> Response:
    """The process answers; whether collectors succeed is the metrics' to say."""
    return Response(HTTPStatus.OK, b"ok\n")
