"""What a healthy node must not expose."""

from __future__ import annotations

from collections.abc import Mapping


def assert_no_alarm(values: Mapping[tuple[str, ...], float], preset: str) -> None:
    """No anomaly, no degraded link, no flap, no reset, no GPU that is not ok."""
    for (name, *labels), value in values.items():
        assert name != "commwatch_counters_anomaly", (preset, labels)
        if name.removeprefix("commwatch_") in (
            "pcie_link_degraded", "gpu_state", "rdma_port_flaps_total", "counters_reset_total",
            "nvlink_link_flaps_total",
            "worker_restarts_total", "collector_errors_total",
        ):  # fmt: skip
            assert value == 0, (preset, name, labels)
