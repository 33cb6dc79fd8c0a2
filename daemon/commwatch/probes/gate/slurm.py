"""Slurm's use of this node, by the cgroups of jobs and the state of the node; and a drain of it where it may be."""

from __future__ import annotations

import os
import re
import socket
import time
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
    name, state, allocated = (_field(text, key) for key in ("NodeName", "State", "AllocTRES"))
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


def _field(text: str, key: str) -> str | None:
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


# --- drain ---

_DRAINED_FROM = frozenset({"IDLE", "ALLOCATED", "MIXED"})
"""Mixed is both: allocated in part."""
_DRAINED_WITH = frozenset({"COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM"})
"""With any other flag (DRAIN, FAIL, MAINT, RESERVED, REBOOT_REQUESTED, POWERING_DOWN, NOT_RESPONDING, ...) the node is
already being managed by a person or a program."""


class Drain(NamedTuple):
    """The result of an attempt to drain a node."""

    drained: bool
    """Slurm has taken our reason."""
    detail: str


def why_not_drained(text: str, name: str, host: str) -> str | None:
    """Why a node must not be drained by us; None where it may be.

    Args:
        text: what ``scontrol show node NAME`` printed.
    """
    node = parse_node(text)
    if node is None or node.name != name or len(re.findall(r"^\s*NodeName=", text, re.MULTILINE)) != 1:
        return f"scontrol said nothing clear of node {name}"
    where = re.search(r"\bNodeHostName=(\S+)", text)
    if where is None or _short(where[1]) != _short(host):
        there = "an unknown host" if where is None else where[1]
        return f"node {name} is on {there} for Slurm, and this is {host}; set probes.slurm_node"
    reason = re.search(r"^\s*Reason=(.*)$", text, re.MULTILINE)
    if reason is not None and reason[1].strip() not in ("", "(null)"):
        return f"node {name} has a reason already: {reason[1].strip()}"
    said = _field(text, "State") or ""
    # A mark such as the * of IDLE* (does not respond) is in no list above, and so refuses too.
    base, *flags = said.split("+")
    if base not in _DRAINED_FROM or not _DRAINED_WITH.issuperset(flags):
        return f"node {name} is in state {said}"
    return None


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


async def drain(name: str, reason: str, deadline: float) -> Drain:
    """Drain the node, if it may be drained; jobs on it go on, and an existing reason is never overwritten.

    Another user may drain it between our check and our change: Slurm has no atomic operation for both.

    Args:
        reason: in plain ASCII, without quotes.
        deadline: seconds for everything.
    """
    until = time.monotonic() + deadline
    try:
        shown = await _scontrol(until, "show", "node", name)
    except NoAnswer as error:
        return Drain(False, str(error))
    if shown.code:
        return Drain(False, f"scontrol failed: {shown.last_error}")
    refusal = why_not_drained(shown.output, name, socket.gethostname())
    if refusal is not None:
        return Drain(False, refusal)
    try:
        answer = await _scontrol(until, "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")
    except NoAnswer as error:
        return Drain(False, f"{error}; it may have been taken all the same")
    if answer.code:
        return Drain(False, f"scontrol failed: {answer.last_error}")
    return Drain(True, f"node {name} is drained")


async def _scontrol(until: float, *arguments: str) -> Answer:
    left = until - time.monotonic()
    if left <= 0:
        raise NoAnswer("no time is left to ask Slurm")
    return await ask(("scontrol", *arguments), clean_environment(os.environ, "SLURM_CONF"), left)
