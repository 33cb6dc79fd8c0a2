"""The receiver of pages: takes what Alertmanager posts, and when.

``python -m commwatch_rehearsal.drill.receiver HOST:PORT`` prints each posted alert, to try the routes of an
Alertmanager.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from commwatch_exporters.listen import split_address

_LARGEST_BYTES = 16 * 2**20
_GO_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Notice:
    receiver: str
    """Name of the receiver that Alertmanager chose."""
    at: float
    """When it arrived, seconds since 1970."""
    resolved: bool
    labels: dict[str, str]
    started_at: float
    """When the alert began to fire, by Prometheus' clock, seconds since 1970."""


def parse_notification(body: bytes, receiver: str, at: float) -> list[Notice]:
    """The alerts of a notification of Alertmanager's webhook.

    Raises:
        ValueError: it is none.
    """
    try:
        alerts = json.loads(body)["alerts"]
        return [
            Notice(receiver, at, one["status"] == "resolved", dict(one["labels"]), parse_time(one["startsAt"]))
            for one in alerts
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no notification of Alertmanager: {error!r}") from error


def parse_time(text: str) -> float:
    """Seconds since 1970 of a time as Go writes it, such as ``2026-11-21T18:35:42.758123456Z``.

    Raises:
        ValueError: it is none.
    """
    match = _GO_TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"no time: {text!r}")
    zone = "+00:00" if match[3] == "Z" else match[3]
    return datetime.fromisoformat(match[1] + zone).timestamp() + float(match[2] or 0)


class Receiver:
    """An HTTP server that collects notifications until it is closed."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            OSError: the address cannot be taken.
        """
        notices: list[Notice] = []
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                at = time.time()
                length = min(int(self.headers.get("Content-Length") or 0), _LARGEST_BYTES)
                body = self.rfile.read(length)
                try:
                    found = parse_notification(body, unquote(self.path.strip("/")), at)
                except ValueError as error:
                    self.send_error(400, str(error))
                    return
                with lock:
                    notices.extend(found)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                del format, args  # the drill prints its own progress

        self._notices = notices
        self._lock = lock
        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        bound = self._server.server_address
        self.address = f"http://{bound[0]!s}:{bound[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def take(self) -> list[Notice]:
        """The notices since the last call, in order."""
        with self._lock:
            taken = list(self._notices)
            self._notices.clear()
        return taken

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def line_of(notice: Notice) -> str:
    """An alert of a notification in a line: when it came, by which receiver, and what it is about."""
    at = time.strftime("%H:%M:%S", time.gmtime(notice.at))
    what = "resolved" if notice.resolved else "firing"
    labels = (notice.labels.get(name, "") for name in ("severity", "alertname", "instance"))
    return " ".join([at, notice.receiver, what, *(label for label in labels if label)])


def main(address: str) -> None:
    """Print what is posted until interrupted."""
    receiver = Receiver(*split_address(address))
    print(f"receiving at {receiver.address}/drill", flush=True)
    try:
        while True:
            for notice in receiver.take():
                print(line_of(notice), flush=True)
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    finally:
        receiver.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9095")
