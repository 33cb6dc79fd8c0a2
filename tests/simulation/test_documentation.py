"""The documentation of the simulated node, held against what it describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from commwatch_rehearsal.simulation.describe import describe_node, fault_example
from commwatch_rehearsal.simulation.faults.fault import Kind
from commwatch_rehearsal.simulation.faults.kinds import FAMILIES, KINDS
from commwatch_rehearsal.simulation.faults.parse import parse_faults
from commwatch_rehearsal.simulation.presets import PRESETS, find_preset
from commwatch_rehearsal.simulation.presets.parts import Preset
from support.passes import in_one_pass

TEXT = (Path(__file__).parents[2] / "docs/using/simulation.md").read_text(encoding="utf-8")


def fault_table(family: Mapping[str, Kind]) -> str:
    """The kinds of one family as a Markdown table."""
    rows = [f"| `{name}` | {kind.help} | `{fault_example(name, kind)}` |" for name, kind in family.items()]
    return "\n".join(("| kind | what happens | example |", "| --- | --- | --- |", *rows))


def preset_table(presets: Mapping[str, Preset]) -> str:
    """Presets as a Markdown table."""
    rows = []
    for name, preset in presets.items():
        node = describe_node(preset)
        rows.append(f"| `{name}` | {node.gpus} | {node.nvlink} | {node.pcie} | {node.network} | {node.rdma} |")
    head = ("| preset | GPUs | NVLink | PCIe | network | RDMA |", "| --- | --- | --- | --- | --- | --- |")
    return "\n".join((*head, *rows))


def test_every_kind_of_fault_is_described() -> None:
    """The tables of the page are those that the kinds themselves give, one for each family."""
    for family in FAMILIES.values():
        assert f"\n{fault_table(family)}\n" in TEXT
    assert len(re.findall(r"^\| `\w+` \|.*\| `\{fault: .*\}` \|$", TEXT, re.MULTILINE)) == len(KINDS)


@in_one_pass("name", KINDS)
def test_every_kind_of_fault_has_an_example_that_works(name: str) -> None:
    """It is a valid fault of that kind on the node that it is for."""
    kind = KINDS[name]

    (fault,) = parse_faults(f"- {fault_example(name, kind)}", "simulation.md", PRESETS[kind.preset], 0.0, 0.0)

    assert fault.kind == name


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


def test_every_preset_is_described() -> None:
    """By the table that the presets themselves give."""
    assert f"\n{preset_table(PRESETS)}\n" in TEXT
