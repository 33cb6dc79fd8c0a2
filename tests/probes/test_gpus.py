"""What nvidia-smi and simulated nodes say of GPUs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from commwatch.errors import CommwatchError
from commwatch.probes.gate import GpuFacts
from commwatch.probes.gpus import driver_loaded, parse_gpus, read_gpus, simulated_gpus
from commwatch.probes.plan import SimulatedNodePlan

GPUS = """\
GPU-1111, 00000000:17:00.0, NVIDIA H100 80GB HBM3, 4, Default, Disabled, 0
GPU-2222, 00000000:3D:00.0, NVIDIA H100 80GB HBM3, 70123, Exclusive_Process, Enabled, 98
GPU-3333, 00000000:60:00.0, NVIDIA GeForce RTX 3090, [N/A], [N/A], [N/A], [N/A]
"""
APPS = "GPU-2222, 4711\nGPU-2222, 4712\n"


def test_output_of_nvidia_smi() -> None:
    """Addresses are spelled as sysfs does, memory is in bytes, and what is not available is not known."""
    free, busy, unknown = (gpu.facts for gpu in parse_gpus(GPUS, APPS))

    assert free == GpuFacts("0000:17:00.0", False, 0, 4 * 2**20, "default", False)
    assert busy == GpuFacts("0000:3d:00.0", True, 2, 70123 * 2**20, "exclusive_process", True)
    assert unknown == GpuFacts("0000:60:00.0", None, 0, None, None, False)


def test_a_process_without_work_makes_a_gpu_busy() -> None:
    """A job between two steps shows no utilisation."""
    (gpu,) = parse_gpus("GPU-1, 00000000:17:00.0, A, 4, Default, Disabled, 0\n", "GPU-1, 1\n")

    assert gpu.facts.busy is True


def test_lines_that_make_no_sense_are_no_gpus() -> None:
    """An error text in place of a table gives nothing."""
    assert parse_gpus("No devices were found\n", "") == ()


def test_a_missing_nvidia_smi_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the program and where it comes from."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(CommwatchError, match=r"nvidia-smi.*driver"):
        read_gpus()


def test_nvidia_smi_is_asked_and_its_failure_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's own words reach the operator."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not talk to the driver'\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    with pytest.raises(CommwatchError, match="could not talk to the driver"):
        read_gpus()


def test_a_driver_is_known_by_its_file(tmp_path: Path) -> None:
    """procfs has a folder of the driver while it is loaded."""
    assert not driver_loaded(tmp_path)
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text("NVRM version\n")
    assert driver_loaded(tmp_path)


def test_gpus_of_a_simulated_node() -> None:
    """A healthy simulated node has all its GPUs, free, with the NVLinks of its model."""
    gpus = simulated_gpus(SimulatedNodePlan(preset="h100x8", faults_file=None, started_at=time.time()))

    assert len(gpus) == 8
    assert {(gpu.nvlinks, gpu.facts.busy, gpu.facts.compute_processes) for gpu in gpus} == {(18, False, 0)}
    assert len({gpu.uuid for gpu in gpus}) == 8
