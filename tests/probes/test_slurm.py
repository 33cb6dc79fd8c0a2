"""Slurm on a node: cgroups of jobs, and a stand-in of scontrol with the same output."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import Duration, Probes
from commwatch.probes.gate.decision import SchedulerAnswer
from commwatch.probes.gate.schedulers import scheduler_facts
from commwatch.workers.process_state import process_state
from support.examples import examples
from support.passes import in_one_pass
from support.waiting import until

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


def ask(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, name: str = "gpu-7", deadline: float = 10.0
) -> SchedulerAnswer:
    """Ask with a program of that name alone on the PATH."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    if script:
        (programs / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    limits = Probes(gate="slurm", slurm_node=name, scheduler_deadline=Duration(deadline))
    (folder / "proc").mkdir(exist_ok=True)
    answer = asyncio.run(scheduler_facts(limits, folder / "proc", folder)).slurm
    assert answer is not None
    return answer


def is_ended(pid: int) -> bool:
    """Whether a process that was killed is gone, or only waits for its parent to notice."""
    return process_state(Path("/proc"), pid) in (None, "Z")


def printing(folder: Path, text: str) -> str:
    (folder / "answer").write_text(text)
    return f"/bin/cat {folder / 'answer'}"


@in_one_pass(
    "text, name, expected",
    [
        (DRAINED, "gn0101", ("free", "")),
        (ALLOCATED, "nid07679", ("busy", "Slurm has node nid07679 in state ALLOCATED")),
        (modern("MIXED+PLANNED", 32, "cpu=32,gres/gpu=8"), "gpu-7",
         ("busy", "Slurm has node gpu-7 in state MIXED+PLANNED")),
        (modern("IDLE", 0, "gres/gpu=2"), "gpu-7", ("busy", "Slurm has allocated gres/gpu=2 of node gpu-7")),
        (modern("IDLE", 1), "gpu-7", ("busy", "Slurm has allocated 1 CPUs of node gpu-7")),
        ("NodeName=gpu-7\n   State=IDLE\n", "gpu-7",
         ("unknown", "scontrol does not say how many CPUs of node gpu-7 are allocated")),
        # A wrapper that ignores the name must not free this node.
        (modern(name="gpu-8"), "gpu-7", ("unknown", "scontrol show node gpu-7 said nothing of that node")),
    ],
)  # fmt: skip
def test_documented_outputs_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, expected: tuple[str, str]
) -> None:
    """Layouts of Slurm 17.11, 20.02 and 24.05; a reason that looks like a field is none."""
    assert ask(tmp_path, monkeypatch, printing(tmp_path, text), name=name) == expected


@examples(15)  # each starts a process
@given(st.one_of(st.sampled_from(["", "Node gpu-7 not found\n", "No nodes in the system\n", "NodeName=gpu-7\n"]),
                 st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)))  # fmt: skip
def test_other_texts_are_no_node(text: str) -> None:
    """Whatever a wrapper prints: they say nothing of an allocation."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        assert ask(Path(name), monkeypatch, printing(Path(name), text)).state == "unknown"


@in_one_pass(
    "state, expected",
    [
        ("IDLE", "free"),
        ("IDLE+DRAIN", "free"),
        ("IDLE*+DRAIN", "free"),
        ("IDLE+PLANNED", "free"),
        ("IDLE+DYNAMIC_NORM", "free"),
        ("IDLE+RESERVED", "free"),
        ("IDLE+COMPLETING", "busy"),
        ("IDLE+MAINTENANCE", "busy"),
        ("MAINT", "busy"),
        ("MIXED", "busy"),
        ("ALLOCATED", "busy"),
        ("ALLOCATED+DRAIN", "busy"),
        ("DOWN*", "busy"),
        ("UNKNOWN", "busy"),
    ],
)
def test_states_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, expected: str) -> None:
    """Only an idle node with nothing allocated and no job that is completing is free; draining does not matter."""
    assert ask(tmp_path, monkeypatch, printing(tmp_path, modern(state, allocated="(null)"))).state == expected


@in_one_pass(
    "folders, jobs",
    [
        (("system.slice/sshd.service/job_1",), ""),
        (("system.slice/slurmstepd.scope/system",), ""),
        (
            ("system.slice/slurmstepd.scope/job_17/step_0", "system.slice/slurmstepd.scope/job_17/step_extern"),
            "Slurm job 17 runs on this node",
        ),
        (
            ("system.slice/node1_slurmstepd.scope/job_17/step_0", "system.slice/node1_slurmstepd.scope/job_18/step_0"),
            "Slurm jobs 17, 18 run on this node",
        ),
        (("cpuset/slurm",), ""),
        (
            ("cpuset/slurm/uid_1000/job_5/step_0", "memory/slurm/uid_1000/job_5/step_0"),
            "Slurm job 5 runs on this node",
        ),
        (
            ("cpuset/slurm_node1/uid_1000/job_5", "freezer/slurm_node1/uid_1001/job_6"),
            "Slurm jobs 5, 6 run on this node",
        ),
    ],
)
def test_jobs_show_as_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: tuple[str, ...], jobs: str
) -> None:
    """Jobs are found over both cgroup versions, each once; scontrol is not even started for them."""
    for folder in folders:
        (tmp_path / "fs/cgroup" / folder).mkdir(parents=True)

    answer = ask(tmp_path, monkeypatch, f"/bin/touch {tmp_path / 'asked'}")

    assert (answer.state == "busy", answer.detail if jobs else "") == (bool(jobs), jobs)
    assert (tmp_path / "asked").exists() == (not jobs)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()


@in_one_pass(
    "configured, command, expected",
    [
        ("gpu-7", ("slurmd", "-N", "other"), "gpu-7"),
        ("", ("/usr/sbin/slurmd", "-D", "-N", "gpu-8"), "gpu-8"),
        ("", ("slurmd", "-Ngpu-9"), "gpu-9"),
        ("", ("slurmd", "-D", "-N"), "host"),
        ("", (), "host"),
    ],
)
def test_the_name_of_this_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str, command: tuple[str, ...], expected: str
) -> None:
    """Configured, else as slurmd was started, else the host's name up to the first dot."""
    monkeypatch.setattr(socket, "gethostname", lambda: "host.example.org")
    process = tmp_path / "proc/100"
    process.mkdir(parents=True, exist_ok=True)
    (process / "comm").write_text("slurmd" if command else "bash")
    (process / "cmdline").write_text("\0".join(command))

    ask(tmp_path, monkeypatch, f'echo "$@" > {tmp_path / "arguments"}', name=configured)

    assert (tmp_path / "arguments").read_text() == f"show node {expected}\n"


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


def test_a_late_scontrol_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left after the deadline, its children included."""
    script = f"/bin/sleep 600 & echo $$ $! > {tmp_path / 'pids'}; wait"

    answer = ask(tmp_path, monkeypatch, script, deadline=0.5)

    assert answer.state == "unknown"
    assert "gave no answer in 0.5 s" in answer.detail
    shell, child = (int(pid) for pid in (tmp_path / "pids").read_text().split())
    until(lambda: is_ended(shell) and is_ended(child))


def test_the_environment_of_scontrol_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a user who starts a probe by hand change neither the format nor the cluster; SLURM_CONF is kept."""
    for name, value in {"SLURM_CONF": "/etc/x.conf", "SLURM_CLUSTERS": "other", "LANG": "de_DE.UTF-8"}.items():
        monkeypatch.setenv(name, value)

    ask(tmp_path, monkeypatch, f'/usr/bin/env > {tmp_path / "environment"}; echo "$@" > {tmp_path / "arguments"}')

    names = {line.partition("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert names - {"PWD", "_", "SHLVL", "OLDPWD", "LD_LIBRARY_PATH"} == {"LC_ALL", "PATH", "SLURM_CONF"}
    assert (tmp_path / "arguments").read_text().split() == ["show", "node", "gpu-7"]
