"""From a fault to the advice: pairs are probed, and commwatch topology holds them against the paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commwatch.config.settings import Config, Paths, Simulation
from support.command_line import run_command
from support.quick_ranks import measure_quickly, read_sysfs_here


@pytest.fixture(autouse=True)
def no_pause_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The busy test of a simulated driver needs no second between its two looks, nor its ranks processes."""
    monkeypatch.setattr("commwatch.node.gpus_now.BUSY_SAMPLES_APART_SECONDS", 0.0)
    measure_quickly(monkeypatch)
    read_sysfs_here(monkeypatch)


def test_a_near_pair_that_is_slow_contradicts_the_topology(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """As in the published case of four RTX 3090, whatever the topology promises."""
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {fault: slow_switch, device: 0000:21:00.0, bandwidth: 0.4, traffic: peer}\n")
    config = Config(paths=Paths(state=str(tmp_path)), simulation=Simulation(preset="rtx3090x4", faults=str(faults)))

    run_command(config, "probe", "--pairs", "--json")
    (tmp_path / "pairs.json").write_text(capsys.readouterr().out)
    assert run_command(config, "topology", "--pairs", str(tmp_path / "pairs.json")) == 0

    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"GPU0-GPU1 under one PCIe switch \(PIX\) carry [\d.]+ GB/s, less than GPU\d-GPU\d across", out)
    assert "whatever the topology promises" in out
    assert re.search(r"Train on \d,\d rather than 0,1: CUDA_VISIBLE_DEVICES=\d,\d with", out)


def test_a_healthy_node_contradicts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The noise of a probe is no finding."""
    config = Config(paths=Paths(state=str(tmp_path)), simulation=Simulation(preset="rtx3090x4"))

    assert run_command(config, "probe", "--pairs", "--json") == 0
    (tmp_path / "pairs.json").write_text(capsys.readouterr().out)
    assert run_command(config, "topology", "--pairs", str(tmp_path / "pairs.json")) == 0

    out = capsys.readouterr().out
    assert "Measured, one direction" in out
    assert "whatever the topology promises" not in out
    assert "Measured slow" not in out
