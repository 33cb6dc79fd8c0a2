"""The documentation of the simulated node, held against what it describes."""

from __future__ import annotations

import re
from pathlib import Path

from commwatch.simulation.faults import KINDS, parse_faults
from commwatch.simulation.presets import PRESETS

TEXT = (Path(__file__).parents[2] / "docs/simulation.md").read_text(encoding="utf-8")


def test_every_kind_of_fault_has_an_example_that_works() -> None:
    """One row with one example for each kind, and the example is a valid fault of that kind."""
    examples = dict(re.findall(r"^\| `(\w+)` \|.*\| `(\{fault: .*\})` \|$", TEXT, re.MULTILINE))

    assert set(examples) == set(KINDS)
    for kind, example in examples.items():
        (fault,) = parse_faults(f"- {example}", "simulation.md", PRESETS["h100x8"], 0.0, 0.0)
        assert fault.kind == kind


def test_the_example_file_works() -> None:
    """The YAML of the page can be copied."""
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)

    faults = parse_faults(block, "simulation.md", PRESETS["h100x8"], 0.0, 0.0)

    assert [fault.kind for fault in faults] == ["nvlink_down", "nvlink_crc"]


def test_every_preset_is_described() -> None:
    """One row for each."""
    assert set(re.findall(r"^\| `(\w+x\d)` \|", TEXT, re.MULTILINE)) == set(PRESETS)
