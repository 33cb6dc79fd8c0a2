"""What the endpoint shows to whoever reaches it, as SECURITY.md decides, and who may change anything."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from commwatch.service.api import Answers
from commwatch.state.client import ask_daemon
from commwatch.state.directory import SOCKET_NAME
from commwatch.views.node_page.page import NodePage
from commwatch.views.node_page.records import Status
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.snapshot import Snapshot
from commwatch_exporters.web import Endpoint
from support.daemon import Daemon, running
from support.passes import in_one_pass
from support.simulated_daemon import rehearsed

PRIVATE = {
    "command line": ("train.py", "corpus", "python3 "),
    "user": ("/home/user", "alice", "user@", "run-of-user"),
    "job": ("job_4711", "slurmstepd", "4711"),
    "value of a setting": ("eth-of-alice", "65537"),
    "name that a job made up": ("NCCL_ALICE",),
    "path of a job": ("secret-folder", "epoch7.log", "checkpoint", "/scratch"),
    "text of a log": ("Traceback", "corrupted shared memory"),
    "peer of a job": ("10.20.30.40", "other-host-of-alice"),
    "process": ("4100000", "4100001"),
    "environment": ("word-of-the-environment",),
    "configuration": ("site-of-alice.yaml", "faults-of-alice.yaml"),
}
"""What the job of the node below has, and its daemon, which is for nobody else."""
FAULTS = """
- {fault: job, at: 0s}
- {fault: nccl_setting, at: 0s, variable: NCCL_BUFFSIZE, value: '65537'}
- {fault: nccl_setting, at: 0s, variable: NCCL_SOCKET_IFNAME, value: eth-of-alice}
- {fault: nccl_setting, at: 0s, variable: NCCL_ALICE, value: '/scratch/alice'}
- {fault: xid, gpu: 1, xid: 31, at: 0s}
"""
LOG = (
    "node1:77:88 [0] NCCL INFO alice@node1 opens /scratch/alice/checkpoint\n"
    "node1:77:88 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.20.30.40<4791> with "
    "status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_0\n"
    "node1:77:88 [0] NCCL WARN Connect to other-host-of-alice<4000> failed : Connection refused\n"
    "[rank0]: Traceback (most recent call last): File /home/user/train.py\n"
    "[rank0]: RuntimeError: corrupted shared memory of /scratch/alice/checkpoint\n"
)


class Seen:
    """Every page of a daemon, as a stranger sees it."""

    def __init__(self, daemon: Daemon) -> None:
        self.pages = {path: daemon.get(path) for path in paths()}
        (self.state,) = daemon.state.glob("simulated-*")
        self.operations = str(_error_of(self.state)).partition("known: ")[2].split(", ")


def paths() -> list[str]:
    """All that the endpoint serves."""
    answers = Answers(None)  # type: ignore[arg-type]  # nobody is asked
    pages = NodePage(lambda: Snapshot(()), lambda: Status("1"), "/metrics").pages()
    metrics = MetricsPage(lambda: Snapshot(()))
    endpoint = Endpoint(metrics=metrics, pages=pages, documents=answers.pages())
    return sorted(endpoint.paths)


def _error_of(state: Path) -> Exception:
    with pytest.raises(Exception, match="unknown operation") as raised:
        ask_daemon(state, "no-such-operation")
    return raised.value


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """A node with a job, its log, a log that cannot be read, an Xid; and a state directory that others can reach."""
    # pytest's own folders are closed to all others, whatever the daemon does.
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        logs = folder / "secret-folder"
        logs.mkdir()
        (logs / "epoch7.log").touch()
        (logs / "circle.log").symlink_to("circle.log")
        faults, config = folder / "faults-of-alice.yaml", folder / "site-of-alice.yaml"
        faults.write_text(FAULTS)
        names = ", ".join(f"{logs}/{name}" for name in ("epoch7.log", "circle.log"))
        config.write_text(
            f"probes: {{enabled: false}}\nsources: {{nccl_logs: {{paths: [{names}], interval: 500ms}}, "
            "kernel_log: {interval: 500ms}}\n"
        )
        arguments = ("--config.file", str(config), "--simulate", "a10x2", "--simulate.faults", str(faults))
        with running(folder, *arguments, WORD="word-of-the-environment") as daemon:
            (logs / "epoch7.log").write_text(LOG)  # what stood there before is old
            daemon.until(lambda: (daemon.value("nccl_setting_read_processes") or 0) == 2)
            daemon.until(lambda: sum(daemon.series("nccl_log_errors_total").values()) >= 1)
            daemon.until(lambda: daemon.series("gpu_xid_events_total"))
            daemon.until(lambda: "(the log of the daemon names it)" in daemon.get("/")[1])
            assert "circle.log" in daemon.log_file.read_text()
            yield Seen(daemon)
    finally:
        shutil.rmtree(folder)


def test_every_page_is_there(seen: Seen) -> None:
    """The walk below goes through all of them, and none is empty."""
    assert {"/", "/still", "/metrics", "/api/v1/findings", "/api/v1/snapshot"} <= set(seen.pages)
    assert {status for status, _ in seen.pages.values()} == {200}
    assert "commwatch_nccl_setting_processes" in seen.pages["/metrics"][1]
    assert "commwatch_gpu_job_info" not in "".join(body for _, body in seen.pages.values())  # jobs.identity is off


@in_one_pass("kind", PRIVATE)
def test_nothing_of_a_user_is_on_any_page(seen: Seen, kind: str) -> None:
    """Neither page nor API nor metric has a command line, a user, a value of a setting, a path or a line of a log."""
    found = {(path, word) for path, (_, body) in seen.pages.items() for word in PRIVATE[kind] if _shows(body, word)}

    assert found == set()


def _shows(body: str, word: str) -> bool:
    """A number as a whole, and not as the value of a series: counters have any digits in them."""
    if not word.isdecimal():
        return word in body
    without_values = re.sub(r'(?m)^((?:commwatch|process)_\w+(?:\{.*\})?) \S+$|"value":[^,}]*', r"\1", body)
    return bool(re.search(rf"(?<![\d.]){word}(?![\d.])", without_values))


@in_one_pass(
    "body, shown",
    [
        ('commwatch_x_total{job="a b"} 4711\n', False), ("commwatch_x_total 4711\n", False), ("0.4711 147112", False),
        ('"value":4711}', False), ('commwatch_x_total{job="4711"} 1\n', True), ('"job":"4711"', True),
        ("<td>job 4711</td>", True),
    ],
)  # fmt: skip
def test_a_number_is_seen_wherever_it_is_no_value(body: str, shown: bool) -> None:
    """A counter may have the number of a job by chance; a label or a text that has it reveals the job."""
    assert _shows(body, "4711") == shown


def test_nothing_of_a_user_is_in_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the evidence either, after the minutes that a finding takes."""
    log = "".join(f"2026-01-01 10:0{minute}:00 {line}\n" for minute in range(1, 5) for line in LOG.splitlines())
    with rehearsed("a10x2", tmp_path, monkeypatch, FAULTS, log) as node:
        node.until(6)
        codes = {one.code for one in node.verdict.findings}
        shown = "".join(give().decode() for give in node.answers.pages().values())

    assert {"nccl_errors", "nccl_setting_harmful"} <= codes
    assert {word for words in PRIVATE.values() for word in words if _shows(shown, word)} == set()


def test_no_page_changes_anything(seen: Seen) -> None:
    """What the control socket has and the endpoint has not changes something, or is about the processes of jobs."""
    read = {path.rpartition("/")[2] for path in seen.pages}
    assert set(seen.operations) - read == {
        "cluster-check", "cluster-report", "inventory", "inventory-accept", "jobs", "maintenance", "score", "settings",
    }  # fmt: skip


def _may_ask(state: Path, user: int, group: int) -> bool:
    """Whether a process of a user can reach the control socket; each in a child, as there is no way back to root."""
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(state / SOCKET_NAME))
        except PermissionError:
            os._exit(1)
        except BaseException:
            os._exit(2)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0


STRANGER, OTHER_GROUP = 65534, 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_the_control_socket_is_for_the_user_of_the_daemon_and_its_group(seen: Seen) -> None:
    """Nobody else reaches it: not through its folder, nor where that was opened to all."""
    owner = seen.state.stat()
    assert (stat.S_IMODE(owner.st_mode), stat.S_IMODE((seen.state / SOCKET_NAME).stat().st_mode)) == (0o750, 0o660)
    seen.state.parent.chmod(0o755)
    assert _may_ask(seen.state, STRANGER, owner.st_gid)
    assert not _may_ask(seen.state, STRANGER, OTHER_GROUP)
    seen.state.chmod(0o755)
    assert not _may_ask(seen.state, STRANGER, OTHER_GROUP)
