"""A healthy day, put together into an hour, through the daemon, the findings and Prometheus' rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commwatch_rehearsal.simulation.presets import find_preset
from support.healthy_day import play
from support.simulated_day import SHORT_DAY

pytestmark = pytest.mark.prometheus


def test_a_fault_in_such_a_day_pages(tmp_path: Path) -> None:
    """The same way from node to rules tells an NVLink that goes down, and the Xid that comes with it."""
    down = "- {fault: nvlink_down, gpu: 0, link: 5, at: 12m}\n"
    day = play(find_preset("h200x1"), replace(SHORT_DAY, minutes=13.5), tmp_path, down)
    pages = {one.name: one.first_seconds for one in day.grave_alerts()}

    assert set(pages) == {"CommwatchNvlinkDown"}
    assert "nvlink_down" in {one.code for one in day.grave_findings()}
    assert 720 < pages["CommwatchNvlinkDown"] <= 780
