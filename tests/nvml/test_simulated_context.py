"""The counters beside links and traffic over the simulated driver library, with the real binding between them."""

from __future__ import annotations

import pytest

from commwatch_rehearsal.simulation.presets import PRESETS
from nvml.test_simulated import Simulate, labels_of, simulate

__all__ = ["simulate"]


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_no_collector_fails_on_a_healthy_node(simulate: Simulate, preset: str) -> None:
    """What a GPU does not have is absent; nothing is a failure, whatever the generation."""
    node = simulate(preset).open()
    for node.now in (10.0, 20.0):
        for collector in node.source.collectors:
            assert node.collect(collector).absences == []


def test_a_b200_has_the_counters_of_nvlink_5(simulate: Simulate) -> None:
    """Packets beside bytes, and errors before and after correction."""
    node = simulate("b200x8").open()
    node.now = 100.0
    place = (*labels_of("b200x8", 1), "17")

    traffic, errors = node.read("nvlink"), node.read("nvlink_errors")

    assert traffic[("nvlink_transmit_packets_total", *place)]
    assert errors[("nvlink_recoveries_failed_total", *place)] == 0
    assert errors[("nvlink_raw_bit_error_ratio", *place)] is not None
    assert errors[("nvlink_raw_errors_total", *place, "1")] is not None
    assert ("nvlink_replay_errors_total", *place) not in errors


def test_bytes_over_pcie_grow_with_their_rate(simulate: Simulate) -> None:
    """By the driver's own count or by the sum of its rates."""
    node = simulate("h100x8", "- {fault: job, at: 0s}").open()
    labels = labels_of("h100x8", 2)
    counts = []
    for node.now in (10.0, 20.0, 30.0):
        values = node.read("gpm")
        counts.append(values[("pcie_transmit_bytes_total", *labels)])
    rate = values[("pcie_transmit_rate_bytes_per_second", *labels)]

    assert counts[0] is None
    assert counts[1] is not None
    assert counts[2] is not None
    assert rate
    assert counts[2] - counts[1] == pytest.approx(10 * rate, rel=0.01)


def test_a_working_gpu_draws_power_and_is_not_held_back(simulate: Simulate) -> None:
    """Clocks, temperature and power are there, and no hardware slowdown."""
    node = simulate("h100x8", "- {fault: job, at: 0s}").open()
    node.now = 60.0
    labels = labels_of("h100x8", 0)

    values = node.read("gpu")

    assert values[("gpu_clocks_event_reason", *labels, "hw_slowdown")] == 0
    assert values[("gpu_clocks_event_reason", *labels, "gpu_idle")] == 0
    assert values[("gpu_recovery_action", *labels)] == values[("gpu_performance_state", *labels)] == 0
    for name in ("gpu_sm_clock_hertz", "gpu_temperature_celsius", "gpu_power_watts", "gpu_energy_joules_total"):
        assert values[(name, *labels)]


def test_a_healthy_fabric_has_been_joined(simulate: Simulate) -> None:
    """Completed with success, and no fault where one is looked for."""
    values = simulate("h100x8").open().read("fabric")
    labels = labels_of("h100x8", 7)

    assert values[("fabric_state", *labels)] == 3
    assert values[("fabric_status", *labels)] == 0
    assert {value for key, value in values.items() if key[0] == "fabric_fault"} <= {0, None}
