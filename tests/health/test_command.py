"""`commwatch healthcheck` against stand-ins of the daemon's control socket and of scontrol."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.__main__ import main
from commwatch.config.settings import Config
from commwatch.diagnosis.health import check
from commwatch.diagnosis.health.counts import read_counts
from health.reports import Node, answering, daemon_saying, document, made_node
from health.scontrol import NODE
from support.infiniband import add_device, add_port
from support.waiting import PATIENCE_SECONDS

Output = pytest.CaptureFixture[str]
LISTED = "nvlink_down"
UNLISTED = "probe_bandwidth_low"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    # Of a busy machine: what the kernel shows is asked by an interpreter that first has to start.
    monkeypatch.setattr(check, "KERNEL_SECONDS", PATIENCE_SECONDS)
    return made_node(tmp_path, monkeypatch)


SLURM = ("--slurm", "--drain")


def test_a_healthy_node(node: Node, capsys: Output) -> None:
    """One line and 0; nothing is counted, nothing drained."""
    assert node.told(document()) == 0
    assert capsys.readouterr().out == "OK: no warning or critical finding\n"
    assert node.told(document(), *SLURM) == 0
    assert capsys.readouterr().out == "OK: no warning or critical finding; nothing on the drain list\n"
    assert (node.counts, node.slurm.updates) == ({}, [])


def test_a_problem_for_a_detector(node: Node, capsys: Output) -> None:
    """Exit code 1, one line that says what and where."""
    assert node.told(document(LISTED, UNLISTED)) == 1
    assert capsys.readouterr().out == "Critical: NVLink is down: GPU0 link 3 (0000:17:00.0/3); and 1 more\n"
    assert node.slurm.updates == []


@pytest.mark.parametrize("answer", [document(LISTED), document(UNLISTED, cause=LISTED)], ids=["finding", "cause"])
def test_a_fresh_fault_of_the_drain_list_drains(node: Node, capsys: Output, answer: dict[str, Any]) -> None:
    """Also where it stands as the cause of a symptom; the line says so, and the code is 1."""
    assert node.told({**answer, **_now(answer)}, *SLURM) == 1

    assert capsys.readouterr().out.endswith(f"GPU0 link 3 (0000:17:00.0/3); node {NODE} is drained\n")
    reason = "commwatch: nvlink_down: GPU0 link 3 (0000:17:00.0/3)"
    assert node.slurm.updates == [f"update NodeName={NODE} State=DRAIN Reason={reason}"]


def _now(answer: dict[str, Any]) -> dict[str, Any]:
    """The same answer given now: parameters are made before the first test runs."""
    shift = time.time() - answer["time"]
    moved = msgspec.json.decode(msgspec.json.encode(answer))
    for one in moved["findings"]:
        for part in (one, *one["causes"]):
            part["last_seen"] += shift
    return {**moved, "time": moved["time"] + shift, "looked_at": moved["looked_at"] + shift}


def test_without_drain_nothing_is_asked_of_slurm(node: Node) -> None:
    """The exit code alone says it."""
    assert node.told(document(LISTED), "--slurm") == 1
    assert node.slurm.updates == []


def test_drain_alone_is_wrong_use(node: Node, capsys: Output) -> None:
    """For a detector nothing is ever drained."""
    assert node.told(document(LISTED), "--drain") == 2
    assert capsys.readouterr().out == "Unknown: --drain needs --slurm\n"
    assert node.slurm.updates == []


UNKNOWN: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "stale": (lambda: document(LISTED, age=61.0), "stale"),
    "of the future": (lambda: document(LISTED, age=-60.0), "stale"),
    "paused": (lambda: document(LISTED, maintenance="driver-upgrade"), "paused"),
    "simulated": (lambda: document(LISTED, simulated="h100x8"), "simulated"),
    "just started": (lambda: document(LISTED, looked_at=None), "not_looked_yet"),
    "failing rule": (lambda: document(failing_rules=["down"]), "not_read"),
    "blind": (lambda: document("collector_failing"), "not_read"),
    "another schema": (lambda: {**document(LISTED), "schema": "commwatch-findings/2"}, "no_answer"),
    "no document": (lambda: {"hello": 1}, "no_answer"),
    "an error": (lambda: {"error": "no"}, "no_answer"),
}


@pytest.mark.parametrize("case", UNKNOWN)
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_what_is_unknown_drains_nothing_and_is_counted(node: Node, capsys: Output, case: str, closed: bool) -> None:
    """Exit code 0 for Slurm, 1 with --fail-closed; even then nothing is drained."""
    answer, because = UNKNOWN[case]

    code = node.told(answer(), *SLURM, *(["--fail-closed"] if closed else []))

    assert code == (1 if closed else 0)
    assert capsys.readouterr().out.startswith("Unknown: ")
    assert node.slurm.updates == []
    assert node.counts == {because: 1}


def test_without_a_daemon_slurm_is_told_unknown(node: Node, capsys: Output) -> None:
    """Exit code 0, counted, nothing drained."""
    assert node.check(*SLURM) == 0
    assert capsys.readouterr().out.startswith("Unknown: no commwatch daemon runs with the state directory")
    assert (node.counts, node.slurm.updates) == ({"no_daemon": 1}, [])


def pci_device(sysfs: Path, address: str, **attributes: str) -> None:
    """A network adapter on the bus of a host bridge."""
    home = sysfs / "bus/pci/devices" / address
    home.mkdir(parents=True)
    for name, text in {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021", **attributes}.items():
        (home / name).write_text(text + "\n")


def test_without_a_daemon_the_kernel_can_show_a_fault(node: Node, capsys: Output) -> None:
    """A problem for a detector; for Slurm it stays unknown, drains nothing, and is named."""
    fatal = "Undefined 0\nDLP 2\nTOTAL_ERR_FATAL 2"
    pci_device(node.folder / "sys", "0000:17:00.0", aer_dev_fatal=fatal)

    assert node.check() == 1
    said = "Critical: Fatal PCIe error: PCIe link of nic 0000:17:00.0; fatal errors since the boot, reported by"
    assert capsys.readouterr().out.startswith(said)
    assert node.check(*SLURM) == 0
    assert "the kernel shows: Fatal PCIe error" in capsys.readouterr().out
    assert node.slurm.updates == []


def test_without_a_daemon_no_fault_is_no_health(node: Node, capsys: Output) -> None:
    """The kernel knows nothing of NVLinks and bandwidth: unknown, with its own exit code."""
    pci_device(node.folder / "sys", "0000:17:00.0")

    assert node.check() == 2
    assert "sysfs and the kernel log show no fault" in capsys.readouterr().out


@pytest.mark.parametrize(("exclude", "facts"), [([], ["rdma_port_down"]), (["mlx5_0"], []), (["0000:18:*"], [])])
def test_without_a_daemon_a_port_that_the_settings_leave_out_is_not_read(
    node: Node, capsys: Output, exclude: list[str], facts: list[str]
) -> None:
    """As the daemon leaves it out: by name or by the address of its adapter."""
    add_port(add_device(node.folder / "sys"), attributes={"state": "1: DOWN"})
    settings = node.folder / "commwatch.yaml"
    told = json.loads(settings.read_text())
    settings.write_text(json.dumps({**told, "sources": {**told["sources"], "rdma": {"exclude": exclude}}}))

    assert node.check("--json") == 2
    assert [fact["code"] for fact in json.loads(capsys.readouterr().out)["kernel"]] == facts


def test_a_simulated_node_without_a_daemon_is_not_sought_in_this_kernel(node: Node, capsys: Output) -> None:
    """What is wrong here would be said of a node that does not exist."""
    pci_device(node.folder / "sys", "0000:17:00.0", aer_dev_fatal="TOTAL_ERR_FATAL 2")

    assert node.check("--simulate", "h100x8") == 2
    assert "fatal" not in capsys.readouterr().out


def test_whoever_asks_a_simulated_node_drains_nothing(node: Node) -> None:
    """Also where its daemon does not say that it is simulated."""
    own = node.state / "simulated-h100x8"

    with daemon_saying(own, document(LISTED)):
        assert node.check(*SLURM, "--simulate", "h100x8") == 0
    assert node.slurm.updates == []
    assert read_counts(own) == {"simulated": 1}


def silent(connection: socket.socket) -> None:
    """Reads and never answers."""
    while connection.recv(1024):
        pass


def dripping(connection: socket.socket) -> None:
    """Sends a byte now and then, so that no single wait is long."""
    for _ in range(200):
        connection.sendall(b" ")
        time.sleep(0.05)


@pytest.mark.parametrize("answer", [silent, dripping])
def test_a_daemon_that_does_not_answer_is_not_waited_for(
    node: Node, capsys: Output, answer: Callable[[socket.socket], None]
) -> None:
    """Unknown within 5 s, counted, nothing drained."""
    with answering(node.state, answer):
        assert node.check(*SLURM) == 0

    assert "did not answer within 1.5 s" in capsys.readouterr().out
    assert (node.counts, node.slurm.updates) == ({"no_answer": 1}, [])


def test_all_waits_together_fit_into_five_seconds() -> None:
    """Of the worst case half a second is for the end of a child that was killed, and the rest for the start."""
    assert check.DAEMON_SECONDS + check.KERNEL_SECONDS <= check.TOTAL_SECONDS
    assert check.TOTAL_SECONDS + 0.5 < 4.5


def test_a_look_may_be_as_old_as_asked_for(node: Node) -> None:
    """--max-age takes a duration."""
    assert node.told(document(LISTED, age=61.0), "--slurm", "--max-age", "2h") == 1


def test_json_holds_everything(node: Node, capsys: Output) -> None:
    """Schema, verdict, what the daemon said, and what became of the drain."""
    assert node.told(document(UNLISTED, cause=LISTED), *SLURM, "--json") == 1

    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema"], printed["verdict"], printed["exit_code"]) == ("commwatch-health/1", "Critical", 1)
    assert [(one["code"], one["is_cause"], one["calls_for_drain"]) for one in printed["findings"]] == [
        (UNLISTED, False, False),
        (LISTED, True, True),
    ]
    assert printed["drain"] == {"drained": True, "detail": f"node {NODE} is drained"}
    assert printed["time"] >= printed["looked_at"] + 4
    assert (printed["because"], printed["counted"]) == (None, None)


def test_json_of_an_unknown(node: Node, capsys: Output) -> None:
    """The reason in one word, and whether it was counted."""
    assert node.told(document(maintenance="upgrade"), "--json") == 2

    printed = json.loads(capsys.readouterr().out)
    assert (printed["verdict"], printed["because"], printed["counted"]) == ("Unknown", "paused", True)
    assert printed["maintenance"] == "upgrade"
    assert printed["drain"] is None


def test_a_defect_is_unknown(node: Node, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised: 0 for Slurm, 2 for a detector, counted, nothing drained."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a defect\nof ours")

    monkeypatch.setattr(check, "judge", broken)

    assert node.told(document(LISTED), *SLURM) == 0
    assert capsys.readouterr().out == "Unknown: ZeroDivisionError: a defect of ours\n"
    assert node.told(document(LISTED)) == 2
    assert (node.counts, node.slurm.updates) == ({"error": 2}, [])


def test_a_defect_outside_of_the_judgement_is_unknown(
    node: Node, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in the state directory of the command line."""

    def broken(config: Config) -> Path:
        raise RuntimeError("no idea where")

    monkeypatch.setattr(check, "state_path", broken)

    assert node.check("--slurm") == 0
    assert capsys.readouterr().out == "Unknown: RuntimeError: no idea where\n"
    assert node.check("--slurm", "--fail-closed") == 1
    assert node.counts == {"error": 2}


def test_a_drain_that_breaks_is_said(node: Node, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding is a problem whatever becomes of the drain."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(check, "find_daemons", broken)

    assert node.told(document(LISTED), *SLURM) == 1
    assert "; not drained: ZeroDivisionError: a defect" in capsys.readouterr().out
    assert node.slurm.updates == []


@pytest.mark.parametrize(
    "wrong",
    [["--typo"], ["--max-age", "soon"], ["--max-age", "0s"], ["--max-a", "1m"], ["surplus"], ["--config.file", "/no"]],
    ids=" ".join,
)
def test_wrong_use_is_unknown(node: Node, capsys: Output, wrong: list[str]) -> None:
    """A misspelt option in a prolog must not drain the cluster, nor a configuration that cannot be read."""
    assert node.check("--slurm", *wrong) == 0
    assert capsys.readouterr().out.startswith("Unknown: ")
    assert node.check(*wrong) == 2
    assert node.check("--slurm", "--fail-closed", *wrong) == 1
    assert node.counts == {"error": 3}


def test_wrong_use_with_json_is_json(node: Node, capsys: Output) -> None:
    """Whoever parses it gets the same document."""
    assert node.check("--slurm", "--json", "--typo") == 0
    assert json.loads(capsys.readouterr().out)["because"] == "error"


def test_help_is_no_error(node: Node, capsys: Output) -> None:
    """It exits 0 and counts nothing."""
    assert node.check("--help") == 0
    assert "--fail-closed" in capsys.readouterr().out
    assert node.counts == {}


@pytest.mark.parametrize(("arguments", "code"), [(("--slurm",), 0), ((), 2), (("--slurm", "--fail-closed"), 1)])
def test_a_line_that_cannot_be_written_is_unknown(
    node: Node, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int
) -> None:
    """A full disk behind standard output: nobody was told why."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)

        assert node.told(document(LISTED), *arguments) == code


def test_what_cannot_be_counted_changes_nothing(node: Node, capsys: Output) -> None:
    """A check without the right to write says so on standard error."""
    missing = str(node.folder / "missing")

    assert main(["healthcheck", "--slurm", "--path.state", missing]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Unknown: no commwatch daemon")
    assert said.err.startswith("commwatch healthcheck: not counted: ")
    assert not Path(missing).exists()
