"""Larger groups of real ranks over gloo, and a torch that was built without CUDA."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import pytest

from commwatch import config
from commwatch.probes.launch import Launcher
from commwatch.probes.plan import Collective, RankResult, Skipped
from commwatch.probes.workload import plan_cycle
from probes.cycles import PROCFS, all_quiet
from probes.test_torch import gloo_plan, run_ranks, torch_version

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch_version(), reason="torch is not installed")]


def test_three_ranks_measure_everything(tmp_path: Path) -> None:
    """Each rank has times for the steps in which it takes part, and for no other, and all that arrived was exact."""
    plan = gloo_plan(*get_args(Collective), "pairs", "scaling", ranks=3)

    results = run_ranks("measured", plan, tmp_path, RankResult)

    assert {step.operation for step in plan.steps} == {*get_args(Collective), "send_recv"}
    for rank, result in enumerate(results):
        assert [bool(timings) for timings in result.timings] == [rank in step.members for step in plan.steps]
        assert all(1e-7 < seconds < 1.0 for timings in result.timings for seconds in timings)
        assert 0.0 < result.first_call_seconds < 10.0
        assert (result.torch_version.split("+")[0], result.nccl_version) == (torch_version().split("+")[0], "")


@pytest.mark.skipif(not torch_version().endswith("+cpu"), reason="this torch may have CUDA")
def test_torch_without_nccl_is_a_skip(tmp_path: Path) -> None:
    """A torch that was built without CUDA cannot run an nccl probe, which is nobody's fault."""
    plan = plan_cycle("all_reduce", config.Probe(), config.Probes(), backend="nccl", devices=("GPU-a", "GPU-b"))

    result = asyncio.run(Launcher(procfs=PROCFS, temporary=tmp_path).run(plan, all_quiet))

    assert isinstance(result, Skipped)
    assert result.reason == "no_gpu_backend"
