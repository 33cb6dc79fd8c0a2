"""What recorded trees of procfs and cgroups say of schedulers and jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.probes.gate import SchedulerFacts
from commwatch.probes.scheduler import initial_pid_namespace, scheduler_facts, slurm_jobs


def processes(procfs: Path, *names: str) -> Path:
    for pid, name in enumerate(names, start=100):
        (procfs / str(pid)).mkdir(parents=True)
        (procfs / str(pid) / "comm").write_text(f"{name}\n")
    (procfs / "uptime").write_text("1 1\n")
    (procfs / "99").mkdir()  # ended meanwhile
    return procfs


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("systemd", "bash"), SchedulerFacts()),
        (("systemd", "slurmd"), SchedulerFacts(slurmd=True)),
        (("slurmctld", "slurmdbd"), SchedulerFacts()),
        (("kubelet",), SchedulerFacts(kubelet=True)),
        (("k3s-agent",), SchedulerFacts(kubelet=True)),
    ],
)
def test_schedulers_are_known_by_their_daemons(
    tmp_path: Path, names: tuple[str, ...], expected: SchedulerFacts
) -> None:
    """slurmd and kubelet are found among the processes; their controllers do not count."""
    assert scheduler_facts(processes(tmp_path / "proc", *names), tmp_path / "sys") == expected


@pytest.mark.parametrize(
    ("folders", "jobs"),
    [
        ((), None),
        (("system.slice/sshd.service",), None),
        (("system.slice/slurmstepd.scope/system",), 0),
        (("system.slice/slurmstepd.scope/job_17/step_0", "system.slice/slurmstepd.scope/job_17/step_extern"), 1),
        (("system.slice/node1_slurmstepd.scope/job_17/step_0", "system.slice/node1_slurmstepd.scope/job_18/step_0"), 2),
        (("cpuset/slurm",), 0),
        (("cpuset/slurm/uid_1000/job_5/step_0", "memory/slurm/uid_1000/job_5/step_0"), 1),
        (("cpuset/slurm_node1/uid_1000/job_5", "freezer/slurm_node1/uid_1001/job_6"), 2),
    ],
)
def test_slurm_jobs_are_counted_once(tmp_path: Path, folders: tuple[str, ...], jobs: int | None) -> None:
    """Jobs are counted by number over both cgroup versions; without any cgroup of Slurm nothing is known."""
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)

    assert slurm_jobs(tmp_path) == jobs


@pytest.mark.parametrize(
    ("target", "expected"), [("pid:[4026531836]", True), ("pid:[4026532451]", False), (None, None)]
)
def test_the_nodes_own_pid_namespace(tmp_path: Path, target: str | None, expected: bool | None) -> None:
    """The first PID namespace has a fixed number; another one hides processes."""
    (tmp_path / "self/ns").mkdir(parents=True)
    if target is not None:
        (tmp_path / "self/ns/pid").symlink_to(target)

    assert initial_pid_namespace(tmp_path) is expected
