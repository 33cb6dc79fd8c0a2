"""A real Prometheus over loopback for the end-to-end tests."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Prometheus:
    """A running server."""

    def __init__(self, port: int, configuration: Path) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self._base = f"{self._address}/api/v1"
        self._configuration = configuration

    def scrape(self, target: str) -> None:
        """Scrape one target, HOST:PORT, as job commwatch from now on."""
        settings = json.loads(self._configuration.read_text())
        settings["scrape_configs"] = [{"job_name": "commwatch", "static_configs": [{"targets": [target]}]}]
        self._configuration.write_text(json.dumps(settings))
        self.until(lambda: urllib.request.urlopen(f"{self._address}/-/reload", data=b"", timeout=10).status == 200)

    def _get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self._base}/{path}?{urllib.parse.urlencode(parameters)}", timeout=5) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        result = self._get("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """The alerts that fire now, by name."""
        alerts: dict[str, list[dict[str, Any]]] = {}
        for alert in self._get("alerts")["alerts"]:
            if alert["state"] == "firing":
                alerts.setdefault(alert["labels"]["alertname"], []).append(alert)
        return alerts

    def until(self, condition: Callable[[], Any], seconds: float = 40) -> Any:
        """Wait until something holds; what it gave is returned."""
        end = time.monotonic() + seconds
        while True:
            try:
                if found := condition():
                    return found
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                found = None  # the server is starting
            assert time.monotonic() < end, f"not within {seconds} s; firing: {list(self.firing())}"
            time.sleep(0.2)


@contextmanager
def prometheus(folder: Path, rules: list[Path], interval: str = "500ms") -> Iterator[Prometheus]:
    """A server that evaluates rules; gone afterwards.

    It looks at its targets 5 s after its start at the earliest, so start it before the daemon that it is to scrape.

    Args:
        folder: for its configuration and data.
        rules: files of rules.
        interval: of scrapes and evaluations.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = folder / "prometheus.yml"
    configuration.write_text(json.dumps({
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(file) for file in rules],
    }))  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}", "--web.enable-lifecycle"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield Prometheus(port, configuration)
    finally:
        process.terminate()
        process.wait(10)
