"""The environment of a drill: the servers, the receiver of pages, and the list of nodes that Prometheus scrapes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from commwatch.caller import temporary_folder
from commwatch.config.assets import asset
from commwatch.config.thresholds import load_thresholds
from commwatch.config.yaml_file import load_rendered
from commwatch.generate.alert_rules import Site, render, render_all, templates
from commwatch_rehearsal.drill.configuration import (
    RECEIVER,
    alertmanager_configuration,
    keep_simulated,
    prometheus_configuration,
)
from commwatch_rehearsal.drill.node import INSTANCES
from commwatch_rehearsal.drill.pace import Pace, paced_thresholds, parse_promql_duration, scaled_rules, scaled_template
from commwatch_rehearsal.drill.programs import DrillError, Program
from commwatch_rehearsal.drill.receiver import Notice, Receiver
from commwatch_rehearsal.drill.servers import (
    AlertmanagerApi,
    PrometheusApi,
    find_program,
    start_alertmanager,
    start_prometheus,
)


@dataclass(frozen=True, slots=True)
class Given:
    """Servers and addresses of the user in place of the drill's own; empty: the drill's own."""

    prometheus: str = ""
    alertmanager: str = ""
    targets: str = ""
    """File that the given Prometheus reads its targets from (``file_sd_configs``)."""
    receiver: str = ""
    """HOST:PORT at which the drill takes notifications of the given Alertmanager."""


def rules_at(pace: Pace) -> dict[str, str]:
    """The shipped files of rules at a pace, by name.

    Raises:
        CommwatchError: the shipped thresholds or templates are damaged.
    """
    thresholds = load_thresholds(None)
    if pace.is_shipped:
        return render_all(thresholds, Site())
    own, of_daemons = thresholds.digest, paced_thresholds(thresholds, pace).digest
    return {
        name: scaled_rules(
            render(scaled_template(template, thresholds, pace), thresholds, Site()).replace(own, of_daemons), pace
        )
        for name, template in templates().items()
    }


def alerts_of(files: Mapping[str, str]) -> dict[str, float]:
    """The alerts of files of rules, with the seconds for which each keeps firing after its fault."""
    rules = [rule for text in files.values() for group in load_rendered(text)["groups"] for rule in group["rules"]]
    return {
        rule["alert"]: parse_promql_duration(rule.get("keep_firing_for", "0s")) for rule in rules if "alert" in rule
    }


class Stage:
    """Prometheus, Alertmanager, receiver and a folder; all of the drill's own are gone after ``close``."""

    def __init__(self, pace: Pace, given: Given) -> None:
        """Start what is not given, but for Prometheus. Blocks for seconds.

        Raises:
            DrillError: something is not installed, does not start or does not answer.
        """
        self.pace = pace
        self.is_given = bool(given.prometheus)
        self.receiver = "" if given.alertmanager else RECEIVER
        """The only receiver that alerts of the drill may go to; empty: a given Alertmanager has names of its own."""
        self._closing = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="commwatch-drill-", dir=temporary_folder()))
        self._closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self._set_up(given)
        except BaseException:
            self.close()
            raise

    def _set_up(self, given: Given) -> None:
        for name, address in (("prometheus", given.prometheus), ("alertmanager", given.alertmanager)):
            if not address:
                find_program(name)  # before anything is started
        self._rules = rules_at(self.pace)
        self.alerts: Mapping[str, float] = alerts_of(self._rules)
        """The alerts that there are rules for, with the seconds for which each keeps firing after its fault."""
        self._receiver: Receiver | None = None
        self._other: AlertmanagerApi | None = None
        self._pages_people = bool(given.alertmanager)
        self._alertmanager = given.alertmanager
        if given.alertmanager:
            self._other = AlertmanagerApi(given.alertmanager)
            self._other.take(0.0)
        if not given.alertmanager or given.receiver:
            self._receiver = self._receive(given.receiver)
        if self._receiver is not None and not given.alertmanager:
            self._alertmanager = self._start_alertmanager(self._receiver.address)
        self._prometheus = PrometheusApi(given.prometheus) if given.prometheus else None
        if self._prometheus is not None:
            self.alerts = self._prometheus.rules()
        self._targets = Path(given.targets) if given.targets else self.folder / "targets.json"
        _refuse_others(self._targets)
        if not self._targets.exists():
            self._closing.callback(self._targets.unlink, missing_ok=True)
        self._scraped: Mapping[str, str] | None = None
        self.set_targets({})
        self._closing.callback(self.set_targets, {})

    def begin(self, addresses: Mapping[str, str]) -> None:
        """Let Prometheus scrape the first nodes; the drill's own starts only now, so that no job is ever absent.

        Raises:
            DrillError: it does not start.
        """
        self.set_targets(addresses)
        if self._prometheus is None:
            self._prometheus = PrometheusApi(self._start_prometheus(self._rules, self._alertmanager))
        self._prometheus.wait_until_ready()

    def _receive(self, address: str) -> Receiver:
        host, _, port = (address or "127.0.0.1:0").rpartition(":")
        try:
            receiver = Receiver(host, int(port))
        except (OSError, ValueError) as error:
            raise DrillError(f"--receiver {address}: {error}") from error
        self._closing.callback(receiver.close)
        return receiver

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
        paging = urlsplit(alertmanager)
        configuration = prometheus_configuration(example, rules, str(self._targets), paging, self.pace)
        if self._pages_people:
            keep_simulated(configuration)
        process, address = start_prometheus(self.folder, configuration, self.pace)
        self._keep(process)
        return f"http://{address}"

    def _keep(self, process: Program) -> None:
        self._closing.callback(process.end)

    def set_targets(self, addresses: Mapping[str, str]) -> None:
        """Let Prometheus scrape these nodes: HOST:PORT by name."""
        if addresses == self._scraped:
            return
        targets = [{"targets": [address], "labels": {"instance": name}} for name, address in addresses.items()]
        new = self._targets.with_suffix(".new")
        try:
            new.write_text(json.dumps(targets), encoding="utf-8")
            new.chmod(0o644)  # a given Prometheus runs as another user
            new.replace(self._targets)
        except OSError as error:
            raise DrillError(f"{self._targets}: {error.strerror}") from error
        self._scraped = dict(addresses)

    @property
    def _api(self) -> PrometheusApi:
        if self._prometheus is None:
            raise RuntimeError("the stage has not begun")
        return self._prometheus

    def scraped(self) -> set[str]:
        """The nodes that Prometheus has scraped."""
        return self._api.scraped()

    def firing(self) -> list[Mapping[str, str]]:
        """The labels of the alerts that fire now."""
        return self._api.firing()

    def notices(self, now: float) -> list[Notice]:
        """The notifications since the last call."""
        if self._receiver is not None:
            return self._receiver.take()
        return self._other.take(now) if self._other is not None else []

    @property
    def versions(self) -> str:
        """Which Prometheus decided."""
        return f"Prometheus {self._api.version()}"

    def close(self) -> None:
        """End what was started, in the opposite order, and remove the folder."""
        self._closing.close()


def _refuse_others(file: Path) -> None:
    """See that a list of targets holds none but those of a drill: it will be overwritten.

    Raises:
        DrillError: it holds others, or cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        known = json.loads(text) if text.strip() else []
        names = [str(one["labels"]["instance"]) for one in known]
    except FileNotFoundError:
        return
    except OSError as error:
        raise DrillError(f"{file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        names = ["of another form"]
    if not all(name.startswith(INSTANCES) for name in names):
        raise DrillError(f"{file} holds targets that are not a drill's; give the drill a file of its own")
