"""Errors in the logs of jobs on their way from a run of the source to the page, the log and the state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.jobs.logs.categories import SIDES
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


def errors(category: str, count: int = 1, text: str = "a line", certain: bool = True) -> LogErrors:
    return LogErrors(category, certain, count, "/log/job.log", text)


def waiting(*ranks: int) -> list[LogErrors]:
    """Calls of these ranks that timed out."""
    return [LogErrors("timeout", True, 1, "/log/job.log", "a line", rank=rank) for rank in ranks]


def test_every_category_begins_with_zero(node: Node) -> None:
    """So that the first error of a kind is an increase."""
    node.run()

    assert node.series("nccl_log_errors_total") == {(one,): 0 for one in SIDES}
    assert node.series("nccl_log_incidents_total") == {(one,): 0 for one in SIDES}


def test_a_category_that_is_not_of_the_list_is_other(node: Node) -> None:
    """Whatever a worker names, the labels stay bounded."""
    node.run(errors("unheard_of"))

    assert node.series("nccl_log_errors_total") == {(one,): int(one == "other") for one in SIDES}


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


def test_lines_are_counted_at_once_and_the_incident_when_it_is_over(node: Node) -> None:
    """Only then its likeliest cause is known. Lines of one kind are one, with the first text."""
    assert node.run(errors("timeout", 8)) == []
    assert node.run(errors("ib_retry", 2, "the cause"), errors("timeout"), seconds=30.0) == []
    assert (node.total("errors", "timeout"), node.total("incidents", "ib_retry")) == (9, 0)

    (line,) = node.run(seconds=30.0)
    assert (line["category"], line["text"], line["counts"]) == ("ib_retry", "the cause", {"timeout": 9, "ib_retry": 2})
    assert (node.total("incidents", "ib_retry"), node.total("incidents", "timeout")) == (1, 0)
    assert node.run(seconds=300.0) == []


def test_what_comes_a_minute_later_is_another_incident(node: Node) -> None:
    """It ends the first one and begins its own; a status gives way to the line that names the cause."""
    node.run(errors("cuda"))
    (first,) = node.run(errors("cuda", text="status", certain=False), errors("socket", text="cause"), seconds=60.0)
    (second,) = node.run(seconds=60.0)

    assert (first["category"], second["category"], second["text"]) == ("cuda", "socket", "cause")


def test_a_clock_that_is_set_back_keeps_no_incident_open(node: Node) -> None:
    """It is over at the next run."""
    node.run(errors("cuda"))

    assert len(node.run(seconds=-3600.0)) == 1


def test_lines_are_counted_by_the_adapter_that_they_name_where_this_node_has_it(node: Node) -> None:
    """From 0 on; a log can name any, and one that is gone is forgotten, but not while none is known, as at a start."""
    named = [LogErrors("ib_retry", True, 2, "/log/job.log", "a line", hca) for hca in ("mlx5_1", "mlx5_9", "")]

    def counted(*devices: str) -> dict[tuple[str, ...], Value]:
        node.feed("rdma", {f"{one}:1": {("commwatch_rdma_port_state", (one, "1")): 4} for one in devices})
        node.run(*named)
        return node.series("nccl_log_device_errors_total")

    assert counted() == {}
    assert counted("mlx5_1", "mlx5_0") == {("mlx5_0",): 0, ("mlx5_1",): 2}
    assert counted() == {("mlx5_0",): 0, ("mlx5_1",): 4}
    assert counted("mlx5_0") == {("mlx5_0",): 0}


@pytest.mark.parametrize(
    ("ranks", "gpus", "silent"),
    [
        ({0, 1, 3}, 4, 2),
        ({8, 9, 10, 11, 12, 13, 14}, 8, 7),
        ({0, 1, 2, 3}, 4, None),
        ({0, 1}, 4, None),
        ({1, 2, 4}, 4, None),
        ({0}, 2, None),
        (set(), 0, None),
    ],
)
def test_the_one_rank_that_did_not_complain_is_that_of_a_gpu(
    node: Node, ranks: set[int], gpus: int, silent: int | None
) -> None:
    """Ranks of a node follow each other; not where all complain, several are silent, or they are of two nodes.

    It counts when its incident is over, from 0 on for each GPU, also for one that is gone meanwhile.
    """

    def give(number: int) -> None:
        node.feed("nvml_identity", {
            f"0000:{gpu:x}7:00.0": {("commwatch_nvlink_links", (str(gpu), f"0000:{gpu:x}7:00.0")): 0}
            for gpu in range(number)
        })  # fmt: skip

    give(gpus)
    node.run(*waiting(*ranks))
    assert set(node.series("nccl_log_silent_rank_incidents_total").values()) <= {0}
    give(max(0, gpus - 1))
    node.run(seconds=60.0)

    expected = {(str(gpu),): int(gpu == silent) for gpu in range(gpus)}
    assert node.series("nccl_log_silent_rank_incidents_total") == expected


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
    (line,) = node.run(resume=None, seconds=3600.0)
    assert (line["category"], node.total("errors", "ib_retry")) == ("ib_retry", 2)
    assert node.place == {"nccl_logs": b'{"files": {}}'}


def test_which_logs_are_watched_is_saved_at_once(node: Node) -> None:
    """A crash soon after the first look at a log must not make what is written then look like what was there before."""

    def is_saved_at_once(*names: str, looked: float = 1e9) -> bool:
        before = node.engine.version
        node.run(resume=msgspec.json.encode({"names": names, "looked": looked}))
        return node.engine.version != before

    assert is_saved_at_once("/log/*.log")
    assert not is_saved_at_once("/log/*.log", looked=1e9 + 5.0)
    assert is_saved_at_once("/log/*.log", "/log/new/*.log")
    node.save()
    node.restart()
    assert not is_saved_at_once("/log/*.log", "/log/new/*.log")


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


PORT = "commwatch_rdma_port_state"
LINK = "commwatch_nvlink_link_state"
GPU = ("0", "0000:17:00.0")
NODES: dict[str, dict[str, dict[Any, Value]]] = {
    "nothing is known": {},
    "no RDMA": {"nvml_identity": {("commwatch_gpu_info", (*GPU, "", "", "NVIDIA H100 80GB HBM3", "Hopper")): 1}},
    "ports down": {"rdma": {(PORT, ("mlx5_0", "1")): 1}},
    "ports active": {"rdma": {(PORT, ("mlx5_0", "1")): 4}},
    "GeForce": {
        "rdma": {(PORT, ("mlx5_0", "1")): 4},
        "nvml_identity": {("commwatch_gpu_info", (*GPU, "", "", "NVIDIA GeForce RTX 4090", "Ada")): 1},
    },
    "NVLink": {"nvml_nvlink": {(LINK, (*GPU, "0")): 1}},
}
"""What the collectors read."""


@pytest.mark.parametrize(
    ("kind", "counted"),
    [
        ("ib_disabled", {"ports active", "GeForce"}),
        ("libibverbs_missing", {"ports active", "GeForce"}),
        ("gpudirect_off", {"ports active"}),
        ("p2p_disabled", {"NVLink"}),
        ("adapter_not_opened", set(NODES)),
        ("nvls_lost", set(NODES)),
        ("of_tomorrow", set()),
    ],
)
def test_a_fallback_counts_where_the_node_has_what_the_job_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, counted: set[str]
) -> None:
    """One line of the log each; elsewhere the job is well. It is no error, and the count survives a restart."""
    found = set()
    for number, (name, readings) in enumerate(NODES.items()):
        node = Node(tmp_path / str(number), monkeypatch)
        for collector, values in readings.items():
            node.feed(collector, {"mlx5_0:1" if collector == "rdma" else GPU[1]: values})
        node.run()
        assert set(node.series("nccl_log_transport_fallbacks_total").values()) == {0}
        lines = node.run(LogErrors("ib_setup", True, 1, "/log/job.log", "a line", fallback=kind))
        assert len(lines) == (name in counted)
        if name in counted:
            found.add(name)
            assert (lines[0]["log_level"], lines[0]["kind"], lines[0]["text"]) == ("warning", kind, "a line")
            node.save()
            node.restart()
            node.run()
        assert sum(node.series("nccl_log_transport_fallbacks_total").values()) == (name in counted)  # type: ignore[arg-type]
        assert node.total("errors", "ib_setup") == 0
    assert found == counted
