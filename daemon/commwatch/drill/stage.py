"""What a drill is played on: the servers, the receiver of pages, and the list of nodes that Prometheus scrapes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from commwatch.assets import asset
from commwatch.drill.configuration import alertmanager_configuration, prometheus_configuration
from commwatch.drill.pace import Pace, parse_promql_duration, scaled_rules, scaled_thresholds, thresholds_file
from commwatch.drill.programs import DrillError, Program
from commwatch.drill.receiver import Notice, Receiver
from commwatch.drill.servers import AlertmanagerApi, PrometheusApi, start_alertmanager, start_prometheus
from commwatch.rules import Site, render_all
from commwatch.state import write_atomically
from commwatch.thresholds import load_thresholds


@dataclass(frozen=True, slots=True)
class Given:
    """Servers and addresses of the user in place of the drill's own; empty: the drill's own."""

    prometheus: str = ""
    alertmanager: str = ""
    targets: str = ""
    """File that the given Prometheus reads its targets from (``file_sd_configs``)."""
    receiver: str = ""
    """HOST:PORT at which the drill takes notifications of the given Alertmanager."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules at a pace, and the thresholds that rules and daemons take."""

    files: Mapping[str, str]
    thresholds: str
    """A file of what differs from the shipped thresholds; empty: nothing does."""
    held: Mapping[str, float]
    """Each alert, and the seconds for which it keeps firing after its fault."""


def rules_at(pace: Pace) -> RuleSet:
    """The shipped rules at a pace.

    Raises:
        CommwatchError: the shipped thresholds or rules are damaged.
    """
    shipped = load_thresholds(None)
    templates = {path.name: path.read_text(encoding="utf-8") for path in asset("alerts/templates").glob("*.yaml")}
    thresholds = shipped if pace.is_shipped else scaled_thresholds(shipped, templates, pace)
    files = {name: scaled_rules(text, pace) for name, text in render_all(thresholds, Site()).items()}
    return RuleSet(files, thresholds_file(thresholds, shipped) if thresholds != shipped else "", _held(files.values()))


def _held(files: Any) -> dict[str, float]:
    rules = [rule for text in files for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    return {
        rule["alert"]: parse_promql_duration(rule.get("keep_firing_for", "0s")) for rule in rules if "alert" in rule
    }


class Stage:
    """Prometheus, Alertmanager, receiver and a folder; all of the drill's own are gone after ``close``."""

    def __init__(self, pace: Pace, given: Given) -> None:
        """Start what is not given. Blocks for seconds.

        Raises:
            DrillError: something is not installed, does not start or does not answer.
        """
        self.pace = pace
        self.is_given = bool(given.prometheus)
        self._closing: list[Callable[[], None]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="commwatch-drill-"))
        self._closing.append(lambda: shutil.rmtree(self.folder, ignore_errors=True))
        try:
            self._set_up(given)
        except BaseException:
            self.close()
            raise

    def _set_up(self, given: Given) -> None:
        rules = rules_at(self.pace)
        self.alerts: Mapping[str, float] = rules.held
        self.thresholds = ""
        if rules.thresholds:
            file = self.folder / "thresholds.yaml"
            file.write_text(rules.thresholds, encoding="utf-8")
            self.thresholds = str(file)
        self._targets = Path(given.targets) if given.targets else self.folder / "targets.json"
        self._closing.append(self._forget_targets)
        self.set_targets({})
        self._receiver: Receiver | None = None
        self._other: AlertmanagerApi | None = None
        alertmanager = given.alertmanager
        if not alertmanager or given.receiver:
            self._receiver = self._receive(given.receiver)
        if not alertmanager:
            alertmanager = self._start_alertmanager(self._receiver_address())
        elif self._receiver is None:
            self._other = AlertmanagerApi(alertmanager)
            self._other.take(0.0)
        self._prometheus = PrometheusApi(given.prometheus or self._start_prometheus(rules.files, alertmanager))
        if given.prometheus:
            self.alerts = self._prometheus.rules()

    def _receive(self, address: str) -> Receiver:
        host, _, port = (address or "127.0.0.1:0").rpartition(":")
        try:
            receiver = Receiver(host, int(port))
        except (OSError, ValueError) as error:
            raise DrillError(f"--receiver {address}: {error}") from error
        self._closing.append(receiver.close)
        return receiver

    def _receiver_address(self) -> str:
        return self._receiver.address if self._receiver else ""

    def _start_alertmanager(self, receiver: str) -> str:
        example = asset("alerts/alertmanager.example.yml").read_text(encoding="utf-8")
        configuration = alertmanager_configuration(example, receiver, self.pace)
        process, address = start_alertmanager(self.folder, configuration)
        self._keep(process)
        return f"http://{address}"

    def _start_prometheus(self, files: Mapping[str, str], alertmanager: str) -> str:
        folder = self.folder / "rules"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        example = asset("alerts/prometheus.example.yml").read_text(encoding="utf-8")
        rules = [str(folder / name) for name in files]
        configuration = prometheus_configuration(example, rules, str(self._targets), alertmanager, self.pace)
        process, address = start_prometheus(self.folder, configuration, self.pace)
        self._keep(process)
        return f"http://{address}"

    def _keep(self, process: Program) -> None:
        self._closing.append(process.end)

    def _forget_targets(self) -> None:
        if self._targets.exists():
            self.set_targets({})

    def set_targets(self, addresses: Mapping[str, str]) -> None:
        """Let Prometheus scrape these nodes: HOST:PORT by name."""
        targets = [{"targets": [address], "labels": {"instance": name}} for name, address in addresses.items()]
        try:
            write_atomically(self._targets, json.dumps(targets).encode())
        except OSError as error:
            raise DrillError(f"{self._targets}: {error.strerror}") from error

    def scraped(self) -> set[str]:
        """The nodes that Prometheus has scraped."""
        return self._prometheus.scraped()

    def firing(self) -> list[Mapping[str, str]]:
        """The labels of the alerts that fire now."""
        return [one.labels for one in self._prometheus.firing()]

    def notices(self, now: float) -> list[Notice]:
        """What was notified since the last call."""
        if self._receiver is not None:
            return self._receiver.take()
        return self._other.take(now) if self._other is not None else []

    def close(self) -> None:
        """End what was started, in the opposite order, and remove the folder."""
        while self._closing:
            self._closing.pop()()
