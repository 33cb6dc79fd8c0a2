"""Asks the node's schedulers: which of them run here, and whether they have given the node to a job."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from commwatch.config.settings import Probes
from commwatch.probes.gate.decision import SchedulerAnswer, SchedulerFacts
from commwatch.probes.gate.kubelet import ask_kubelet
from commwatch.probes.gate.slurm import ask_slurm, node_name
from commwatch.sources.files import parse_users

_KUBELETS = frozenset({"kubelet", "k3s-server", "k3s-agent"})
_SLURMD = "slurmd"
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel gives the namespace that it boots with this number (PROC_PID_INIT_INO)."""


class Daemons(NamedTuple):
    slurmd: tuple[str, ...] = ()
    """Its command line; empty where it does not run."""
    kubelet: bool = False


async def scheduler_facts(limits: Probes, procfs: Path, sysfs: Path) -> SchedulerFacts:
    """Reports of the schedulers that the gate requires, within ``limits.scheduler_deadline``."""
    if limits.gate in ("idle", "off"):
        return SchedulerFacts()
    daemons = await asyncio.to_thread(find_daemons, procfs)

    async def slurm() -> SchedulerAnswer | None:
        if limits.gate != "slurm" and not (limits.gate == "auto" and daemons.slurmd):
            return None
        name = node_name(limits.slurm_node, daemons.slurmd)
        return await ask_slurm(sysfs / "fs/cgroup", name, limits.scheduler_deadline)

    async def kubernetes() -> SchedulerAnswer | None:
        if limits.gate != "kubernetes" and not (limits.gate == "auto" and daemons.kubelet):
            return None
        return await ask_kubelet(Path(limits.kubelet_socket), limits.scheduler_deadline)

    return SchedulerFacts(*await asyncio.gather(slurm(), kubernetes()))


def find_daemons(procfs: Path) -> Daemons:
    """The schedulers' daemons among the processes; reads every ``/proc/PID/comm``, so not in the event loop.

    Any user can call a process slurmd, and name another node on its command line: one of root comes before it.
    """
    slurmd: tuple[str, ...] = ()
    of_root = kubelet = False
    for process in procfs.iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):  # ended meanwhile
            name = (process / "comm").read_text(errors="replace").strip()
            if name == _SLURMD and not of_root and ((is_root := _is_of_root(process)) or not slurmd):
                slurmd, of_root = _command_line(process), is_root
            kubelet = kubelet or name in _KUBELETS
    return Daemons(slurmd, kubelet)


def _is_of_root(process: Path) -> bool:
    """By the kernel's word: the owner of its files in procfs is root's for any process that wants no core dump."""
    with suppress(OSError):
        users = parse_users((process / "status").read_bytes())
        return users is not None and users.effective == 0
    return False


def _command_line(process: Path) -> tuple[str, ...]:
    with suppress(OSError):  # ended meanwhile, or not to be read by us
        words = (process / "cmdline").read_text(errors="replace").split("\0")
        return tuple(word for word in words if word) or (_SLURMD,)
    return (_SLURMD,)


def initial_pid_namespace(procfs: Path) -> bool | None:
    """Whether we are in the node's own PID namespace; None where that cannot be known."""
    try:
        return os.readlink(procfs / "self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return None
