"""A drain by scontrol: when it happens, and every case in which it must not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from health.reports import Node, document, made_node
from health.scontrol import NODE, Scontrol, shown

REASON = "commwatch: nvlink_down: GPU0 link 3 (0000:17:00.0/3)"
Output = pytest.CaptureFixture[str]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """One with a fault of the drain list."""
    return made_node(tmp_path, monkeypatch)


def drained(node: Node, capsys: Output, text: str = "") -> str:
    """What the command says of the drain; by default Slurm shows the node as idle."""
    if text:
        (node.folder / "node").write_text(text)
    assert node.told(document("nvlink_down"), "--slurm", "--drain") == 1
    return capsys.readouterr().out.rstrip("\n").partition("(0000:17:00.0/3); ")[2]


@pytest.mark.parametrize(
    "state",
    ["IDLE", "ALLOCATED", "MIXED", "IDLE+PLANNED", "ALLOCATED+COMPLETING", "IDLE+CLOUD", "MIXED+DYNAMIC_NORM"],
)
def test_an_idle_or_allocated_node_is_drained(node: Node, capsys: Output, state: str) -> None:
    """One update, with the reason in one argument; nothing else is asked of Slurm."""
    assert drained(node, capsys, shown(state)) == f"node {NODE} is drained"
    assert node.slurm.updates == [f"update NodeName={NODE} State=DRAIN Reason={REASON}"]


@pytest.mark.parametrize(
    "state",
    [
        "IDLE+DRAIN", "ALLOCATED+DRAIN", "IDLE*", "IDLE*+DRAIN", "DOWN", "DOWN*", "DOWN+DRAIN", "FUTURE", "UNKNOWN",
        "IDLE+MAINTENANCE", "IDLE+MAINT", "MAINT", "IDLE+RESERVED", "IDLE+REBOOT_REQUESTED", "ALLOCATED+REBOOT_ISSUED",
        "IDLE+FAIL", "FAILING", "IDLE+POWERED_DOWN", "IDLE+POWERING_DOWN", "IDLE+NOT_RESPONDING", "ERROR", "IDLE+",
        "IDLE+BLOCKED", "IDLE+SOMETHING_NEW", "idle",
    ],
)  # fmt: skip
def test_a_node_in_any_other_state_is_left_alone(node: Node, capsys: Output, state: str) -> None:
    """Somebody or something else has a hand on it; what a later Slurm calls it refuses as well."""
    assert drained(node, capsys, shown(state)) == f"not drained: node {NODE} is in state {state}"
    assert node.slurm.updates == []


@pytest.mark.parametrize("reason", ["bad fan", "commwatch: nvlink_down: GPU1 link 2", "(null) but not quite"])
@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "IDLE+DRAIN"])
def test_a_reason_is_never_written_over(node: Node, capsys: Output, state: str, reason: str) -> None:
    """Neither that of a person nor one of ours: what stands there was put there for something."""
    said = drained(node, capsys, shown(state, reason))

    assert said.startswith(f"not drained: node {NODE} has a reason already: {reason}")
    assert node.slurm.updates == []


def test_the_node_of_another_host_is_left_alone(node: Node, capsys: Output) -> None:
    """A configuration copied to all nodes with the name of one would have all of them drain that one."""
    assert "is on gpu-1234 for Slurm" in drained(node, capsys, shown(host="gpu-1234"))
    assert node.slurm.updates == []


def test_the_domain_of_a_host_does_not_matter(node: Node, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm may have either form."""
    monkeypatch.setattr("socket.gethostname", lambda: "GPU-7")

    assert drained(node, capsys, shown(host="gpu-7.example.org")) == f"node {NODE} is drained"


@given(st.text(min_size=1))
@example("\n")
@example("No nodes in the system\n")
@example(shown(name="gpu-8"))
@example(shown() + shown(name="gpu-8"))
@example(shown().replace("NodeHostName", "NodeHost"))
@example(shown().replace("   State=IDLE ThreadsPerCore=2", "   ThreadsPerCore=2"))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_without_one_node_its_host_and_its_state_lets_us_drain(node: Node, capsys: Output, text: str) -> None:
    """An output of a wrapper, of another version, of more than one node, or anything else; none breaks the parser."""
    assert drained(node, capsys, text).startswith("not drained: ")
    assert node.slurm.updates == []


@pytest.mark.parametrize(
    ("show", "said"),
    [
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact slurm controller"),
        (f"echo 'Node {NODE} not found'; exit 1", "not found"),
        ("kill -9 $$", "scontrol failed"),
    ],
)
def test_a_scontrol_that_fails_drains_nothing(
    node: Node, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: str, said: str
) -> None:
    """Without a look at the node there is no update."""
    (tmp_path / "failing").mkdir()
    program = Scontrol(tmp_path / "failing", shown(), show=show)
    monkeypatch.setenv("PATH", str(program.programs))

    answer = drained(node, capsys)

    assert program.updates == []
    assert answer.startswith("not drained: ")
    assert said in answer


def test_no_scontrol_drains_nothing(node: Node, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said."""
    monkeypatch.setenv("PATH", str(node.folder))

    assert drained(node, capsys) == "not drained: scontrol: No such file or directory"


@pytest.mark.parametrize(
    ("seconds", "show", "update", "said"),
    [
        (0.5, "/bin/sleep 60", "", "scontrol gave no answer in 0."),
        (0.0, "", "", "no time is left to ask Slurm"),
        (2.0, "", "/bin/sleep 60", "it may have been taken all the same"),
        (9.0, "", "echo 'slurm_update error: Invalid user id' >&2; exit 1",
         "scontrol failed: slurm_update error: Invalid user id"),
    ],
    ids=["hangs", "the daemon's answer took all the time", "the update hangs", "Slurm refuses"],
)  # fmt: skip
def test_what_slurm_did_not_take_is_not_said_to_be_drained(
    node: Node, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    seconds: float, show: str, update: str, said: str,
) -> None:  # fmt: skip
    """It ends in time."""
    (tmp_path / "slow").mkdir()
    program = Scontrol(tmp_path / "slow", shown(), show=show, update=update)
    monkeypatch.setenv("PATH", str(program.programs))
    monkeypatch.setattr("commwatch.diagnosis.health.check.TOTAL_SECONDS", seconds)

    answer = drained(node, capsys)

    assert answer.startswith("not drained: ")
    assert said in answer
    assert bool(program.updates) is bool(update)
