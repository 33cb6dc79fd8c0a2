"""How a rank process is started: on which Python, and in an environment made from nothing."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from commwatch.caller import search_path
from commwatch.children import own_module
from commwatch.probes.cycle.guard import FOLDER_VARIABLE, PARENT_VARIABLE
from commwatch.probes.plan import CyclePlan
from commwatch.probes.rank_plan import INSTALL_TORCH, Backend


def rank_command(backend: Backend, python: str) -> Sequence[str]:
    """Command line of a rank: on another interpreter where it imports torch and one is named, else on the daemon's own.

    Args:
        python: ``probes.python``; empty where none is named.
    """
    if python and backend in ("nccl", "gloo"):
        return (python, str(Path(__file__).with_name("rank_elsewhere.py")))
    return own_module("commwatch.probes.cycle.rank")


def why_no_torch(python: str) -> str:
    """The known reason why ranks cannot import torch, with its remedy; empty if there is none.

    Args:
        python: ``probes.python``; only a rank that runs on it can find out whether it has torch.
    """
    if not python:
        return "" if importlib.util.find_spec("torch") is not None else f"torch is not installed; {INSTALL_TORCH}"
    if not os.path.isfile(python):
        return f"probes.python: there is no {python}"
    return "" if os.access(python, os.X_OK) else f"probes.python: {python} may not be executed by this user"


_INHERITED = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")

_TORCH = {
    # Communicators block, as is torch's default: without that, NCCL 2.26 hangs now and then (pytorch issue 153960).
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "100",
    # Newer torch warns of the old name of the buffer, older torch knows no other.
    "TORCH_FR_BUFFER_SIZE": "100",
}

OWN_NCCL_SETTINGS = frozenset({"NCCL_RAS_ENABLE", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"})
"""That every rank has from us."""

_SHARED_GPU = {
    # NCCL refuses two ranks of one host on one GPU, so each is a host of its own, and they meet over the loopback.
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
}


SHARING = ("NCCL_MULTI_RANK_GPU_ENABLE", "1")
"""The setting by which NCCL from 2.30.3 on lets ranks of one host share a GPU: they meet on it."""


_ONE_RAIL = {
    # The rank's data leave by the adapter of its rail alone, or by a socket where NCCL cannot use it.
    "NCCL_CROSS_NIC": "0",
    "NCCL_PXN_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
}


def rank_environment(plan: CyclePlan, rank: int, folder: Path, own: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of one rank.

    NCCL still reads /etc/nccl.conf, as the jobs of this node do.

    Args:
        folder: the cycle's private folder; home and temporary folder of the rank.
        own: the daemon's environment; a few names are taken from it.
    """
    environment = {name: own[name] for name in _INHERITED if name in own}
    environment |= {
        "PATH": search_path(own),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        PARENT_VARIABLE: str(os.getpid()),
        FOLDER_VARIABLE: str(folder),
    }
    if plan.backend == "gloo":
        environment["GLOO_SOCKET_IFNAME"] = "lo" if plan.meeting is None else plan.meeting.interface
    if plan.backend == "nccl":
        environment |= (
            dict(plan.settings)
            | _TORCH
            | {
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": ",".join(plan.devices),
                # No MPS server is here: with one of the users' a fault of ours would end their work too.
                "CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps"),
                # A RAS thread of ours would take or share the port of the user's jobs.
                "NCCL_RAS_ENABLE": "0",
                # Warnings come with any level and of all subsystems; these three say which settings are in force, and
                # over what the ranks talk. Read at the end of the cycle, and gone with the folder.
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
                "NCCL_DEBUG_FILE": str(folder / f"rank{rank}.nccl"),
            }
        )
        if plan.meeting is not None:
            environment |= _ONE_RAIL | {"NCCL_SOCKET_IFNAME": f"={plan.meeting.interface}"}
            environment |= {"NCCL_IB_HCA": f"={adapter}"} if (adapter := plan.meeting.adapter) else {}
        if plan.shares_gpus and SHARING not in plan.settings:
            environment |= _SHARED_GPU | {"NCCL_HOSTID": f"commwatch-rank-{rank}"}
    return environment


def given_nccl_settings(plan: CyclePlan) -> frozenset[str]:
    """Names of the NCCL settings that the ranks of a cycle have from us."""
    return frozenset(name for name in rank_environment(plan, 0, Path(), {}) if name.startswith("NCCL_"))
