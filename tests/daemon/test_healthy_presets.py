"""A healthy node raises no alarm, of whatever generation its links are."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.no_alarm import assert_no_alarm
from support.simulated_daemon import whole_node


@pytest.mark.parametrize("preset", ["a100x4", "b200x8", "h100x8ndr", "rtx3090x4"])
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
