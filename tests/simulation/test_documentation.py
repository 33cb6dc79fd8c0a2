"""The page about the simulated node against what it describes; what a kind does stands in ``commwatch simulate``."""

from __future__ import annotations

import re
from pathlib import Path

from commwatch_rehearsal.simulation.faults.kinds import FAMILIES
from commwatch_rehearsal.simulation.faults.parse import parse_faults
from commwatch_rehearsal.simulation.presets import PRESETS, find_preset

TEXT = (Path(__file__).parents[2] / "docs/using/simulation.md").read_text(encoding="utf-8")


def test_the_page_names_every_node_and_every_kind_of_fault() -> None:
    """Nodes in the first column of their table, kinds in the line of their family, in the order of the code."""
    assert re.findall(r"^\| `(\w+)` \| \d ", TEXT, re.MULTILINE) == [*PRESETS]
    for name, family in FAMILIES.items():
        line = TEXT.partition(f"\n- **{name}**")[2].partition(": ")[2].partition(".")[0]
        assert re.findall(r"`(\w+)`", line) == [*family]


def test_the_example_files_work(tmp_path: Path) -> None:
    """The YAML of the page can be copied: a node of one's own, and files of faults."""
    node, *files = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    file = tmp_path / "rack7.yaml"
    file.write_text(node)

    preset = find_preset(str(file))

    assert (preset.name, len(preset.gpus), len(preset.rdma_ports)) == ("rack7", 4, 3)
    kinds = [
        [fault.kind for fault in parse_faults(faults, "simulation.md", PRESETS["h100x8"], 0.0, 0.0)] for faults in files
    ]
    assert kinds == [["nvlink_down", "nvlink_crc"], ["latency_spikes", "slow_gpu", "job"]]
