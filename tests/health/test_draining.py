"""A drain by scontrol: when it happens, and every case in which it must not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.diagnosis.health.draining import Drain, drain, why_not_drained
from health.scontrol import NODE, Scontrol, shown

REASON = "commwatch: nvlink_down: GPU0 link 3 (0000:17:00.0/3); and 1 more"


def drained(monkeypatch: pytest.MonkeyPatch, program: Scontrol, deadline: float = 10.0) -> Drain:
    monkeypatch.setenv("PATH", str(program.programs))
    return asyncio.run(drain(NODE, REASON, deadline))


@pytest.mark.parametrize(
    "state",
    ["IDLE", "ALLOCATED", "MIXED", "IDLE+PLANNED", "ALLOCATED+COMPLETING", "IDLE+CLOUD", "MIXED+DYNAMIC_NORM"],
)
def test_an_idle_or_allocated_node_is_drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """One update, with the reason in one argument; nothing else is asked of Slurm."""
    program = Scontrol(tmp_path, shown(state))

    assert drained(monkeypatch, program) == Drain(True, f"node {NODE} is drained")
    assert program.updates == [f"update NodeName={NODE} State=DRAIN Reason={REASON}"]


@pytest.mark.parametrize(
    "state",
    [
        "IDLE+DRAIN", "ALLOCATED+DRAIN", "IDLE*", "IDLE*+DRAIN", "DOWN", "DOWN*", "DOWN+DRAIN", "FUTURE", "UNKNOWN",
        "IDLE+MAINTENANCE", "IDLE+MAINT", "MAINT", "IDLE+RESERVED", "IDLE+REBOOT_REQUESTED", "ALLOCATED+REBOOT_ISSUED",
        "IDLE+FAIL", "FAILING", "IDLE+POWERED_DOWN", "IDLE+POWERING_DOWN", "IDLE+NOT_RESPONDING", "ERROR", "IDLE+",
        "IDLE+BLOCKED", "IDLE+SOMETHING_NEW", "idle",
    ],
)  # fmt: skip
def test_a_node_in_any_other_state_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """Somebody or something else has a hand on it; what a later Slurm calls it refuses as well."""
    program = Scontrol(tmp_path, shown(state))

    answer = drained(monkeypatch, program)

    assert program.updates == []
    assert answer == Drain(False, f"node {NODE} is in state {state}")


@pytest.mark.parametrize("reason", ["bad fan", "commwatch: nvlink_down: GPU1 link 2", "(null) but not quite"])
@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "IDLE+DRAIN"])
def test_a_reason_is_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, reason: str
) -> None:
    """Neither that of a person nor one of ours: what stands there was put there for something."""
    program = Scontrol(tmp_path, shown(state, reason))

    answer = drained(monkeypatch, program)

    assert program.updates == []
    assert not answer.drained
    assert reason in answer.detail


def test_the_node_of_another_host_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration copied to all nodes with the name of one would have all of them drain that one."""
    program = Scontrol(tmp_path, shown(host="gpu-1234"))

    answer = drained(monkeypatch, program)

    assert program.updates == []
    assert "is on gpu-1234 for Slurm" in answer.detail


def test_the_domain_of_a_host_does_not_matter() -> None:
    """Slurm may have either form."""
    assert why_not_drained(shown(host="gpu-7.example.org"), NODE, "GPU-7") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No nodes in the system\n",
        shown(name="gpu-8"),
        shown() + shown(name="gpu-8"),
        shown().replace("NodeHostName", "NodeHost"),
        shown().replace("   State=IDLE ThreadsPerCore=2", "   ThreadsPerCore=2"),
    ],
    ids=["nothing", "no nodes", "another node", "two nodes", "no host", "no state"],
)
def test_what_is_not_clear_drains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """An output of a wrapper, of another version, or of more than one node."""
    program = Scontrol(tmp_path, text)

    assert not drained(monkeypatch, program).drained
    assert program.updates == []


@given(st.text())
def test_no_text_without_this_node_and_host_lets_us_drain(text: str) -> None:
    """And none breaks the parser."""
    assert why_not_drained(text, NODE, "gpu-7") is not None


@pytest.mark.parametrize(
    ("show", "said"),
    [
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact slurm controller"),
        (f"echo 'Node {NODE} not found'; exit 1", "not found"),
        ("kill -9 $$", "scontrol failed"),
    ],
)
def test_a_scontrol_that_fails_drains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: str, said: str
) -> None:
    """Without a look at the node there is no update."""
    program = Scontrol(tmp_path, shown(), show=show)

    answer = drained(monkeypatch, program)

    assert program.updates == []
    assert not answer.drained
    assert said in answer.detail


def test_a_scontrol_that_hangs_drains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up after the deadline."""
    program = Scontrol(tmp_path, shown(), show="/bin/sleep 60")

    answer = drained(monkeypatch, program, deadline=0.5)

    assert program.updates == []
    assert answer == Drain(False, "scontrol gave no answer in 0.5 s")


def test_no_scontrol_drains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert asyncio.run(drain(NODE, REASON, 5.0)) == Drain(False, "scontrol: No such file or directory")


def test_without_time_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's answer took all of it."""
    program = Scontrol(tmp_path, shown())

    assert not drained(monkeypatch, program, deadline=0.0).drained
    assert program.updates == []


def test_an_update_that_slurm_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not root, for one."""
    program = Scontrol(tmp_path, shown(), update="echo 'slurm_update error: Invalid user id' >&2; exit 1")

    answer = drained(monkeypatch, program)

    assert answer == Drain(False, "scontrol failed: slurm_update error: Invalid user id")


def test_an_update_that_hangs_may_have_been_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither said to be drained nor said not to be for sure."""
    program = Scontrol(tmp_path, shown(), update="/bin/sleep 60")

    answer = drained(monkeypatch, program, deadline=2.0)

    assert not answer.drained
    assert answer.detail.endswith("it may have been taken all the same")
