"""The environment of the ranks."""

from __future__ import annotations

import os
from pathlib import Path

from commwatch.probes.cycle.environment import SHARING, given_nccl_settings, rank_environment
from probes.cycles import cycle_plan

OWN = {
    "PATH": "/usr/bin",
    "LD_LIBRARY_PATH": "/cuda",
    "NCCL_ALGO": "Tree",
    "TORCH_LOGS": "all",
    "CUDA_VISIBLE_DEVICES": "7",
    "HOME": "/root",
}


def test_nothing_is_inherited_but_what_finds_programs_and_libraries() -> None:
    """Paths are the daemon's, home is the private folder; of NCCL, torch and CUDA a rank has our settings alone.

    It sees only the chosen GPUs, starts no RAS thread, and tells settings and transports in a file of its own.
    """
    environment = rank_environment(cycle_plan(backend="nccl"), 1, Path("/private"), OWN)

    expected = {
        "PATH": "/usr/bin", "LD_LIBRARY_PATH": "/cuda", "HOME": "/private", "TMPDIR": "/private",
        "COMMWATCH_PROBE_PARENT": str(os.getpid()), "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "NCCL_RAS_ENABLE": "0",
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "NCCL_DEBUG_FILE": "/private/rank1.nccl",
    }  # fmt: skip
    assert {name: environment.get(name) for name in expected} == expected
    assert not {"NCCL_ALGO", "TORCH_LOGS", "NCCL_HOSTID", "TORCH_NCCL_USE_COMM_NONBLOCKING"} & environment.keys()


def test_ranks_that_share_a_gpu_are_hosts_of_their_own() -> None:
    """NCCL refuses two ranks of one host on one GPU: they differ in name, and meet over the loopback."""
    plan = cycle_plan(backend="nccl", devices=("GPU-a",))

    environments = [rank_environment(plan, rank, Path("/private"), {}) for rank in range(2)]

    assert plan.shares_gpus
    assert [plan.rank_plan(rank, "file").device for rank in range(2)] == [0, 0]
    assert environments[0]["NCCL_HOSTID"] != environments[1]["NCCL_HOSTID"]
    assert environments[0]["NCCL_SOCKET_IFNAME"] == "lo"


def test_ranks_for_which_nccl_shares_the_gpu_are_of_one_host() -> None:
    """They meet on the GPU, and not over the loopback."""
    plan = cycle_plan(backend="nccl", devices=("GPU-a",), settings=(SHARING,))

    environment = rank_environment(plan, 1, Path("/private"), {})

    assert environment["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert not {"NCCL_HOSTID", "NCCL_SOCKET_IFNAME"} & environment.keys()


def test_settings_that_we_give_are_told_from_those_in_force() -> None:
    """What NCCL's log says of a setting of ours is nothing about the node."""
    own_gpus, one_gpu = cycle_plan(backend="nccl"), cycle_plan(backend="nccl", devices=("GPU-a",))

    assert given_nccl_settings(own_gpus) == {"NCCL_RAS_ENABLE", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}
    assert given_nccl_settings(one_gpu) > given_nccl_settings(own_gpus) | {"NCCL_HOSTID"}


def test_other_backends_know_nothing_of_nccl() -> None:
    """gloo keeps to the loopback; a simulated rank needs nothing."""
    gloo, simulated = (rank_environment(cycle_plan(backend=name), 0, Path("/x"), OWN) for name in ("gloo", "simulated"))

    assert gloo["GLOO_SOCKET_IFNAME"] == "lo"
    assert not [name for name in gloo | simulated if name.startswith(("NCCL_", "TORCH_", "CUDA_"))]
