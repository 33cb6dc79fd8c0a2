"""The cause of slow collectives on a simulated node, as its pairs show it. Stories of many faults: ``make proof``."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.simulated_daemon import rehearsed


def test_a_pair_that_was_slow_from_the_start_is_named_though_it_is_measured_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four GPUs behind two PCIe switches: the collectives are slow at once, pairs are measured an hour later."""
    faults = "- {fault: slow_pair, gpu: 0, peer: 1, bandwidth: 0.35, at: 1s}"
    with rehearsed("rtx3090x4", tmp_path, monkeypatch, faults) as daemon:
        for minutes in (15, 30, 45, 60):
            daemon.until(minutes, step=60.0)
            daemon.probe("all_reduce")
        for minutes in (61, 62, 63):
            daemon.until(minutes, step=60.0)
            daemon.probe("pairs")
        daemon.until(75, step=60.0)
        [slow] = [one for one in daemon.verdict.findings if one.code == "probe_bandwidth_low"]

    assert slow.causes[0].component.key == "0000:23:00.0-0000:24:00.0"


def test_a_gpu_that_its_pairs_clear_is_not_named_for_what_a_slow_gpu_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU0 has lost a link, which costs its pairs little; all pairs of GPU2 are slow."""
    faults = (
        "- {fault: slow_gpu, gpu: 2, bandwidth: 0.3, at: 800s}\n- {fault: nvlink_down, gpu: 0, link: 3, at: 790s}\n"
    )
    with rehearsed("h100x8", tmp_path, monkeypatch, faults) as daemon:
        for minutes in (15, 30, 45):
            daemon.until(minutes, step=150.0)
            daemon.probe("all_reduce")
        for minutes in (46, 47, 48):
            daemon.until(minutes, step=150.0)
            daemon.probe("pairs")
        daemon.until(50, step=150.0)
        [slow] = [one for one in daemon.verdict.findings if one.code == "probe_bandwidth_low"]
        down = [one for one in daemon.verdict.findings if one.code == "nvlink_down"]

    assert [cause.component.key for cause in slow.causes] == ["gpu/GPU2"]
    assert len(down) == 1
