"""A receiver of OTLP over HTTP, as an OpenTelemetry collector has one, decoded by the published protocol."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


class Receiver(http.server.ThreadingHTTPServer):
    """On a free port of loopback."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.status = 200
        """Of its answers."""
        self.answers = threading.Event()
        """Cleared: requests wait."""
        self.answers.set()
        self.answer = b""
        """Body of its answers."""
        self.sent: list[int] = []
        """Bytes of each body that a client took."""
        self.connections = 0
        self.requests: list[tuple[str, Any]] = []
        """Path and message of each, those that were refused too."""

    @property
    def metrics(self) -> dict[str, Any]:
        """Those of the last message, by name."""
        [resource] = self.requests[-1][1].resource_metrics
        [scope] = resource.scope_metrics
        found = {one.name: one for one in scope.metrics}
        assert len(found) == len(scope.metrics), "a metric is sent twice"
        return found


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"  # keeps connections

    def setup(self) -> None:
        """A connection has come."""
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        """Take a message."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append((self.path, ExportMetricsServiceRequest.FromString(body)))
        self.server.answers.wait()
        self.send_response(self.server.status)
        answer, place = self.server.answer, len(self.server.sent)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.server.sent.append(0)
        try:
            for start in range(0, len(answer), 2**16):
                self.wfile.write(answer[start : start + 2**16])
                self.server.sent[place] += len(answer[start : start + 2**16])
        except ConnectionError:
            self.close_connection = True  # the client has read enough

    def log_message(self, *_: object) -> None:
        """Nothing is written."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver for the time of a block."""
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.answers.set()
            receiver.shutdown()
            thread.join()


def attributes(one: Any) -> dict[str, str]:
    """Of a point or a resource."""
    return {each.key: each.value.string_value for each in one.attributes}


def points(metric: Any) -> list[Any]:
    """Of a metric, whatever its kind."""
    return list(getattr(metric, metric.WhichOneof("data")).data_points)
