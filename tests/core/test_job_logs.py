"""Errors in the logs of jobs on their way from a run of the source to the page, the log and the state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from commwatch.jobs.logs.tail import LogsPosition
from commwatch.node.run import Collected
from commwatch.readings import LogErrors, SourceUnavailable
from commwatch_exporters.snapshot import Value
from support.fed_daemon import FedDaemon

RETRY = LogErrors("ib_retry", True, 2, "/log/job.log", "NCCL WARN NET/IB : Got completion with error 12")
TIMEOUT = LogErrors("timeout", True, 8, "/log/job.log", "Watchdog caught collective operation timeout")


class Node(FedDaemon):
    """A daemon that reads the logs of jobs."""

    def run(self, *errors: LogErrors, seconds: float = 5.0, resume: bytes | None = b"{}") -> list[Any]:
        """The log of one run, this number of seconds after the last."""
        found = Collected({}, [], 0.0, log_errors=list(errors), resume=resume)
        return [line for line in self.feed("nccl_logs", found, seconds) if "read again" not in line["event"]]

    def total(self, metric: str, category: str) -> Value:
        return self.value(f"nccl_log_{metric}_total", category)

    @property
    def place(self) -> dict[str, bytes]:
        """From where a new worker goes on."""
        return self.engine.pipeline.job_logs.resume_point


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_errors_are_on_the_page_after_the_run_that_found_them(node: Node) -> None:
    """And nothing is there before the logs were read for the first time."""
    assert node.total("errors", "ib_retry") is None
    node.run()
    assert node.total("errors", "ib_retry") == 0
    node.run(RETRY, TIMEOUT)
    assert (node.total("errors", "ib_retry"), node.total("errors", "timeout")) == (2, 8)


def test_an_incident_is_one_line_of_the_log_with_its_first_culprit(node: Node) -> None:
    """A minute after it began: what to blame, the line that says so, and how much was seen."""
    assert node.run(TIMEOUT, RETRY) == []
    (line,) = node.run(seconds=60.0)

    assert (line["log_level"], line["category"], line["side"]) == ("warning", "ib_retry", "network")
    assert (line["file"], line["text"]) == (RETRY.file, RETRY.text)
    assert line["counts"] == {"timeout": 8, "ib_retry": 2}
    assert (node.total("incidents", "ib_retry"), node.total("incidents", "timeout")) == (1, 0)
    assert node.run() == []


def test_trouble_of_the_program_is_no_warning(node: Node) -> None:
    """The node is not to blame."""
    node.run(LogErrors("crash", True, 1, "/log/job.log", "KeyError: 'x'"))
    (line,) = node.run(seconds=60.0)

    assert line["log_level"] == "info"


def test_totals_and_the_place_in_the_logs_survive_a_restart_together(node: Node) -> None:
    """So nothing is counted twice, and nothing is lost."""
    node.run(RETRY, resume=b'{"files": {}}')
    node.save()
    node.restart()

    assert node.place == {"nccl_logs": b'{"files": {}}'}
    node.run(resume=None)
    assert node.total("errors", "ib_retry") == 2
    assert node.place == {"nccl_logs": b'{"files": {}}'}


def test_which_logs_are_watched_is_saved_at_once(node: Node) -> None:
    """A crash soon after the first look at a log must not make what is written then look like what was there before."""
    position = LogsPosition(("/log/*.log",), looked=1e9)

    def is_saved_at_once(position: LogsPosition) -> bool:
        before = node.engine.version
        node.run(resume=msgspec.json.encode(position))
        return node.engine.version != before

    assert is_saved_at_once(position)
    assert not is_saved_at_once(replace(position, looked=1e9 + 5.0))
    assert is_saved_at_once(replace(position, names=("/log/*.log", "/log/new/*.log")))
    node.save()
    node.restart()
    assert not is_saved_at_once(replace(position, names=("/log/*.log", "/log/new/*.log")))


def test_failed_runs_change_nothing(node: Node) -> None:
    """Also not the place from which a new process goes on."""
    node.run(resume=b'{"files": {}}')
    node.feed("nccl_logs", SourceUnavailable("unreadable", "nothing"))

    assert node.total("errors", "ib_retry") == 0
    assert node.place == {"nccl_logs": b'{"files": {}}'}


@pytest.mark.parametrize("told", [b"\xff", b"[", b'{"files": {"1:2": [-1]}}', b"[" * 100_000], ids=repr)
def test_a_place_in_the_logs_that_is_none_is_not_kept(node: Node, told: bytes) -> None:
    """Whatever a worker tells: the next one goes on from what is one, and so does the next daemon."""
    node.run(resume=b'{"looked": 5.0}')
    (event,) = node.run(resume=told)

    assert event["event"].startswith("how far the logs of jobs were read is not known")
    assert node.place == {"nccl_logs": b'{"looked": 5.0}'}
