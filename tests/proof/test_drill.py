"""The fire drill with real servers: faults end as pages, and pages are resolved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.drills import left, started

PLAYED = ("pcie_width_without_nvlink", "slow_probe_latency", "ethernet_down", "gpu_throttled_idle")
"""Class A, a streak, a state that must last, and a fault that must page nobody; on nodes that start quickly."""


@pytest.mark.prometheus
def test_faults_end_as_pages_and_pages_are_resolved(tmp_path: Path) -> None:
    """Each fault with its alert and no other, a harmless one with none; everything is gone at the end."""
    with started(tmp_path, "--json", *PLAYED) as process:
        output, progress = process.communicate(timeout=240)
    assert process.returncode == 0, progress + output
    run = json.loads(output)
    assert (run["passed"], run["intervals"], run["stray_alerts"], run["left_out"]) == (True, "fast", [], {})
    outcomes = {one["name"]: one for one in run["drills"]}
    assert set(outcomes) == set(PLAYED)
    silent = outcomes.pop("gpu_throttled_idle")
    assert (silent["received"], silent["resolved"]) == ([], None)
    for outcome in outcomes.values():
        assert outcome["resolved"] is True
        assert 0 < outcome["seconds_to_firing"] <= outcome["seconds_to_page"]
    assert left(tmp_path) == []
