"""A simulated node of a drill: its daemon, its faults, and its findings."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import yaml

from commwatch.children import own_module
from commwatch.cluster.node_report import CHECK_OPERATION, OPERATION, CheckReport, NodeReport
from commwatch.config.simulated import node_name
from commwatch.config.thresholds import load_thresholds
from commwatch.state.client import hand_to_daemon
from commwatch.state.directory import write_atomically
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.pace import Pace, collector_intervals, thresholds_file
from commwatch_rehearsal.drill.programs import Program

INSTANCES = "drill-"
"""With which the names of all nodes of drills begin."""
_ANSWER_SECONDS = 5.0
_PROBE_DELAY_SECONDS = 1.0
_RUNS_THAT_NAME = 2
_READY = r'"msg": "ready"[^\n]*(\n|$)'
_PARTS = re.compile(r'^commwatch_(expected|present)\{kind="(\w+)"\} (\S+)$', re.MULTILINE)
_ADDRESS = r'"msg": "serving"[^\n]*"addresses": \["([^"]+)"'


def node_configuration(drill: Drill, pace: Pace) -> dict[str, Any]:
    configuration: dict[str, Any] = {"inventory": {"learn_after": f"{pace.learn_seconds:g}s"}}
    if intervals := collector_intervals(pace):
        configuration["sources"] = intervals
    if drill.probes:
        configuration["probes"] = {
            "start_delay": f"{_PROBE_DELAY_SECONDS + pace.seconds(drill.probes_from):g}s",
            "definitions": {
                name: {"interval": f"{pace.probe_seconds:g}s", **settings} for name, settings in drill.probes.items()
            },
        }
    else:
        configuration["probes"] = {"enabled": False}
    return configuration


Entries: TypeAlias = Sequence[Mapping[str, str]]
"""Of a file of faults, without the times at which they begin and end."""


def fault_file(entries: Entries, since: float | None, until: float | None = None, always: Entries = ()) -> bytes:
    """A file of faults.

    Its entries stay in it after their end: an entry that is taken out has never happened, and its counters would fall.

    Args:
        entries: the faults of a drill.
        since: seconds since 1970; None: the start of the node.
        until: their end, for those that do not say how long they hold; None: not yet.
        always: entries that hold since the node started.
    """
    rows = [{**one, "at": "0s"} for one in always]
    for one in entries:
        end = {} if until is None or "for" in one else {"until": _date(until)}
        rows.append({**one, "at": "0s" if since is None else _date(since), **end})
    return yaml.safe_dump(rows).encode()


def _date(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def report_of(named: Entries, now: float) -> NodeReport:
    """The report of a run between nodes on a node of a drill.

    Args:
        named: the parts that it names.
        now: seconds since 1970.

    Raises:
        msgspec.ValidationError: a part cannot be.
    """
    suspicions = [{"element": one["kind"], **one, "fault": one["symptom"], "direction": "both"} for one in named]
    for one in suspicions:
        del one["symptom"]
    document = {
        "run": secrets.token_hex(16), "finished_at": now, "outcome": "completed", "engine": "drill",
        "backend": "simulated", "nodes": 4, "rails": [{"rail": 0, "device": "gpu0"}],
        "suspicions": [{**one, "ratio": float(one["ratio"]) if "ratio" in one else None} for one in suspicions],
    }  # fmt: skip
    return msgspec.convert(document, NodeReport)


def check_of(causes: Sequence[str], now: float) -> CheckReport:
    """The report of a check on a node of a drill.

    Args:
        causes: for which it blames the node.
        now: seconds since 1970.

    Raises:
        msgspec.ValidationError: a check has no such cause.
    """
    document = {"run": secrets.token_hex(16), "finished_at": now, "outcome": "completed", "causes": causes}
    return msgspec.convert(document, CheckReport)


class Node:
    """One daemon over one simulated node."""

    def __init__(self, name: str, drill: Drill, pace: Pace, folder: Path) -> None:
        """Start its daemon; ``folder`` is made for it."""
        self.name = name
        self.address = ""
        """HOST:PORT of the daemon; empty until it serves for the first time."""
        self._drill = drill
        self._folder = folder
        folder.mkdir()
        self._faults = folder / "faults.yaml"
        self._write(fault_file(drill.faults if drill.first_day else (), None, always=drill.under))
        configuration = node_configuration(drill, pace)
        self._log = folder / "job.log"
        if drill.log:
            self._log.touch()
            configuration.setdefault("sources", {}).setdefault("nccl_logs", {})["paths"] = [str(self._log)]
        if not pace.is_shipped:
            configuration["thresholds"] = str(folder / "thresholds.yaml")
            text = thresholds_file(load_thresholds(None), pace)
            (folder / "thresholds.yaml").write_text(text, encoding="utf-8")
        (folder / "commwatch.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
        self._starts = 0
        self._program = self._start()

    def _start(self) -> Program:
        self._starts += 1
        return Program(
            own_module(
                "commwatch", "run",
                "--web.listen-address", "127.0.0.1:0",
                "--path.state", str(self._folder / "state"),
                "--simulate", self._drill.preset,
                "--simulate.faults", str(self._faults),
                "--config.file", str(self._folder / "commwatch.yaml"),
                "--log.format", "json",
            ),
            self._folder / f"daemon-{self._starts}.log",
        )  # fmt: skip

    def is_ready(self) -> bool:
        """Whether its daemon serves, and knows what the node should have; on a first day that is the fault.

        Raises:
            DrillError: the daemon has ended.
        """
        if self._program.said(_READY) is None:
            return False
        self.address = self._program.said(_ADDRESS) or ""
        values = self._inventory()
        present = {kind: value for (what, kind), value in values.items() if what == "present" and value > 0}
        knows = all(values.get(("expected", kind)) == one for kind, one in present.items())
        return "gpu" in present and (knows or self._drill.first_day)

    def begin(self, at: float) -> None:
        """Let the faults of the drill begin."""
        if self._drill.stopped:
            self._program.ask_to_end()
            return
        self._write(fault_file(self._drill.faults, at, always=self._drill.under))
        if self._drill.log:
            self._log.write_text("".join(f"{line}\n" for line in self._drill.log), encoding="utf-8")
        for _ in range(_RUNS_THAT_NAME):
            self._hand_in(self._drill.between_nodes, self._drill.checked)

    def _hand_in(self, named: Entries, causes: Sequence[str]) -> None:
        """Hand in the results of the drill's runs and checks for the node, as a member on it does."""
        state = self._folder / "state" / f"simulated-{node_name(self._drill.preset)}"
        if self._drill.between_nodes:
            hand_to_daemon(state, OPERATION, report_of(named, time.time()))
        if self._drill.checked:
            hand_to_daemon(state, CHECK_OPERATION, check_of(causes, time.time()))

    def finish(self, since: float, at: float) -> None:
        """Let the faults of the drill end; a daemon that was stopped starts again, at another address."""
        if self._drill.stopped:
            self._program.end()
            self._program = self._start()
        else:
            began_at = None if self._drill.first_day else since
            self._write(fault_file(self._drill.faults, began_at, at, self._drill.under))
            self._hand_in((), ())

    def findings(self) -> list[str]:
        """The codes of the findings that are open now and of their causes; none where the daemon does not answer."""
        try:
            found = json.loads(self._get("/api/v1/findings"))["findings"]
        except (OSError, ValueError, http.client.HTTPException):
            return []
        return sorted({one["code"] for finding in found for one in (finding, *finding["causes"])})

    def ask_to_end(self) -> None:
        """Tell its daemon to end, without waiting for it."""
        self._program.ask_to_end()

    def has_ended(self) -> bool:
        """Whether its daemon runs no more."""
        return self._program.has_ended()

    def end(self) -> None:
        """End its daemon. Blocks until it is gone."""
        self._program.end()

    def remove(self) -> None:
        """Remove its folder, which has a tree of thousands of files. Blocks for a second or more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, content: bytes) -> None:
        write_atomically(self._faults, content)

    def _get(self, path: str) -> str:
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def _inventory(self) -> Mapping[tuple[str, str], float]:
        """How many parts of each kind are there, and how many should be; empty while the daemon does not answer."""
        try:
            page = self._get("/metrics")
        except (OSError, http.client.HTTPException):
            return {}
        return {(name, kind): float(value) for name, kind, value in _PARTS.findall(page)}
