"""commwatch's metrics in the registry of another program, as docs/using/api.md shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.node_collector import Format
from commwatch_rehearsal.simulation.node import SimulatedNode
from support.pages import families_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "using" / "api.md"


def test_the_example_shows_the_interfaces_of_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands in the document, but for the machine, which is a simulated node here."""
    SimulatedNode("h100x8ndr", None, 0.0).write_sysfs(tmp_path)
    example = DOCUMENT.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    names: dict[str, object] = {}

    exec(example.replace('Path("/sys")', f"Path({str(tmp_path)!r})"), names)  # noqa: S102 - what the test is about
    page = capsys.readouterr().out

    [carrier] = [one for one in families_of(page, Format.TEXT) if one.name == "commwatch_ethernet_carrier"]
    assert carrier.documentation == CATALOGUE["commwatch_ethernet_carrier"].text
    assert {sample.value for sample in carrier.samples} == {1.0}
    registry, collector = names["registry"], names["NodeCollector"]
    assert isinstance(registry, CollectorRegistry)
    assert isinstance(collector, type)
    with pytest.raises(ValueError, match="commwatch_ethernet_carrier"):
        registry.register(collector(names["snapshot"]))
