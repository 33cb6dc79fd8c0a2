"""Results of the probe at 55 and at 65 % of what is expected, by a reference and by a model.

The drills play it on every node with several GPUs (``make drill``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch_rehearsal.drill.catalogue import load_drills
from commwatch_rehearsal.simulation.presets import PRESETS
from support.simulated_daemon import rehearsed

DRILLS = load_drills()


def test_each_node_with_several_gpus_has_its_drills() -> None:
    """One that is low, and one that is short of what is published or below a model."""
    several = {name for name, preset in PRESETS.items() if len(preset.gpus) > 1}

    assert {f"slow_probe_{percent}_percent_{name}" for name in several for percent in (55, 65)} <= set(DRILLS)


@pytest.mark.parametrize(
    ("preset", "percent", "streak", "found"),
    [
        ("h100x8", 55, 3, {"probe_bandwidth_low"}),
        ("h100x8", 65, 0, {"probe_bandwidth_short"}),
        ("a10x2", 55, 3, {"probe_bandwidth_low"}),
        ("a10x2", 65, 0, {"probe_below_model"}),
    ],
)
def test_three_results_at_a_share_of_what_is_expected(
    preset: str, percent: int, streak: int, found: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below 60 % they are low; above, a ticket where the value is published and information where it is a model's."""
    drill = DRILLS[f"slow_probe_{percent}_percent_{preset}"]
    assert (drill.preset, drill.probes) == (preset, {"all_reduce": {}})
    assert set(drill.codes) == found
    [fault] = drill.faults
    with rehearsed(
        preset, tmp_path, monkeypatch, f"- {{fault: slow_probe, bandwidth: {fault['bandwidth']}, at: 0s}}\n"
    ) as node:
        shares = []
        for minute in (1, 6, 11):
            node.until(minute, step=150.0)
            node.probe("all_reduce")
            [(_, share)] = node.snapshot().samples("commwatch_probe_bandwidth_utilization_ratio")
            shares.append(float(share))
        [(_, in_a_row)] = node.snapshot().samples("commwatch_probe_low_bandwidth_streak")
        codes = {one.code for one in node.verdict.findings if one.code.startswith("probe_")}

    assert shares == [pytest.approx(percent / 100, abs=0.03)] * 3
    assert (in_a_row, codes) == (streak, found)
