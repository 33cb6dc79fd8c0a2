"""Hours of a node after its first ones: what becomes slow on it, and when it is named, at shipped intervals."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from support.stepped_probes import SteppedNode, stepped

FAULT_AT = 95.0
"""Minutes after the boot: the daily probes have run."""
STEP_SECONDS = 30.0


def first_bad(node: SteppedNode) -> float:
    """Minutes since the boot of the first bad result: after it the next cycle comes 30 s later."""
    times = node.ran("all_reduce")
    return next(one for one, after in itertools.pairwise(times) if one >= FAULT_AT and after - one < 1)


@pytest.mark.parametrize(
    ("preset", "fault", "code", "component"),
    [
        ("h100x8", "slow_gpu, gpu: 5, bandwidth: 0.4", "part_suspect", "gpu/GPU5"),
        ("h100x8", "slow_pair, gpu: 0, peer: 1, bandwidth: 0.3", "pair_slow", "0000:17:00.0-"),
        ("a100x4", "slow_gpu, gpu: 2, bandwidth: 0.4", "part_suspect", "gpu/GPU2"),
        ("rtx3090x4", "slow_gpu, gpu: 2, bandwidth: 0.4", "part_suspect", "gpu/GPU2"),
        ("rtx3090x4", "slow_pair, gpu: 1, peer: 2, bandwidth: 0.3", "pair_slow", "0000:24:00.0-0000:63:00.0"),
    ],
)
def test_the_part_at_fault_is_named_soon_after_the_first_bad_result(
    preset: str, fault: str, code: str, component: str, tmp_path: Path
) -> None:
    """After the third bad result pairs and copies run at once, and two more matrices follow 30 s apart."""
    with stepped(preset, f"- {{fault: {fault}, at: {60 * FAULT_AT:.0f}s}}", tmp_path) as node:
        node.until(140, STEP_SECONDS)
        begun, named = first_bad(node), node.opened(code, component)

    assert named is not None
    assert named - begun <= 15.0


@pytest.mark.parametrize("peer", [1, 4, 7])
def test_a_slow_pair_that_no_ring_shows_is_named_within_two_hours(peer: int, tmp_path: Path) -> None:
    """A pair at 65 % of its bandwidth, which leaves the collectives above 60 %; and 1 % of the day is kept."""
    fault = f"- {{fault: slow_pair, gpu: 0, peer: {peer}, bandwidth: 0.65, at: {60 * FAULT_AT:.0f}s}}"
    with stepped("h100x8", fault, tmp_path) as node:
        node.until(FAULT_AT + 120, STEP_SECONDS)
        named, share = node.opened("pair_slow"), node.occupied_share()

    assert named is not None
    assert share <= 0.01


def test_a_healthy_node_keeps_its_pace(tmp_path: Path) -> None:
    """Pairs in turn bring nothing forward, and the budget skips no cycle of the first four hours but one."""
    with stepped("h100x8", "[]", tmp_path) as node:
        node.until(240, STEP_SECONDS)
        matrices, frequent = node.ran("pairs"), node.ran("all_reduce")

    assert len(matrices) == 1
    assert len(frequent) >= 12
