"""A healthy day, put together into an hour, through the daemon, the findings and Prometheus' rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commwatch.simulation.find import find_preset
from support.healthy_day import play
from support.simulated_day import SHORT_DAY

pytestmark = pytest.mark.prometheus

TWO_GPUS = "like: h100x8ndr\ngpus: 2\n"
INFORMATION = {
    "CommwatchClockStepped", "CommwatchNvlinkRecovered", "CommwatchRdmaCongested", "CommwatchWatchdog",
}  # fmt: skip


def test_a_healthy_day_wakes_no_one(tmp_path: Path) -> None:
    """Two GPUs with NVLink, InfiniBand and RoCE: what belongs to a day makes no page, no ticket, no grave finding."""
    file = tmp_path / "node.yaml"
    file.write_text(TWO_GPUS)
    day = play(find_preset(str(file)), SHORT_DAY, tmp_path)

    assert day.grave_alerts() == []
    assert day.grave_findings() == []
    assert {one.name for one in day.alerts} == INFORMATION  # what happened was seen


def test_a_fault_in_such_a_day_pages(tmp_path: Path) -> None:
    """The same way from the node to the rules tells an NVLink that goes down."""
    day = play(
        find_preset("h200x1"),
        replace(SHORT_DAY, minutes=15),
        tmp_path,
        "- {fault: nvlink_down, gpu: 0, link: 5, at: 13m}\n",
    )

    assert [one.name for one in day.grave_alerts()] == ["CommwatchNvlinkDown"]
    assert [one.code for one in day.grave_findings()] == ["nvlink_down"]
    assert 780 < day.grave_alerts()[0].first_seconds <= 840
