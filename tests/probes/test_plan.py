"""Plans of a cycle, and the environments of its ranks."""

from __future__ import annotations

from pathlib import Path

from commwatch.config import settings
from commwatch.probes.cycle.environment import rank_environment
from commwatch.probes.plan import CyclePlan
from commwatch.probes.workload import plan_cycle


def nccl_plan(*devices: str, ranks: int = 0) -> CyclePlan:
    return plan_cycle("x", settings.Probe(ranks=ranks), settings.Probes(), backend="nccl", devices=devices)


def test_a_rank_for_each_gpu() -> None:
    """Each GPU is occupied by one rank; gloo has two ranks and occupies none."""
    plan = nccl_plan("GPU-a", "GPU-b", "GPU-c")
    gloo = plan_cycle("x", settings.Probe(), settings.Probes(), backend="gloo", devices=("GPU-a",))

    assert (plan.ranks, plan.gpus, plan.shares_gpus) == (3, 3, False)
    assert [plan.rank_plan(rank, "file").device for rank in range(3)] == [0, 1, 2]
    assert (gloo.ranks, gloo.gpus, gloo.devices, gloo.shares_gpus) == (2, 0, (), False)
    assert gloo.rank_plan(1, "file").device is None


def test_more_ranks_than_gpus_share_them() -> None:
    """Two ranks on one GPU are two hosts to NCCL, and meet over the loopback."""
    plan = nccl_plan("GPU-a", ranks=2)

    environments = [rank_environment(plan, rank, Path("/private"), {}) for rank in range(2)]

    assert plan.shares_gpus
    assert [plan.rank_plan(rank, "file").device for rank in range(2)] == [0, 0]
    assert environments[0]["NCCL_HOSTID"] != environments[1]["NCCL_HOSTID"]
    assert environments[0]["NCCL_SOCKET_IFNAME"] == "lo"


def test_environment_of_an_nccl_rank() -> None:
    """Only the chosen GPUs are visible, RAS is off, NCCL's log goes to the private folder, and nothing is inherited."""
    own = {
        "PATH": "/usr/bin",
        "LD_LIBRARY_PATH": "/cuda",
        "NCCL_ALGO": "Tree",
        "CUDA_VISIBLE_DEVICES": "7",
        "HOME": "/root",
    }

    environment = rank_environment(nccl_plan("GPU-a", "GPU-b"), 1, Path("/private"), own)

    assert environment["PATH"] == "/usr/bin"
    assert environment["LD_LIBRARY_PATH"] == "/cuda"
    assert environment["HOME"] == "/private"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert environment["NCCL_RAS_ENABLE"] == "0"
    assert environment["NCCL_DEBUG_FILE"].startswith("/private/")
    assert "NCCL_ALGO" not in environment
    assert "NCCL_HOSTID" not in environment
