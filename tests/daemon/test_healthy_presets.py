"""A healthy node of every preset raises no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch_rehearsal.simulation.presets import PRESETS
from support.no_alarm import assert_no_alarm
from support.simulated_daemon import whole_node


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_two_minutes_of_a_healthy_node_raise_no_alarm(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long enough to judge twins and standing counters; the clock is the test's."""
    with whole_node(preset, tmp_path, monkeypatch) as node:
        for _ in range(12):
            node.time += 10.0
            node.run()
            snapshot = node.snapshot()
            values = {
                (name, *labels.values()): float(value)
                for name in ("commwatch_counters_anomaly", "commwatch_pcie_link_degraded", "commwatch_gpu_state",
                             "commwatch_rdma_port_flaps_total", "commwatch_counters_reset_total")
                for labels, value in snapshot.samples(name)
            }  # fmt: skip
            assert_no_alarm(values, preset)
