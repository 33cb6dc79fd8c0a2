"""Which collectors a configuration runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commwatch.config.settings import Config, Metrics, Paths
from commwatch.config.thresholds import load_thresholds
from commwatch.service.collectors import COLLECTORS, READERS
from commwatch.service.engine import Engine
from commwatch.service.instruments import Instruments
from commwatch.state.directory import StateDirectory
from commwatch.units import parse_duration
from commwatch_exporters.catalogue import OPT_IN
from support.core import PlannedJobs

SAMPLED = "commwatch_pcie_sampled_receive_rate_bytes_per_second"
OTHER = "commwatch_nvlink_link_low_power"


@pytest.mark.parametrize(("opt_in", "runs"), [((), False), ((SAMPLED,), True), ((OTHER,), False)])
def test_a_collector_that_is_only_for_some_metrics_waits_until_one_is_asked_for(
    tmp_path: Path, opt_in: tuple[str, ...], runs: bool
) -> None:
    """Sampling PCIe keeps the driver busy, so it is there only on request."""
    config = Config(metrics=Metrics(opt_in=opt_in), paths=Paths(procfs=str(tmp_path), sysfs=str(tmp_path)))
    engine = Engine(config, load_thresholds(None), StateDirectory(tmp_path), None, Instruments(), PlannedJobs())

    assert ("nvml_pcie_sampled" in engine.collection.collectors) == runs
    others = {plan.name for plan in COLLECTORS if not plan.only_for}
    assert others == set(engine.collection.collectors) - {"nvml_pcie_sampled"}


def test_every_collector_has_a_reader_a_cadence_and_metrics_that_can_be_asked_for() -> None:
    """Or it would not run, or never."""
    sources = {source for reader in READERS for source in reader.sources}
    for plan in COLLECTORS:
        assert plan.source in sources
        assert getattr(getattr(Config().sources, plan.source), plan.interval) > 0
        assert set(plan.only_for) <= OPT_IN


def test_the_documentation_names_every_collector_with_its_reader_and_cadence() -> None:
    """The table of docs/architecture.md is that of the code."""
    text = (Path(__file__).parents[2] / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:`(\w+)` )?\| `(\w+)` \| .* \| (\d+) (s|min) \|$", text, re.MULTILINE)
    told, reader = [], ""
    for named, collector, number, unit in rows:
        reader = named or reader
        told.append((reader, collector, parse_duration(number + unit[0])))

    readers = {source: reader.name for reader in READERS for source in reader.sources}
    assert sorted(told) == sorted(
        (readers[plan.source], plan.name, float(getattr(getattr(Config().sources, plan.source), plan.interval)))
        for plan in COLLECTORS
    )
