"""A healthy day, put together into an hour, through the daemon, the findings and Prometheus' rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch_rehearsal.simulation.presets import find_preset
from support.healthy_day import play
from support.simulated_day import SHORT_DAY

pytestmark = pytest.mark.prometheus

SMALL_NODE = """
like: h100x8ndr
gpus: 2
nics:
  - {rdma: mlx5_0, speed: 400, near_gpu: 0}
  - {rdma: mlx5_1, speed: 400, near_gpu: 1}
  - {interface: ens11np0, rdma: mlx5_2, speed: 100}
"""
INFORMATION = {
    "CommwatchClockStepped", "CommwatchNvlinkRecovered", "CommwatchRdmaCongested",
    "CommwatchWatchdog",
}  # fmt: skip


def test_a_healthy_day_wakes_no_one(tmp_path: Path) -> None:
    """Two GPUs with NVLink, InfiniBand and RoCE: what belongs to a day makes no page, no ticket, no grave finding."""
    file = tmp_path / "node.yaml"
    file.write_text(SMALL_NODE)
    day = play(find_preset(str(file)), SHORT_DAY, tmp_path)

    assert day.grave_alerts() == []
    assert day.grave_findings() == []
    assert not {one.code for one in day.findings} & {"job_half_used", "job_uneven"}
    assert {one.name for one in day.alerts} == INFORMATION  # what happened was seen
