"""Slurm's use of this node, by the cgroups of jobs and the state of the node."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from commwatch.children import clean_environment
from commwatch.probes.gate.decision import SchedulerAnswer
from commwatch.workers.one_shot import Answer, NoAnswer, ask

_JOB = re.compile(r"job_\d+")
_FIELD = r"^\s*{}=(\S*)"
"""A field that begins a line of ``scontrol show node``; reasons and comments come after all fields that are read."""
_MARKS = "*~#!%$@^-+"
"""Suffixes of the base state: not responding, powered down, rebooting, ..."""
_NOT_FREE_FLAGS = frozenset({"COMPLETING", "MAINT", "MAINTENANCE"})
"""A job's processes or its epilogue are still here; or the node is under maintenance."""
_LEGACY_CONTROLLERS = ("freezer", "cpuset", "memory", "devices", "cpuacct", "cpu", "pids")
"""Of cgroup v1; Slurm makes its tree beneath those that it is configured to use."""


class NodeState(NamedTuple):
    """A node's state by ``scontrol show node``."""

    name: str
    base: str
    """``IDLE``, ``ALLOCATED``, ``MIXED``, ``DOWN``, ..."""
    flags: frozenset[str]
    """``DRAIN``, ``COMPLETING``, ``PLANNED``, ..."""
    allocated_cpus: int | None
    allocated: str
    """``AllocTRES``: ``cpu=32,gres/gpu=8``; empty where nothing is allocated."""


def parse_node(text: str) -> NodeState | None:
    """The one node of an output of ``scontrol show node NAME``; None where it is not that.

    Source: ``slurm_sprint_node_table`` of Slurm 17.11 to 25.11.
    """
    name, state, allocated = (field_of(text, key) for key in ("NodeName", "State", "AllocTRES"))
    if not name or not state:
        return None
    base, *flags = state.split("+")
    cpus = re.search(r"\bCPUAlloc=(\d+)\b", text)
    return NodeState(
        name=name,
        base=base.rstrip(_MARKS).upper(),
        flags=frozenset(flag.rstrip(_MARKS).upper() for flag in flags),
        allocated_cpus=int(cpus[1]) if cpus else None,
        allocated="" if allocated in (None, "(null)") else allocated,
    )


def field_of(text: str, key: str) -> str | None:
    """The value of a field that begins a line of ``scontrol show node``; None without it."""
    found = re.search(_FIELD.format(key), text, re.MULTILINE)
    return found[1] if found else None


def judge_node(node: NodeState) -> SchedulerAnswer:
    """Free where the node is idle with nothing allocated and nothing of a job left; draining does not matter."""
    state = "+".join((node.base, *sorted(node.flags)))
    held = node.flags & _NOT_FREE_FLAGS
    if node.base != "IDLE" or held:
        return SchedulerAnswer("busy", f"Slurm has node {node.name} in state {state}")
    if node.allocated_cpus or node.allocated:
        what = node.allocated or f"{node.allocated_cpus} CPUs"
        return SchedulerAnswer("busy", f"Slurm has allocated {what} of node {node.name}")
    if node.allocated_cpus is None:
        return SchedulerAnswer("unknown", f"scontrol does not say how many CPUs of node {node.name} are allocated")
    return SchedulerAnswer("free")


def job_cgroups(cgroups: Path) -> frozenset[str]:
    """Names (``job_17``) of the Slurm jobs with a step on this node, from the cgroups that Slurm makes for them.

    cgroup v2: ``system.slice/[NODE_]slurmstepd.scope/job_N``; v1: ``CONTROLLER/slurm[_NODE]/uid_N/job_N``. An
    allocation without any step is not seen, nor any job where ``ProctrackType`` makes no cgroups. Lists a few folders.
    """
    found: set[str] = set()
    for scope in _folders(cgroups / "system.slice"):
        if scope.endswith("slurmstepd.scope"):
            found.update(_folders(cgroups / "system.slice" / scope))
    for controller in _LEGACY_CONTROLLERS:
        for root in _folders(cgroups / controller):
            if root == "slurm" or root.startswith("slurm_"):
                for user in _folders(cgroups / controller / root):
                    found.update(_folders(cgroups / controller / root / user))
    return frozenset(name for name in found if _JOB.fullmatch(name))


def _folders(path: Path) -> list[str]:
    with suppress(OSError), os.scandir(path) as entries:  # there is none, or it has just gone
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def node_name(configured: str, slurmd_command: Sequence[str] = ()) -> str:
    """The name of this node in Slurm.

    Args:
        configured: ``probes.slurm_node``; empty where nothing is configured.
        slurmd_command: command line of the slurmd that runs here; ``-N`` names the node where it is not the host's.
    """
    if configured:
        return configured
    for place, word in enumerate(slurmd_command):
        if word == "-N" and place + 1 < len(slurmd_command):
            return slurmd_command[place + 1]
        if word.startswith("-N") and len(word) > len("-N"):
            return word[len("-N") :]
    return socket.gethostname().partition(".")[0]


async def ask_slurm(cgroups: Path, name: str, deadline: float) -> SchedulerAnswer:
    """Whether Slurm has a job on this node.

    Args:
        deadline: seconds for ``scontrol``.
    """
    jobs = job_cgroups(cgroups)
    if jobs:
        return SchedulerAnswer("busy", f"{_named(jobs)} on this node")
    environment = clean_environment(os.environ, "SLURM_CONF")
    try:
        answer = await ask(("scontrol", "show", "node", name), environment, deadline)
    except NoAnswer as error:
        return SchedulerAnswer("unknown", _unasked(error))
    return _judge(answer, name)


def _judge(answer: Answer, name: str) -> SchedulerAnswer:
    node = parse_node(answer.output) if answer.code == 0 else None
    if node is not None and node.name == name:
        return judge_node(node)
    if "not found" in answer.output + answer.errors:
        detail = (
            f"Slurm shows us no node {name}; set probes.slurm_node to the name of this node (or PrivateData hides it)"
        )
        return SchedulerAnswer("unknown", detail)
    if answer.code:
        return SchedulerAnswer("unknown", f"scontrol failed: {answer.last_error}; see that slurmctld can be reached")
    return SchedulerAnswer("unknown", f"scontrol show node {name} said nothing of that node")


def _unasked(error: NoAnswer) -> str:
    if error.missing:
        cure = "add its folder" if os.geteuid() else "add its folder, which root alone must be able to change"
        return f"scontrol is not in the PATH of this process, so an allocation could not be seen; {cure}"
    return f"{error}; see that slurmctld can be reached, or raise probes.scheduler_deadline"


def _named(jobs: Iterable[str]) -> str:
    numbers = sorted(int(job.removeprefix("job_")) for job in jobs)
    more = f" and {len(numbers) - _NAMED_JOBS} more run" if len(numbers) > _NAMED_JOBS else ""
    shown = ", ".join(map(str, numbers[:_NAMED_JOBS]))
    plural = len(numbers) > 1
    return f"Slurm job{'s' if plural else ''} {shown}{more or (' run' if plural else ' runs')}"


_NAMED_JOBS = 4
