"""What collectives take on the simulated node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commwatch.simulation.faults.model import SimulatedProbeFailure
from commwatch.simulation.presets import PRESETS
from simulation.harness import Rehearsal

Rehearse = Callable[..., Rehearsal]
SMALL, LARGE = 8, 64 * 2**20


def seconds(rehearsal: Rehearsal, size: int, call: int = 0, rank: int = 0) -> float:
    ranks = len(rehearsal.node.preset.gpus)
    return rehearsal.node.collective_seconds("all_reduce", size, ranks, rank, call)


def bus_bandwidth(rehearsal: Rehearsal) -> float:
    ranks = len(rehearsal.node.preset.gpus)
    return 2 * (ranks - 1) / ranks * LARGE / seconds(rehearsal, LARGE)


@pytest.mark.parametrize(
    ("preset", "low_gigabytes", "high_gigabytes"), [("h100x8", 330, 375), ("a10x2", 10, 14), ("rtx3090x4", 10, 15)]
)
def test_a_healthy_node_gives_what_such_nodes_give(
    rehearse: Rehearse, preset: str, low_gigabytes: float, high_gigabytes: float
) -> None:
    """Bus bandwidth of 64 MiB over NVLink, or over PCIe through the processor; a small call takes 10 to 20 µs."""
    rehearsal = rehearse(preset)

    assert low_gigabytes < bus_bandwidth(rehearsal) / 1e9 < high_gigabytes
    assert 9e-6 < seconds(rehearsal, SMALL) < 21e-6


@pytest.mark.parametrize("preset", PRESETS)
def test_calls_differ_by_a_few_percent(rehearse: Rehearse, preset: str) -> None:
    """Each call has a noise of its own, the same whenever it is asked; ranks end almost together."""
    rehearsal = rehearse(preset)
    series = [seconds(rehearsal, SMALL, call) for call in range(100)]

    assert len(set(series)) == 100
    assert max(series) / min(series) < 1.08
    assert seconds(rehearsal, SMALL, 7) == series[7]
    last = len(rehearsal.node.preset.gpus) - 1
    assert seconds(rehearsal, SMALL, 7, rank=last) == pytest.approx(series[7], rel=0.01)


def test_links_that_are_down_or_slow_take_their_share(rehearse: Rehearse) -> None:
    """9 links of 18 give half; one link at half its rate holds all links of the group to it."""
    healthy = bus_bandwidth(rehearse("h100x8"))
    down = "\n".join(f"- {{fault: nvlink_down, gpu: 3, link: {link}, at: 0s}}" for link in range(9))

    assert bus_bandwidth(rehearse("h100x8", down)) == pytest.approx(healthy / 2, rel=0.08)
    slow = rehearse("h100x8", "- {fault: nvlink_slow, gpu: 3, link: 2, factor: 0.5, at: 0s}")
    assert bus_bandwidth(slow) == pytest.approx(healthy / 2, rel=0.08)


def test_a_narrowed_pcie_link_halves_a_node_without_nvlink(rehearse: Rehearse) -> None:
    """8 lanes of 16; a generation lower does the same; the idle generation does not."""
    healthy = bus_bandwidth(rehearse("rtx3090x4"))

    for fault in ("pcie_width, gpu: 2, lanes: 8", "pcie_generation, gpu: 1, generation: 3"):
        assert bus_bandwidth(rehearse("rtx3090x4", f"- {{fault: {fault}, at: 0s}}")) == pytest.approx(
            healthy / 2, rel=0.08
        )


def test_a_slow_probe_is_slow_while_the_fault_holds(rehearse: Rehearse) -> None:
    """Five times the latency, half the bandwidth, from its start to its end."""
    rehearsal = rehearse("h100x8", "- {fault: slow_probe, latency: 5, bandwidth: 0.5, at: 200s, for: 60s}")
    latency, bandwidth = seconds(rehearsal, SMALL), bus_bandwidth(rehearsal)

    rehearsal.now = 200.0
    assert seconds(rehearsal, SMALL) == pytest.approx(5 * latency, rel=0.08)
    assert bus_bandwidth(rehearsal) < 0.55 * bandwidth
    rehearsal.now = 260.0
    assert seconds(rehearsal, SMALL) == pytest.approx(latency, rel=0.08)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("failing_probe, reason: unhandled system error", "unhandled system error"),
        ("gpu_lost, gpu: 5", "0000:9b:00.0: lost"),
        ("gpu_reset_required, gpu: 0", "0000:17:00.0: reset required"),
        ("gpu_missing, gpu: 0", "8 ranks on 7 GPUs"),
    ],
)
def test_a_probe_fails_with_its_reason(rehearse: Rehearse, fault: str, reason: str) -> None:
    """By injection, or because a GPU that it needs does not answer."""
    rehearsal = rehearse("h100x8", f"- {{fault: {fault}, at: 0s}}")

    with pytest.raises(SimulatedProbeFailure, match=reason):
        seconds(rehearsal, SMALL)


def test_a_fault_of_another_gpu_leaves_a_probe_alone(rehearse: Rehearse) -> None:
    """Two ranks on GPUs 0 and 1 do not meet the faults of GPU 7."""
    faults = "- {fault: failing_probe, gpu: 7, at: 0s}\n- {fault: gpu_lost, gpu: 7, at: 0s}"

    assert rehearse("h100x8", faults).node.collective_seconds("all_reduce", SMALL, 2, 0, 0) < 20e-6


def test_what_is_not_simulated_is_refused(rehearse: Rehearse) -> None:
    """Another collective, or a rank beyond the ranks."""
    node = rehearse("a10x2").node

    with pytest.raises(ValueError, match="all_to_all"):
        node.collective_seconds("all_to_all", SMALL, 2, 0, 0)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        node.collective_seconds("all_reduce", SMALL, 2, 2, 0)
