"""Which collectors a configuration runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commwatch.config.settings import Config, Metrics
from commwatch.sources.base import Origin
from commwatch.units import parse_duration
from commwatch.workers.sources import READERS, SOURCES, SourceRow
from commwatch_exporters.catalogue import OPT_IN
from support.fed_daemon import FedDaemon

SAMPLED = "commwatch_pcie_sampled_receive_rate_bytes_per_second"
OTHER = "commwatch_nvlink_link_low_power"


@pytest.mark.parametrize(("opt_in", "runs"), [((), False), ((SAMPLED,), True), ((OTHER,), False)])
def test_a_collector_that_is_only_for_some_metrics_waits_until_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opt_in: tuple[str, ...], runs: bool
) -> None:
    """Sampling PCIe keeps the driver busy, so it is there only on request."""
    engine = FedDaemon(tmp_path, monkeypatch, Config(metrics=Metrics(opt_in=opt_in))).engine

    assert ("nvml_pcie_sampled" in engine.collection.collectors) == runs
    others = {row.name for source in SOURCES.values() for row in source.collectors if not row.only_for}
    assert others == set(engine.collection.collectors) - {"nvml_pcie_sampled"}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_every_source_can_be_made_and_each_collector_has_a_cadence(source: SourceRow, tmp_path: Path) -> None:
    """A row names functions and settings that are there, all that the source collects, and what can be asked for."""
    origin = Origin(tmp_path, tmp_path, Config().sources)

    assert source.make(origin).collectors == tuple(row.key for row in source.collectors)
    assert not source.absent or source.why_absent(origin)
    for row in source.collectors:
        assert getattr(source.section(Config().sources), row.interval) > 0
        assert set(row.only_for) <= OPT_IN


def test_every_section_of_the_configuration_is_of_a_source_and_served_by_one_reader() -> None:
    """What can be set is read; a process serves each source, and none is served twice."""
    assert SOURCES.keys() == set(Config().sources.__struct_fields__)
    assert sorted(source.name for reader in READERS for source in reader.sources) == sorted(SOURCES)


def test_the_documentation_names_every_collector_with_its_reader_and_cadence() -> None:
    """The table of docs/engineering/architecture.md is that of the code."""
    text = (Path(__file__).parents[2] / "docs/engineering/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:`(\w+)` )?\| `(\w+)` \| .* \| (\d+) (s|min) \|$", text, re.MULTILINE)
    told, reader = [], ""
    for named, collector, number, unit in rows:
        reader = named or reader
        told.append((reader, collector, parse_duration(number + unit[0])))

    assert sorted(told) == sorted(
        (source.reader.name, row.name, float(getattr(source.section(Config().sources), row.interval)))
        for source in SOURCES.values()
        for row in source.collectors
    )
