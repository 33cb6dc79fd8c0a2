"""From the first bad result to the name of the part at fault, at shipped intervals on a stepped clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.probes.gate.budget import SEARCH_SHARE
from support.stepped_probes import stepped

NAMED_WITHIN = 15.0
"""Minutes after the first bad result."""
ALL_SLOW = "\n".join(f"- {{fault: slow_gpu, gpu: {gpu}, bandwidth: 0.275, traffic: peer}}" for gpu in range(8))
"""As in a virtual machine that lets no GPU reach another one directly."""


@pytest.mark.parametrize(
    ("preset", "faults", "code", "component"),
    [
        ("h100x8", "- {fault: slow_gpu, gpu: 5, bandwidth: 0.4}", "part_suspect", "gpu/GPU5"),
        ("h100x8", ALL_SLOW, "pairs_all_slow", "node"),
        ("a100x4", "- {fault: slow_gpu, gpu: 2, bandwidth: 0.4}", "part_suspect", "gpu/GPU2"),
        ("rtx3090x4", "- {fault: slow_pair, gpu: 0, peer: 2, bandwidth: 0.3}", "pair_slow", "0000:23:00.0-0000:63"),
    ],
    ids=["GPU at switches", "all pairs", "GPU with bridges", "pair over PCIe"],
)
def test_a_part_that_is_slow_from_the_start_is_named_in_minutes(
    preset: str, faults: str, code: str, component: str, tmp_path: Path
) -> None:
    """The first result is bad; after the third pairs and copies run at once, and two more matrices 30 s apart."""
    with stepped(preset, faults.replace("}", ", at: 0s}"), tmp_path) as node:
        while (named := node.opened(code, component)) is None:
            assert node.time < 60.0 * (1 + NAMED_WITHIN)
            node.until(node.time / 60 + 0.5, step=30)
        first = node.ran("all_reduce")[0]

    assert named - first <= NAMED_WITHIN


def test_one_search_serves_every_collective_that_is_slow(tmp_path: Path) -> None:
    """Of all collectives of the first hours only the first brings pairs and copies forward, and is tried again soon."""
    fault = "- {fault: slow_pair, gpu: 0, peer: 2, bandwidth: 0.3, at: 0s}"
    with stepped("rtx3090x4", fault, tmp_path) as node:
        node.until(6, step=30)
        node.until(70, step=150)
        matrices, frequent = node.ran("pairs"), node.ran("all_reduce")
        searched = sum(
            one.gpu_seconds for probe in node.engine.probing._probes.values() for one in probe.record.history.occupied
            if one.search
        )  # fmt: skip

    assert len(matrices) == 3
    assert max(matrices) < 5
    assert max(frequent) > 40  # and goes on at its pace
    assert searched <= SEARCH_SHARE * 864.0 * 4


def test_a_healthy_node_is_not_searched(tmp_path: Path) -> None:
    """Nothing runs out of turn: each daily probe once, and none before its time."""
    with stepped("rtx3090x4", "[]", tmp_path) as node:
        node.until(70, step=150)
        cycles = {name: len(node.ran(name)) for name in node.config.probes.definitions}
        searched = [
            one for probe in node.engine.probing._probes.values() for one in probe.record.history.occupied if one.search
        ]

    assert [cycles[name] for name in cycles if name != "all_reduce"] == [1] * 7
    assert searched == []


def test_what_is_repaired_is_not_suspect_for_a_day(tmp_path: Path) -> None:
    """With the first good result pairs and copies run again, and the part that they named is cleared."""
    fault = "- {fault: slow_gpu, gpu: 2, bandwidth: 0.4, at: 0s, until: 900s}"
    with stepped("rtx3090x4", fault, tmp_path) as node:
        node.until(14, step=30)
        before = {one.code for one in node.verdict.findings}
        node.until(25, step=30)
        node.until(75, step=150)
        after = {one.code for one in node.verdict.findings}
        good = next(at for at in node.ran("all_reduce") if at > 15)
        again = [at for at in node.ran("pairs") if at > 15]

    assert "probe_bandwidth_low" in before
    assert not {"part_suspect", "probe_bandwidth_low"} & after
    assert again[0] - good <= 1
