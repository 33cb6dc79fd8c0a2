"""The environment of the ranks."""

from __future__ import annotations

import os
from pathlib import Path

from commwatch.probes.cycle.environment import given_nccl_settings, rank_environment
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
    """Paths and language are the daemon's; home is the private folder, and settings of NCCL and torch are ours."""
    environment = rank_environment(cycle_plan(backend="nccl"), 1, Path("/private"), OWN)

    assert (environment["PATH"], environment["LD_LIBRARY_PATH"]) == ("/usr/bin", "/cuda")
    assert environment["HOME"] == environment["TMPDIR"] == "/private"
    assert "NCCL_ALGO" not in environment
    assert "TORCH_LOGS" not in environment
    assert environment["COMMWATCH_PROBE_PARENT"] == str(os.getpid())


def test_an_nccl_rank_sees_the_plans_gpus_and_keeps_a_log() -> None:
    """Only the chosen GPUs are visible; RAS is off; NCCL tells settings and transports in a file of this rank."""
    environment = rank_environment(cycle_plan(backend="nccl"), 1, Path("/private"), OWN)

    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert environment["NCCL_RAS_ENABLE"] == "0"
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["NCCL_DEBUG_SUBSYS"] == "INIT,ENV,NET"
    assert environment["NCCL_DEBUG_FILE"] == "/private/rank1.nccl"
    assert "NCCL_HOSTID" not in environment


def test_ranks_that_share_a_gpu_are_hosts_of_their_own() -> None:
    """NCCL refuses two ranks of one host on one GPU: they differ in name, and meet over the loopback."""
    plan = cycle_plan(backend="nccl", devices=("GPU-a",))

    environments = [rank_environment(plan, rank, Path("/private"), {}) for rank in range(2)]

    assert plan.shares_gpus
    assert [plan.rank_plan(rank, "file").device for rank in range(2)] == [0, 0]
    assert environments[0]["NCCL_HOSTID"] != environments[1]["NCCL_HOSTID"]
    assert environments[0]["NCCL_SOCKET_IFNAME"] == "lo"


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
