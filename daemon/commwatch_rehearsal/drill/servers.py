"""Prometheus and Alertmanager: those that the drill starts, or those of the user."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from commwatch import children
from commwatch_rehearsal.drill.ending import pause
from commwatch_rehearsal.drill.pace import Pace, promql_duration
from commwatch_rehearsal.drill.programs import DrillError, Program
from commwatch_rehearsal.drill.receiver import Notice, parse_time

_READY_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
_LISTENING = r'Listening on"?.*? address="?([0-9.]+:\d+)'
_PROGRAMS = {"prometheus": ("prometheus",), "alertmanager": ("alertmanager", "prometheus-alertmanager")}
"""Debian calls it prometheus-alertmanager."""
_LOOKBACK_SECONDS = 300.0
_RESEND_SECONDS = 60.0


def find_program(name: str) -> str:
    """The path of a server's program.

    Raises:
        DrillError: it is not installed.
    """
    for one in _PROGRAMS[name]:
        if path := children.find_program(one):
            return path
    raise DrillError(f"{name} is not installed; install it, or name a running one with --{name}")


class Api:
    """A server's HTTP interface."""

    def __init__(self, url: str, what: str) -> None:
        """Take its address, ``http://HOST:PORT[/PREFIX]``.

        Raises:
            DrillError: it is no such address.
        """
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:  # its port is none
            is_address = False
        if not is_address:
            raise DrillError(f"{what}: {url!r} is no address such as http://localhost:9090")
        self.url = url.rstrip("/")
        self._what = what
        self._parts = parts

    def get(self, path: str) -> Any:
        """The JSON that a path answers.

        Raises:
            DrillError: no answer, or none that can be used.
        """
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", self._parts.path.rstrip("/") + path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != http.client.OK:
                raise DrillError(f"{self._what} at {self.url} answers {answer.status} to {path}")
            return json.loads(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DrillError(f"{self._what} at {self.url} does not answer: {error}") from error
        finally:
            connection.close()


class PrometheusApi(Api):
    """A drill's queries to a Prometheus."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "Prometheus")

    def wait_until_ready(self) -> None:
        """Wait until it answers: it listens before it has read what it stored. Blocks.

        Raises:
            DrillError: not in time.
        """
        until = time.monotonic() + _READY_SECONDS
        while True:
            try:
                self.version()
                return
            except DrillError:
                if time.monotonic() > until:
                    raise
                pause(0.1)

    def firing(self) -> list[Mapping[str, str]]:
        """The labels of the alerts that fire now."""
        alerts = self.get("/api/v1/alerts")["data"]["alerts"]
        return [one["labels"] for one in alerts if one["state"] == "firing"]

    def scraped(self) -> set[str]:
        """The instances whose last scrape came off."""
        targets = self.get("/api/v1/targets?state=active")["data"]["activeTargets"]
        return {one["labels"]["instance"] for one in targets if one["health"] == "up"}

    def version(self) -> str:
        """Its version, such as ``2.42.0``."""
        return str(self.get("/api/v1/status/buildinfo")["data"]["version"])

    def rules(self) -> dict[str, float]:
        """The alerts that it has rules for, with the seconds for which they keep firing."""
        groups = self.get("/api/v1/rules?type=alert")["data"]["groups"]
        return {
            rule["name"]: max(float(rule.get("keepFiringFor") or 0.0), 0.0)
            for group in groups
            for rule in group["rules"]
        }


class AlertmanagerApi(Api):
    """A drill's queries to an Alertmanager of others, which cannot be configured to post to it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "Alertmanager")
        self._known: dict[str, tuple[str, dict[str, str], float]] = {}

    def take(self, now: float) -> list[Notice]:
        """Simulated alerts that it has begun or ceased to hold for active, as notices of their first receiver."""
        found: dict[str, tuple[str, dict[str, str], float]] = {}
        for one in self.get("/api/v2/alerts?filter=simulated%3D%22true%22&silenced=false&inhibited=false"):
            receivers = [receiver["name"] for receiver in one["receivers"]]
            found[one["fingerprint"]] = (receivers[0], one["labels"], parse_time(one["startsAt"]))
        begun = [Notice(found[key][0], now, False, *found[key][1:]) for key in found.keys() - self._known.keys()]
        ended = [Notice(one[0], now, True, *one[1:]) for key, one in self._known.items() if key not in found]
        self._known = found
        return begun + ended


def start_alertmanager(folder: Path, configuration: Mapping[str, Any]) -> tuple[Program, str]:
    """A server of the drill's own on a free port of loopback, and its HOST:PORT. Blocks until it listens.

    Raises:
        DrillError: it is not installed or does not start.
    """
    options = [f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address="]
    return _start("alertmanager", folder, configuration, options)


def start_prometheus(folder: Path, configuration: Mapping[str, Any], pace: Pace) -> tuple[Program, str]:
    """As ``start_alertmanager``."""
    options = [
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--query.lookback-delta={promql_duration(pace.seconds(_LOOKBACK_SECONDS))}",
        f"--rules.alert.resend-delay={promql_duration(pace.seconds(_RESEND_SECONDS))}",
    ]
    return _start("prometheus", folder, configuration, options)


def _start(name: str, folder: Path, configuration: Mapping[str, Any], options: Sequence[str]) -> tuple[Program, str]:
    program = find_program(name)
    file = folder / f"{name}.yml"
    file.write_text(json.dumps(configuration), encoding="utf-8")
    command = [program, f"--config.file={file}", "--web.listen-address=127.0.0.1:0", *options]
    process = Program(command, folder / f"{name}.log")
    try:
        return process, process.wait_for(_LISTENING, _READY_SECONDS)
    except BaseException:
        process.end()
        raise
