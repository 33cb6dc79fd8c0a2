"""Larger groups of real ranks over gloo, and a torch that was built without CUDA."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import get_args

import pytest

from commwatch.config import settings
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.plan import Failed, Measured, Skipped
from commwatch.probes.rank_plan import Collective, RankResult
from commwatch.probes.workload import plan_cycle
from probes import test_torch
from probes.cycles import PROCFS, all_quiet
from probes.test_answer import answer as answer_to
from probes.test_torch import KIB, gloo_plan, rank_environment, run_ranks, torch_version
from support.waiting import PATIENCE_SECONDS

TORCH_NEEDS = ("filelock", "fsspec", "functorch", "jinja2", "markupsafe", "mpmath", "networkx", "nvidia", "setuptools",
               "sympy", "triton", "typing_extensions.py")  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch_version(), reason="torch is not installed")]


def test_three_ranks_measure_everything(tmp_path: Path) -> None:
    """Each rank has times for the steps in which it takes part, and for no other, and all that arrived was exact."""
    plan = gloo_plan(*get_args(Collective), "pairs", "scaling", ranks=3)

    results = run_ranks("measured", plan, tmp_path, RankResult)

    assert {step.operation for step in plan.steps} == {*get_args(Collective), "send_recv"}
    for rank, result in enumerate(results):
        assert [bool(timings) for timings in result.timings] == [rank in step.members for step in plan.steps]
        assert all(1e-7 < seconds < 1.0 for timings in result.timings for seconds in timings)
        assert (result.torch_version.split("+")[0], result.nccl_version) == (torch_version().split("+")[0], "")


@pytest.mark.skipif(not torch_version().endswith("+cpu"), reason="this torch may have CUDA")
def test_torch_without_nccl_is_a_skip(tmp_path: Path) -> None:
    """A torch that was built without CUDA cannot run an nccl probe, which is nobody's fault."""
    plan = plan_cycle("all_reduce", settings.Probe(), settings.Probes(), backend="nccl", devices=("GPU-a", "GPU-b"))

    result = asyncio.run(Launcher(procfs=PROCFS, temporary=tmp_path).run(plan, all_quiet))

    assert isinstance(result, Skipped)
    assert result.reason == "no_gpu_backend"


def test_a_wrong_sum_fails_the_cycle(tmp_path: Path) -> None:
    """A sum that is off by one bit on one rank is a wrong result, and the rank is named."""
    script = tmp_path / "flip.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from commwatch.probes.cycle import rank\n"
        "whole = dist.all_reduce\n"
        "def flipped(tensor, *args, **options):\n"
        "    whole(tensor, *args, **options)\n"
        f"    if dist.get_rank() == 1 and tensor.numel() == {16 * KIB} and tensor[-1] > 0:\n"
        "        tensor.view(torch.int32)[-1] ^= 1\n"
        "dist.all_reduce = flipped\n"
        "rank.main()\n"
    )
    launcher = Launcher(procfs=PROCFS, rank_command=(sys.executable, str(script)), temporary=tmp_path)

    result = asyncio.run(launcher.run(gloo_plan("all_reduce"), all_quiet))

    assert isinstance(result, Failed)
    assert (result.reason, result.phase, result.rank) == ("wrong_result", "measure", 1)
    assert f"all_reduce of {64 * KIB} bytes over 2 ranks" in result.detail


def test_the_torch_of_a_site_serves(tmp_path: Path) -> None:
    """A whole cycle on an interpreter that has torch and what torch needs, and nothing of commwatch's libraries."""
    site = tmp_path / "site"
    venv.create(site, with_pip=False)
    [packages] = site.glob("lib/python*/site-packages")
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    ours = Path(spec.origin).parents[1]
    for name in (*TORCH_NEEDS, *(one.name for one in ours.glob("torch*"))):
        if (ours / name).exists():
            (packages / name).symlink_to(ours / name)
    cycles = tmp_path / "cycles"
    cycles.mkdir()

    launcher = Launcher(procfs=PROCFS, python=str(site / "bin/python"), temporary=cycles)
    result = asyncio.run(launcher.run(gloo_plan("all_reduce"), all_quiet))

    assert isinstance(result, Measured)
    assert result.torch_version
    assert not (packages / "msgspec").exists()
    assert list(cycles.iterdir()) == []


def test_copies_are_timed_by_the_clock_of_the_gpu(tmp_path: Path) -> None:
    """Over a stand-in of CUDA: a copy that takes less time than its launch is timed right once the GPU waits for it."""
    output = subprocess.run(
        [sys.executable, str(Path(test_torch.__file__).with_name("cuda_rank.py"))],
        capture_output=True,
        env=rank_environment(),
        cwd=tmp_path,
        timeout=PATIENCE_SECONDS,
    )
    assert output.returncode == 0, output.stderr.decode()
    answer = json.loads(output.stdout)

    assert answer["timings"] == [[pytest.approx(1e-3)] * 4] * 2
    # Of each step: two estimates of two calls, 1 + 5 to warm up, four timings of 1 + 5, and the one that is checked.
    assert answer["copies"] == 2 * (4 + 6 + 24 + 1)
    assert answer["short"][-1] == pytest.approx(1e-5)
    assert answer["corrupt"] == [False, False]
    assert answer["nccl_version"] == "2.27.5"


def test_a_sum_runs_while_the_rank_computes(tmp_path: Path) -> None:
    """Three times, and a share that is hidden; what arrives under the product is as exact as without it."""
    plan = gloo_plan("training")

    result = asyncio.run(Launcher(procfs=PROCFS, temporary=tmp_path).run(plan, all_quiet))

    assert isinstance(result, Measured)
    hidden = answer_to(plan, result, None).hidden
    assert hidden is not None
    assert 0 <= hidden.hidden_ratio <= 1
