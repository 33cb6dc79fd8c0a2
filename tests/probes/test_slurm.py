"""What Slurm says of a node: cgroups of jobs, texts of ``scontrol show node``, and a stand-in of that program."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.probes.gate.decision import SchedulerAnswer
from commwatch.probes.gate.slurm import NodeState, ask_slurm, job_cgroups, judge_node, node_name, parse_node
from commwatch.workers.process_state import process_state
from support.passes import in_one_pass

# Layout as of Slurm 17.11.
DRAINED = """\
NodeName=gn0101 Arch=x86_64 CoresPerSocket=18
   CPUAlloc=0 CPUErr=0 CPUTot=36 CPULoad=0.43
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=gpu:8
   NodeAddr=gn0101 NodeHostName=gn0101 Version=17.11
   OS=Linux 3.10.0-862.el7.x86_64 #1 SMP Fri Apr 20 16:44:24 UTC 2018
   RealMemory=772437 AllocMem=0 FreeMem=534061 Sockets=2 Boards=1
   CoreSpecCount=2 CPUSpecList=0-1 MemSpecLimit=1024
   State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=SlurmDefault
   BootTime=2018-10-16T20:45:48 SlurmdStartTime=2018-11-08T21:14:33
   CfgTRES=cpu=36,mem=772437M,billing=36,gres/gpu=8
   AllocTRES=
   CapWatts=n/a
   CurrentWatts=0 LowestJoules=0 ConsumedJoules=0
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
   Reason=node-switch [root@2018-11-23T12:49:03]
"""
# Layout as of Slurm 20.02.
ALLOCATED = """\
NodeName=nid07679 Arch=x86_64 CoresPerSocket=16
   CPUAlloc=64 CPUTot=64 CPULoad=64.00
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=craynetwork:4
   NodeAddr=nid07679 NodeHostName=nid07679 Version=20.02.6
   OS=Linux 4.12.14-150.17_5.0.91-cray_ari_c #1 SMP Wed May 27 02:24:01 UTC 2020 (6b16d42)
   RealMemory=128803 AllocMem=128448 FreeMem=123036 Sockets=2 Boards=1
   State=ALLOCATED ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=workq,72hours
   CfgTRES=cpu=64,mem=128803M,billing=64
   AllocTRES=cpu=64,mem=128448M
"""


def modern(state: str = "IDLE", cpus: int = 0, allocated: str = "", name: str = "gpu-7") -> str:
    """The layout from Slurm 22.05 to 25.11, with the lines that matter and those that could mislead."""
    return f"""\
NodeName={name} Arch=x86_64 CoresPerSocket=48
   CPUAlloc={cpus} CPUEfctv=192 CPUTot=192 CPULoad=2.72
   AvailableFeatures=h100
   ActiveFeatures=h100
   Gres=gpu:h100:8(S:0-1)
   NodeAddr={name} NodeHostName={name} Version=24.05.2
   OS=Linux 5.15.0-91-generic #101-Ubuntu SMP Tue Nov 14 13:30:08 UTC 2023
   RealMemory=2000000 AllocMem=0 FreeMem=1522117 Sockets=2 Boards=1
   State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=h100
   BootTime=2026-10-16T20:45:48 SlurmdStartTime=2026-11-08T21:14:33
   CfgTRES=cpu=192,mem=2000000M,billing=192,gres/gpu=8
   AllocTRES={allocated}
   CurrentWatts=0 AveWatts=0
   Reason=State=ALLOCATED
       State=DOWN [root@2026-11-23T12:49:03]
"""


def test_documented_outputs_are_understood() -> None:
    """Layouts of Slurm 17.11, 20.02 and 24.05; a reason that looks like a field is none."""
    assert parse_node(DRAINED) == NodeState("gn0101", "IDLE", frozenset({"DRAIN"}), 0, "")
    assert parse_node(ALLOCATED) == NodeState("nid07679", "ALLOCATED", frozenset(), 64, "cpu=64,mem=128448M")
    assert parse_node(modern("MIXED+PLANNED", 32, "cpu=32,gres/gpu=8")) == NodeState(
        "gpu-7", "MIXED", frozenset({"PLANNED"}), 32, "cpu=32,gres/gpu=8"
    )


@pytest.mark.parametrize("text", ["", "Node gpu-7 not found\n", "No nodes in the system\n", "NodeName=gpu-7\n"])
def test_other_texts_are_no_node(text: str) -> None:
    """They say nothing of an allocation."""
    assert parse_node(text) is None


@given(st.text(max_size=300))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Whatever a wrapper prints, the answer is a node with a name or none."""
    node = parse_node(text)

    assert node is None or node.name


@in_one_pass(
    "state, cpus, allocated, expected",
    [
        ("IDLE", 0, "", "free"),
        ("IDLE", 0, "(null)", "free"),
        ("IDLE+DRAIN", 0, "", "free"),
        ("IDLE*+DRAIN", 0, "", "free"),
        ("IDLE+PLANNED", 0, "", "free"),
        ("IDLE+DYNAMIC_NORM", 0, "", "free"),
        ("IDLE+RESERVED", 0, "", "free"),
        ("IDLE", 1, "", "busy"),
        ("IDLE", 0, "gres/gpu=2", "busy"),
        ("IDLE+COMPLETING", 0, "", "busy"),
        ("IDLE+MAINTENANCE", 0, "", "busy"),
        ("MAINT", 0, "", "busy"),
        ("MIXED", 32, "cpu=32,gres/gpu=8", "busy"),
        ("ALLOCATED", 192, "cpu=192", "busy"),
        ("ALLOCATED+DRAIN", 192, "cpu=192", "busy"),
        ("DOWN*", 0, "", "busy"),
        ("UNKNOWN", 0, "", "busy"),
    ],
)
def test_states_of_a_node(state: str, cpus: int, allocated: str, expected: str) -> None:
    """Only an idle node with nothing allocated and no job that is completing is free; draining does not matter."""
    node = parse_node(modern(state, cpus, allocated))

    assert node is not None
    assert judge_node(node).state == expected


def test_a_node_whose_allocation_is_not_told_is_not_known_to_be_free() -> None:
    """An output without CPUAlloc is of no version that is known."""
    node = parse_node("NodeName=gpu-7\n   State=IDLE\n")

    assert node is not None
    assert judge_node(node).state == "unknown"


@pytest.mark.parametrize(
    ("folders", "jobs"),
    [
        ((), set()),
        (("system.slice/sshd.service/job_1",), set()),
        (("system.slice/slurmstepd.scope/system",), set()),
        (
            ("system.slice/slurmstepd.scope/job_17/step_0", "system.slice/slurmstepd.scope/job_17/step_extern"),
            {"job_17"},
        ),
        (
            ("system.slice/node1_slurmstepd.scope/job_17/step_0", "system.slice/node1_slurmstepd.scope/job_18/step_0"),
            {"job_17", "job_18"},
        ),
        (("cpuset/slurm",), set()),
        (("cpuset/slurm/uid_1000/job_5/step_0", "memory/slurm/uid_1000/job_5/step_0"), {"job_5"}),
        (("cpuset/slurm_node1/uid_1000/job_5", "freezer/slurm_node1/uid_1001/job_6"), {"job_5", "job_6"}),
    ],
)
def test_jobs_show_as_cgroups(tmp_path: Path, folders: tuple[str, ...], jobs: set[str]) -> None:
    """Jobs are found over both cgroup versions, each once."""
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)

    assert job_cgroups(tmp_path) == jobs


@pytest.mark.parametrize(
    ("configured", "command", "expected"),
    [
        ("gpu-7", ("slurmd", "-N", "other"), "gpu-7"),
        ("", ("/usr/sbin/slurmd", "-D", "-N", "gpu-8"), "gpu-8"),
        ("", ("slurmd", "-Ngpu-9"), "gpu-9"),
        ("", ("slurmd", "-D", "-N"), "host"),
        ("", (), "host"),
    ],
)
def test_the_name_of_this_node(
    monkeypatch: pytest.MonkeyPatch, configured: str, command: tuple[str, ...], expected: str
) -> None:
    """Configured, else as slurmd was started, else the host's name up to the first dot."""
    monkeypatch.setattr(socket, "gethostname", lambda: "host.example.org")

    assert node_name(configured, command) == expected


# --- a stand-in of scontrol ---


def ask(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, name: str = "gpu-7", deadline: float = 10.0
) -> SchedulerAnswer:
    """Ask with a program of that name alone on the PATH."""
    programs = folder / "bin"
    programs.mkdir()
    if script:
        (programs / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return asyncio.run(ask_slurm(folder / "cgroup", name, deadline))


def ended(pid: int) -> bool:
    """Whether a process that was killed is gone, or only waits for its parent to notice."""
    give_up = time.monotonic() + 5
    while process_state(Path("/proc"), pid) not in (None, "Z"):
        if time.monotonic() > give_up:
            return False
    return True


def printing(folder: Path, text: str) -> str:
    (folder / "answer").write_text(text)
    return f"/bin/cat {folder / 'answer'}"


def test_an_idle_node_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cgroup of a job, and nothing allocated."""
    assert ask(tmp_path, monkeypatch, printing(tmp_path, modern())) == ("free", "")


def test_an_allocation_without_a_step_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """salloc has no cgroup before the first srun."""
    answer = ask(tmp_path, monkeypatch, printing(tmp_path, modern("MIXED", 32, "cpu=32,gres/gpu=8")))

    assert answer == ("busy", "Slurm has node gpu-7 in state MIXED")


def test_a_step_is_seen_without_the_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cgroup is enough; scontrol is not even started."""
    (tmp_path / "cgroup/system.slice/slurmstepd.scope/job_17/step_0").mkdir(parents=True)

    answer = ask(tmp_path, monkeypatch, f"/bin/touch {tmp_path / 'asked'}")

    assert answer == ("busy", "Slurm job 17 runs on this node")
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "scontrol is not in the PATH"),
        ("echo 'slurm_load_node error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
         "Unable to contact slurm controller"),
        ("echo 'Node gpu-7 not found'; exit 1", "set probes.slurm_node"),
        ("exit 0", "said nothing of that node"),
        ("kill -9 $$", "scontrol failed"),
    ],
)  # fmt: skip
def test_a_scheduler_that_gives_no_answer_is_not_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    """Each way of failing is unknown, and says what to do."""
    answer = ask(tmp_path, monkeypatch, script)

    assert answer.state == "unknown"
    assert said in answer.detail


def test_the_answer_of_another_node_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapper that ignores the name must not free this node."""
    answer = ask(tmp_path, monkeypatch, printing(tmp_path, modern(name="gpu-8")))

    assert answer.state == "unknown"


def test_a_late_scontrol_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left after the deadline, its children included."""
    script = f"/bin/sleep 60 & echo $$ $! > {tmp_path / 'pids'}; wait"

    answer = ask(tmp_path, monkeypatch, script, deadline=0.5)

    assert answer.state == "unknown"
    assert "gave no answer in 0.5 s" in answer.detail
    shell, child = (int(pid) for pid in (tmp_path / "pids").read_text().split())
    assert ended(shell)
    assert ended(child)


def test_the_environment_of_scontrol_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a user who starts a probe by hand change neither the format nor the cluster; SLURM_CONF is kept."""
    for name, value in {"SLURM_CONF": "/etc/x.conf", "SLURM_CLUSTERS": "other", "LANG": "de_DE.UTF-8"}.items():
        monkeypatch.setenv(name, value)

    ask(tmp_path, monkeypatch, f'/usr/bin/env > {tmp_path / "environment"}; echo "$@" > {tmp_path / "arguments"}')

    names = {line.partition("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert names - {"PWD", "_", "SHLVL", "OLDPWD", "LD_LIBRARY_PATH"} == {"LC_ALL", "PATH", "SLURM_CONF"}
    assert (tmp_path / "arguments").read_text().split() == ["show", "node", "gpu-7"]
