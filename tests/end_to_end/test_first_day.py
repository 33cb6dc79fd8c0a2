"""What a node lacks on its first day, without any configuration: named at once, or nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.history import CounterHistory
from commwatch.findings.rule_engine import RuleEngine
from commwatch.findings.rules import RULE_SETS
from support.facts import shipped
from support.simulated_daemon import rehearsed

DOWN = "{fault: nvlink_down, gpu: 1, link: 2, at: 0s}"
DARK = "{fault: nvlink_down, gpu: 1, at: 0s}"
NARROW = "{fault: pcie_width, gpu: 1, lanes: 8, at: 0s}"
PORT = "{fault: rdma_port_down, device: mlx5_3, at: 0s}"
NAMED = {
    "ethernet_down", "gpu_below_equals", "gpu_below_product", "nvlink_down", "parts_never_seen", "pcie_width_dropped",
    "ports_never_seen", "rdma_port_down", "rdma_port_slow",
}  # fmt: skip


def all_narrow(preset: str) -> str:
    return "\n".join(f"- {{fault: pcie_width, gpu: {gpu}, lanes: 8, at: 0s}}" for gpu in range(int(preset[-1])))


FIRST_DAYS = [
    *((preset, "[]", set()) for preset in ("a10x2", "h100x8ndr")),
    ("b200x8", f"- {DOWN}", {("nvlink_down", "GPU1 link 2")}),
    # The link joins two GPUs, and is one, as their other links show.
    ("a100x4", f"- {DOWN}", {("nvlink_down", "GPU0 link 2")}),
    # All links of a GPU are the GPU, and those of the others that lead to it as well.
    *((preset, f"- {DARK}", {("nvlink_down", "GPU1")}) for preset in ("h100x8", "a100x4")),
    ("a100x4", "\n".join(f"- {DARK.replace('1', str(gpu))}" for gpu in range(4)),
     {("gpu_below_product", "NVLinks of 4 GPUs")}),
    ("h100x8ndr", f"- {NARROW}", {("pcie_width_dropped", "PCIe link of GPU1")}),
    ("rtx3090x4", f"- {NARROW}", {("gpu_below_equals", "GPU1")}),
    ("h100x8ndr", f"- {DOWN}\n- {PORT}", {("nvlink_down", "GPU1 link 2"), ("rdma_port_down", "mlx5_3 port 1")}),
    ("h100x8ndr", f"- {PORT}\n- {PORT.replace('mlx5_3', 'mlx5_6')}",
     {("rdma_port_down", "mlx5_3 port 1"), ("rdma_port_down", "mlx5_6 port 1")}),
    ("h100x8ndr", "- {fault: ethernet_down, interface: ens11f1np1, at: 0s}", {("ethernet_down", "ens11f1np1")}),
    ("b200x8", "- {fault: ethernet_down, interface: ens2np0, at: 0s}", set()),  # in no bond: it may have no cable
    # Two cards are no majority: what one of them lacks is learned, and told as information.
    ("a10x2", f"- {NARROW}", set()),
    # All alike: GPUs on a board are known to have more, cards may stand in narrow slots.
    ("a100x4", all_narrow("a100x4"), {("gpu_below_product", "PCIe lanes of 4 GPUs")}),
    ("rtx3090x4", all_narrow("rtx3090x4"), set()),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "faults", "found"), FIRST_DAYS)
def test_a_part_that_lacks_is_named_at_the_first_look(
    preset: str, faults: str, found: set[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And still when all that is there has been learned, after ten minutes."""

    def failed(rule: str, error: Exception) -> None:
        raise AssertionError(rule) from error

    engine = RuleEngine(RULE_SETS, shipped(), CounterHistory(WATCHED, EVENTS), failed)
    with rehearsed(preset, tmp_path, monkeypatch, faults) as node:
        for minutes in (0, 3, 3, 3, 2):  # a part that was not looked at for longer is not taken for watched
            node.time += 60.0 * minutes
            node.run()
            if minutes == 0:
                node.time += 1.0
                node.run()
            seen = engine.evaluate(node.snapshot(), node.clock.time())
            assert {(one.code, one.component.name) for one in seen if one.code in NAMED} == found
        kinds = node.engine.inventory()["kinds"]
        assert {kind["learning_seconds"] for kind in kinds.values()} == {0.0}, "all has been learned"
