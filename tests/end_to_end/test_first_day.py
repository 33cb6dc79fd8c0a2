"""What a node lacks on its first day, without any configuration, on every preset: named at once, or nothing is."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.history import CounterHistory
from commwatch.findings.looking import Looking
from commwatch.findings.rules import RULE_SETS
from commwatch.simulation.presets import PRESETS
from support.facts import shipped
from support.whole_node import STARTED_AT, WholeNode

DOWN = "{fault: nvlink_down, gpu: 1, link: 2, at: 0s}"
NARROW = "{fault: pcie_width, gpu: 1, lanes: 8, at: 0s}"
PORT = "{fault: rdma_port_down, device: mlx5_3, at: 0s}"
WITH_SWITCHES = ("h100x8", "h100x8ndr", "b200x8")
ON_BOARDS = WITH_SWITCHES
WITH_FOUR_GPUS = (*WITH_SWITCHES, "a100x4", "rtx3090x4")
FIRST_DAYS = [
    *((preset, "[]", set()) for preset in PRESETS),
    *((preset, f"- {DOWN}", {("gpu_below_equals", "GPU1")}) for preset in WITH_SWITCHES),
    # The link joins two GPUs, and lacks on both.
    ("a100x4", f"- {DOWN}", {("gpu_below_equals", "GPU0"), ("gpu_below_equals", "GPU1")}),
    *((preset, f"- {NARROW}", {("gpu_below_equals", "GPU1")}) for preset in WITH_FOUR_GPUS),
    ("h100x8ndr", f"- {PORT}", {("port_below_equals", "mlx5_3 port 1")}),
    ("h100x8ndr", f"- {DOWN}\n- {PORT}", {("gpu_below_equals", "GPU1"), ("port_below_equals", "mlx5_3 port 1")}),
    # Two cards are no majority: what one of them lacks is learned, and told as information.
    ("a10x2", f"- {NARROW}", set()),
]


@pytest.mark.parametrize(("preset", "faults", "found"), FIRST_DAYS)
def test_a_part_that_has_less_than_its_equals_is_named_at_the_first_look(
    preset: str, faults: str, found: set[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And still when all that is there has been learned, after ten minutes."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def failed(rule: str, error: Exception) -> None:
        raise AssertionError(rule) from error

    node = WholeNode(preset, tmp_path, faults=faults)
    looking = Looking(RULE_SETS, shipped(), CounterHistory(WATCHED, EVENTS), failed)
    try:
        for minutes in (0, *[1] * 12):
            node.time += 60.0 * minutes
            node.run()
            if minutes == 0:
                node.time += 1.0
                node.run()
            seen = looking.at(node.snapshot(), STARTED_AT + node.time)
            odd = {(one.code, one.component.name) for one in seen if one.code.endswith("_below_equals")}
            assert odd == found
            on_board = preset in ON_BOARDS and bool(
                {DOWN, NARROW}.intersection(faults.removeprefix("- ").split("\n- "))
            )
            assert any(one.code == "parts_never_seen" for one in seen) == on_board
    finally:
        node.close()
