"""A real Prometheus over loopback, and the shipped rules at waits that a test can afford."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commwatch.config.assets import asset
from support.waiting import PATIENCE_SECONDS, until, words

QUICK = {"interval: 15s": "interval: 500ms", "[40s]": "[2s]", "for: 15s": "for: 1s"}
"""Waits of the rules, and those that stand for them where a server evaluates twice a second."""


def quick_rules(folder: Path, waits: Mapping[str, str] = QUICK, rendered: Path | None = None) -> list[Path]:
    """The shipped rules, or those that a site has rendered, with other waits, as files in a folder."""
    files = []
    for shipped in sorted((rendered or asset("alerts/rules")).glob("*.yaml")):
        text = shipped.read_text(encoding="utf-8")
        for shipped_wait, wait in waits.items():
            text = text.replace(shipped_wait, wait)
        file = folder / shipped.name
        file.write_text(text, encoding="utf-8")
        files.append(file)
    return files


class Prometheus:
    """A running server."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._listen = f"127.0.0.1:{free.getsockname()[1]}"
        self.address = f"http://{self._listen}"
        self._base = f"{self.address}/api/v1"
        self._folder = folder
        self._configuration = folder / "prometheus.yml"
        self._configuration.write_text(json.dumps(settings))
        self._start()

    def _start(self, resend_delay: str = "1m") -> None:
        with (self._folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={self._configuration}",
                 f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address={self._listen}",
                 "--web.enable-lifecycle", f"--rules.alert.resend-delay={resend_delay}"],
                stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        """End it in order."""
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)

    def restart(self, resend_delay: str) -> None:
        """End it in order and start it again on what it has stored.

        Args:
            resend_delay: after which it hands an alert to Alertmanager again; Alertmanager holds it for four of them.
        """
        self.stop()
        self._start(resend_delay)

    def reload(self) -> None:
        """Have it read its configuration and its rules again."""
        reload = f"{self.address}/-/reload"
        self.until(lambda: urllib.request.urlopen(reload, data=b"", timeout=PATIENCE_SECONDS).status == 200)

    def scrape(self, target: str) -> None:
        """Scrape one target, HOST:PORT, as job commwatch from now on."""
        settings = json.loads(self._configuration.read_text())
        settings["scrape_configs"] = [{"job_name": "commwatch", "static_configs": [{"targets": [target]}]}]
        self._configuration.write_text(json.dumps(settings))
        self.reload()

    def _get(self, path: str, **parameters: str) -> Any:
        question = f"{self._base}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(question, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query, of now or of a time in seconds since 1970."""
        moment = {} if at is None else {"time": f"{at:.3f}"}
        result = self._get("query", query=expression, **moment)["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def query_range(
        self, expression: str, start: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[float]]]:
        """Labels and values of each series over a stretch of time; times are seconds since 1970."""
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        result = self._get("query_range", query=expression, **times)["result"]
        return [(one["metric"], [float(value) for _, value in one["values"]]) for one in result]

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """The alerts that fire now, by name."""
        alerts: dict[str, list[dict[str, Any]]] = {}
        for alert in self._get("alerts")["alerts"]:
            if alert["state"] == "firing":
                alerts.setdefault(alert["labels"]["alertname"], []).append(alert)
        return alerts

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
        """Wait until something holds; what it gave is returned."""

        def holds() -> Any:
            try:
                return condition()
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                return None  # the server is starting

        return until(holds, seconds, every=0.1, describe=lambda: f"{words(condition)}; firing: {list(self.firing())}")


@contextmanager
def prometheus(
    folder: Path, rules: list[Path], interval: str = "500ms", settings: Mapping[str, Any] | None = None
) -> Iterator[Prometheus]:
    """A server that evaluates rules; gone afterwards.

    It looks at its targets 5 s after its start at the earliest, so start it before the daemon that it is to scrape.

    Args:
        folder: for its configuration and data.
        rules: files of rules.
        interval: of scrapes and evaluations.
        settings: further ones of its configuration.
    """
    times = {"scrape_interval": interval, "evaluation_interval": interval}
    own = {"global": {**times, "external_labels": {"cluster": "example"}}, "rule_files": [str(file) for file in rules]}
    server = Prometheus(folder, {**(settings or {}), **own})
    try:
        yield server
    finally:
        server.stop()
