"""Which collectors a configuration runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commwatch.config.settings import Config
from commwatch.readings import Absence
from commwatch.sources.base import Origin
from commwatch.units import parse_duration
from commwatch.workers.sources import READERS, SOURCES, SourceRow
from support.core import SLOTS, collected
from support.fed_daemon import FedDaemon
from support.simulated_daemon import rehearsed

SAMPLES = "nvml_pcie_sampled"


@pytest.mark.parametrize(("preset", "runs"), [("h200x1", False), ("a10x2", True)])
def test_pcie_traffic_is_sampled_only_on_nodes_with_gpus_that_do_not_measure_it(
    preset: str, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is ordered of the process for it on others, so that it is not started."""
    with rehearsed(preset, tmp_path, monkeypatch) as node:
        node.start()
        assert (node.engine.collection.collectors[SAMPLES].state == "runs") == runs
        node.step_to(30.0)
        rates = [value for _, value in node.store.snapshot().samples("commwatch_pcie_transmit_rate_bytes_per_second")]
        assert rates
        assert None not in rates


def test_one_gpu_without_gpm_among_others_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that fails in that run, or a run that was cut short, shows nothing."""
    node = FedDaemon(tmp_path, monkeypatch)
    rate = {("commwatch_pcie_transmit_rate_bytes_per_second", ("0", SLOTS[0])): 1.0}
    told = []

    def run(*absences: Absence) -> None:
        node.feed("nvml_gpm", collected({SLOTS[0]: node.block(rate)}, *absences))
        told.append(node.engine.pipeline.without_gpm.why_not_sampled is None)

    run()
    node.feed("nvml_identity", {slot: {("commwatch_gpu_info", (str(gpu), slot, "", "", "", "")): 1}
                                for gpu, slot in enumerate(SLOTS)})  # fmt: skip
    run(Absence(SLOTS[1], "unreadable", "x"))
    run(Absence("", "deadline", "x"))
    run()
    run(Absence("", "crashed", "x"))

    assert told == [False, False, False, True, True]


@pytest.mark.parametrize(("gpus", "interval"), [(0, 10.0), (1, 10.0), (8, 10.0), (9, 20.0), (16, 20.0), (17, 30.0)])
def test_more_gpus_are_sampled_less_often(
    gpus: int, interval: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each blocks the process for 40 ms, so that it is blocked for 3.2 % of its time at most."""
    node = FedDaemon(tmp_path, monkeypatch)
    names = [f"0000:{gpu:02x}:00.0" for gpu in range(gpus)]
    rate = "commwatch_pcie_transmit_rate_bytes_per_second"

    node.feed(SAMPLES, {name: {(rate, (str(gpu), name)): 1.0} for gpu, name in enumerate(names)})

    collector = node.engine.collection.collectors[SAMPLES]
    assert collector.current_interval == interval
    reader = node.engine.collection.reader_of(collector)
    assert reader.orders[-1] == (SAMPLES, interval)  # type: ignore[attr-defined]
    node.feed(SAMPLES, {})
    assert collector.current_interval == 10.0


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_every_source_can_be_made_and_each_collector_has_a_cadence(source: SourceRow, tmp_path: Path) -> None:
    """A row names functions and settings that are there, all that the source collects, and what can be asked for."""
    origin = Origin(tmp_path, tmp_path, Config().sources)

    assert source.make(origin).collectors == tuple(row.key for row in source.collectors)
    assert not source.absent or source.why_absent(origin)
    for row in source.collectors:
        assert getattr(source.section(Config().sources), row.interval) > 0


def test_every_section_of_the_configuration_is_of_a_source_and_served_by_one_reader() -> None:
    """What can be set is read; a process serves each source, and none is served twice."""
    assert {row.completes or name for name, row in SOURCES.items()} == set(Config().sources.__struct_fields__)
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
