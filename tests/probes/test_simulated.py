"""Probe cycles of a simulated node, in real processes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from commwatch import config
from commwatch.probes.launch import Launcher
from commwatch.probes.plan import CycleResult, Failed, Measured, SimulatedNodePlan, plan_cycle


def probe(tmp_path: Path, faults: str = "", setup_deadline: float = 30.0) -> CycleResult:
    file = tmp_path / "faults.yaml"
    file.write_text(faults)
    simulation = SimulatedNodePlan(preset="a10x2", faults_file=str(file), started_at=time.time() - 60)
    limits = config.Probes(setup_deadline=config.Duration(setup_deadline))
    plan = plan_cycle(
        "all_reduce", config.Probe(), limits, backend="simulated", devices=("GPU-0", "GPU-1"), simulation=simulation
    )
    return asyncio.run(Launcher(temporary=tmp_path).run(plan))


def test_a_slow_path_is_measured_as_slow(tmp_path: Path) -> None:
    """Three times the latency and a quarter of the bandwidth come out as such."""
    healthy = probe(tmp_path)

    slow = probe(tmp_path, "- fault: slow_probe\n  latency: 3\n  bandwidth: 0.25\n")

    assert isinstance(healthy, Measured)
    assert isinstance(slow, Measured)
    assert slow.latency_seconds / healthy.latency_seconds == pytest.approx(3, rel=0.15)
    assert slow.bandwidth_seconds / healthy.bandwidth_seconds == pytest.approx(4, rel=0.15)
    assert healthy.nccl_version == "simulated"


@pytest.mark.parametrize("reason", ["wrong_result", "nccl_error"])
def test_an_injected_failure_is_reported_by_its_reason(tmp_path: Path, reason: str) -> None:
    """The reason of the fault is the reason of the failure."""
    result = probe(tmp_path, f"- fault: failing_probe\n  reason: {reason}\n")

    assert isinstance(result, Failed)
    assert result.reason == reason


def test_a_driver_that_hangs_is_a_timeout(tmp_path: Path) -> None:
    """A rank on a GPU whose driver does not answer is given up at the deadline."""
    result = probe(tmp_path, "- fault: driver_hang\n  gpu: 1\n", setup_deadline=2.0)

    assert isinstance(result, Failed)
    assert result.reason == "setup_timeout"
    assert "rank 1" in result.detail
