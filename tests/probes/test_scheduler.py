"""Which schedulers run here, and which of them the gate has asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

from commwatch.config.settings import Duration, Probes
from commwatch.probes.gate.schedulers import Daemons, find_daemons, initial_pid_namespace, scheduler_facts

Gate: TypeAlias = Literal["auto", "slurm", "kubernetes", "idle", "off"]


def processes(procfs: Path, *names: str) -> Path:
    for pid, name in enumerate(names, start=100):
        (procfs / str(pid)).mkdir(parents=True)
        (procfs / str(pid) / "comm").write_text(f"{name}\n")
    procfs.mkdir(exist_ok=True)
    (procfs / "uptime").write_text("1 1\n")
    (procfs / "99").mkdir()  # ended meanwhile
    return procfs


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("systemd", "bash"), Daemons()),
        (("systemd", "slurmd"), Daemons(slurmd=("slurmd",))),
        (("slurmctld", "slurmdbd"), Daemons()),
        (("kubelet",), Daemons(kubelet=True)),
        (("k3s-agent",), Daemons(kubelet=True)),
        (("slurmd", "k3s-server"), Daemons(slurmd=("slurmd",), kubelet=True)),
    ],
)
def test_schedulers_are_known_by_their_daemons(tmp_path: Path, names: tuple[str, ...], expected: Daemons) -> None:
    """slurmd and kubelet are found among the processes; their controllers do not count."""
    assert find_daemons(processes(tmp_path / "proc", *names)) == expected


def test_a_user_cannot_name_another_node_in_the_place_of_slurmd(tmp_path: Path) -> None:
    """One that calls itself slurmd, with a lower number and the name of an idle node, gives way to that of root."""
    procfs = processes(tmp_path / "proc", "slurmd", "slurmd", "slurmd")
    for pid, uid, node in (("100", 1000, "idle-node"), ("101", 0, "gpu-7"), ("102", 1000, "idle-node")):
        (procfs / pid / "status").write_text(f"Name:\tslurmd\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (procfs / pid / "cmdline").write_bytes(f"slurmd\0-N\0{node}\0".encode())

    assert find_daemons(procfs).slurmd == ("slurmd", "-N", "gpu-7")


@pytest.mark.parametrize(
    ("gate", "names", "asked"),
    [
        ("auto", (), set()),
        ("auto", ("slurmd",), {"slurm"}),
        ("auto", ("kubelet",), {"kubernetes"}),
        ("auto", ("slurmd", "kubelet"), {"slurm", "kubernetes"}),
        ("slurm", (), {"slurm"}),
        ("slurm", ("kubelet",), {"slurm"}),
        ("kubernetes", ("slurmd",), {"kubernetes"}),
        ("idle", ("slurmd", "kubelet"), set()),
        ("off", ("slurmd", "kubelet"), set()),
    ],
)
def test_the_gate_says_who_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, names: tuple[str, ...], asked: set[str]
) -> None:
    """``auto`` asks whom it sees, a named gate that one whether seen or not, ``idle`` nobody."""
    monkeypatch.setenv("PATH", str(tmp_path))  # no scontrol
    limits = Probes(gate=gate, kubelet_socket=str(tmp_path / "none.sock"), scheduler_deadline=Duration(5))

    facts = asyncio.run(scheduler_facts(limits, processes(tmp_path / "proc", *names), tmp_path / "sys"))

    answers = {"slurm": facts.slurm, "kubernetes": facts.kubernetes}
    assert {name for name, answer in answers.items() if answer is not None} == asked
    assert all(answer is None or answer.state == "unknown" for answer in answers.values())


@pytest.mark.parametrize(
    ("target", "expected"), [("pid:[4026531836]", True), ("pid:[4026532451]", False), (None, None)]
)
def test_the_nodes_own_pid_namespace(tmp_path: Path, target: str | None, expected: bool | None) -> None:
    """The first PID namespace has a fixed number; another one hides processes."""
    (tmp_path / "self/ns").mkdir(parents=True)
    if target is not None:
        (tmp_path / "self/ns/pid").symlink_to(target)

    assert initial_pid_namespace(tmp_path) is expected
