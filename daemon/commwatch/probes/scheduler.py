"""What the node shows of its schedulers: their daemons in procfs, the jobs of Slurm in its cgroups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from commwatch.probes.gate import SchedulerFacts

_KUBELETS = frozenset({"kubelet", "k3s-server", "k3s-agent"})
_JOB = re.compile(r"job_\d+")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel gives the namespace that it boots with this number (PROC_PID_INIT_INO)."""


def scheduler_facts(procfs: Path, sysfs: Path) -> SchedulerFacts:
    """Which schedulers run here, and how many Slurm jobs; reads every ``/proc/PID/comm``, so not in the event loop."""
    names = set(_process_names(procfs))
    return SchedulerFacts(
        slurmd="slurmd" in names, kubelet=not names.isdisjoint(_KUBELETS), slurm_jobs=slurm_jobs(sysfs / "fs/cgroup")
    )


def slurm_jobs(cgroups: Path) -> int | None:
    """Slurm jobs with a step on this node, from the cgroups that Slurm makes for them; None where it makes none.

    cgroup v2: ``system.slice/[NODE_]slurmstepd.scope/job_N``; v1: ``CONTROLLER/slurm[_NODE]/uid_N/job_N``. An
    allocation without any step is not seen.
    """
    scopes = list(cgroups.glob("system.slice/*slurmstepd.scope"))
    roots = [path for path in cgroups.glob("*/slurm*") if path.is_dir() and path.parent.name != "system.slice"]
    if not scopes and not roots:
        return None
    folders = [path for scope in scopes for path in scope.glob("job_*")]
    folders += [path for root in roots for path in root.glob("uid_*/job_*")]
    return len({path.name for path in folders if _JOB.fullmatch(path.name)})


def initial_pid_namespace(procfs: Path) -> bool | None:
    """Whether we are in the node's own PID namespace; None where that cannot be told."""
    try:
        return os.readlink(procfs / "self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return None


def _process_names(procfs: Path) -> Iterator[str]:
    for process in procfs.iterdir():
        if process.name.isdigit():
            with suppress(OSError):  # ended meanwhile
                yield (process / "comm").read_text(errors="replace").strip()
