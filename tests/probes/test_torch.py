"""Real groups of two ranks over gloo."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from commwatch import config
from commwatch.probes.launch import Launcher
from commwatch.probes.plan import CyclePlan, Failed, Measured, Skipped, plan_cycle


def torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch_version(), reason="torch is not installed")]


def gloo_plan() -> CyclePlan:
    probe = config.Probe(bandwidth_bytes=config.Size(2**20))
    return plan_cycle("all_reduce", probe, config.Probes(), backend="gloo", devices=())


def test_a_gloo_cycle_measures_two_ranks(tmp_path: Path) -> None:
    """A real all-reduce of two processes gives latency, bandwidth and versions, and leaves nothing behind."""
    result = asyncio.run(Launcher(temporary=tmp_path).run(gloo_plan()))

    assert isinstance(result, Measured)
    assert 1e-6 < result.latency_seconds < 0.5
    assert 1e-5 < result.bandwidth_seconds < 2.0
    assert len(result.ranks) == 2
    assert result.torch_version
    assert result.nccl_version == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size_bytes", [8, 2**20])
def test_one_flipped_bit_is_found(tmp_path: Path, size_bytes: int) -> None:
    """A sum that is off by one bit in one element, on one rank, is a wrong result."""
    script = tmp_path / "flip.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from commwatch.probes import rank\n"
        "whole = dist.all_reduce\n"
        "def flipped(tensor, **options):\n"
        "    whole(tensor, **options)\n"
        f"    if dist.get_rank() == 1 and tensor.numel() == {size_bytes // 4} and tensor[-1] > 0:\n"
        "        tensor.view(torch.int32)[-1] ^= 1\n"
        "dist.all_reduce = flipped\n"
        "rank.main()\n"
    )

    result = asyncio.run(Launcher(rank_command=(sys.executable, str(script))).run(gloo_plan()))

    assert isinstance(result, Failed)
    assert result.reason == "wrong_result"
    assert "rank 1" in result.detail


@pytest.mark.skipif(not torch_version().endswith("+cpu"), reason="this torch may have CUDA")
def test_torch_without_nccl_is_a_skip() -> None:
    """A torch that was built without CUDA cannot run an nccl probe, which is nobody's fault."""
    plan = plan_cycle("all_reduce", config.Probe(), config.Probes(), backend="nccl", devices=("GPU-a", "GPU-b"))

    result = asyncio.run(Launcher().run(plan))

    assert isinstance(result, Skipped)
    assert result.reason == "no_gpu_backend"
