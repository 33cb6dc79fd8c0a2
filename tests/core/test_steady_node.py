"""A node of which most stays as it was: what is kept from look to look is what would be made again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import Config, Duration, Inventory, Paths
from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.finding import Sighting
from commwatch.findings.history import CounterHistory
from commwatch.findings.looking import Looking
from commwatch.findings.rules import RULE_SETS
from commwatch.node import observation
from commwatch.node.changes import Changes
from commwatch.node.observation import READ, observe_blocks
from commwatch.service.pipeline import OBSERVED, Pipeline
from commwatch_exporters.snapshot import Block, Series, Value
from support.examples import examples
from support.facts import shipped
from support.whole_node import STARTED_AT, WholeNode, whole_node

FAULTS = (
    "{fault: nvlink_down, gpu: 1, link: 2", "{fault: nvlink_crc, gpu: 0, link: 2, rate: 200/s",
    "{fault: nvlink_recovery, gpu: 0, link: 1, rate: 600/h", "{fault: pcie_width, gpu: 1, lanes: 8",
    "{fault: pcie_replay, gpu: 1, rate: 5/s", "{fault: gpu_lost, gpu: 2", "{fault: gpu_missing, gpu: 1",
    "{fault: gpu_throttled, gpu: 0, reason: hw_thermal", "{fault: gpu_calls_fail, gpu: 3, error: unknown",
    "{fault: fabric_unhealthy, gpu: 2, check: bandwidth", "{fault: job, nvlink_utilization: 0.25",
    "{fault: counter_reset, gpu: 0", "{fault: counter_blank, gpu: 0, value: zero", "{fault: p2p_broken, gpu: 2",
    "{fault: ethernet_down, interface: ens1np0", "{fault: recovery_needed, gpu: 3, action: gpu_reset",
)  # fmt: skip
RUNS = ((), (), ("nvml_nvlink", "nvml_gpu"), ("nvml_identity", "nvml_nvlink_errors", "pci"), ("nvml_gpm", "nvml_pcie"))
"""Collectors that run together, all of them in the first two."""
STEPS = st.lists(st.tuples(st.sampled_from((1.0, 10.0, 10.0, 40.0, 170.0, 700.0)), st.sampled_from(RUNS)), max_size=12)
STRUCK = st.lists(
    st.tuples(st.sampled_from(FAULTS), st.sampled_from((0, 15, 60, 250)), st.sampled_from((15, 60, 400, 5000))),
    max_size=3,
)

Told = list[tuple[dict[Series, Value], list[Sighting], Any]]
"""At each step: the page, what the rules sight, and the inventory in words."""


def forget_all(pipeline: Pipeline) -> None:
    """Everything is to be made again at the next observation."""
    pipeline._changes = Changes(READ)
    pipeline._judged = ()
    pipeline._inventory._watched = None


def play(folder: Path, preset: str, faults: str, steps: list[tuple[float, tuple[str, ...]]]) -> Told:
    """Some runs of the collectors of a node, with a look of the rules after each."""
    config = Config(paths=Paths(state=str(folder)), inventory=Inventory(learn_after=Duration(30)))
    told: Told = []
    looking = Looking(RULE_SETS, shipped(), CounterHistory(WATCHED, EVENTS), lambda name, error: None)
    node = WholeNode(preset, folder, faults=faults, config=config)
    try:
        for seconds, names in [(0.0, ()), (1.0, ()), *steps]:
            node.time += seconds
            node.run(*names)
            snapshot = node.snapshot()
            page = {
                series: value
                for block in snapshot.blocks
                for series, value in zip(block.layout.series, block.values, strict=True)
                if series[0] != "commwatch_gpu_last_xid_timestamp_seconds"  # by the clock of this machine
            }
            told.append((page, looking.at(snapshot, STARTED_AT + node.time), node._pipeline.describe_inventory()))
    finally:
        node.close()
    return told


@given(struck=STRUCK, steps=STEPS, preset=st.sampled_from(("h100x8", "b200x8")))
@examples(10, one_fixture=True)
def test_what_is_kept_is_what_would_be_made_anew(
    struck: list[tuple[str, int, int]],
    steps: list[tuple[float, tuple[str, ...]]],
    preset: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Page, sightings and inventory at each step, while any faults come and go and what is new is learned."""
    faults = "".join(f"- {fault}, at: {WholeNode.time + at:g}s, for: {length}s}}\n" for fault, at, length in struck)
    told = []
    for anew in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pynvml.nvmlLib", None)
            patch.setattr("pynvml._nvmlGetFunctionPointer_cache", {})
            if anew:
                observe, at = Pipeline.observe, Looking.at

                def observe_anew(self: Pipeline, now: float, observe: Any = observe) -> None:
                    forget_all(self)
                    observe(self, now)

                def look_anew(self: Looking, *given: Any, at: Any = at) -> Any:
                    self._sighted = [None] * len(self._sighted)
                    return at(self, *given)

                patch.setattr(Pipeline, "observe", observe_anew)
                patch.setattr(Looking, "at", look_anew)
            told.append(play(tmp_path_factory.mktemp("node"), preset, faults, steps))

    assert told[0] == told[1]


def test_an_observation_reads_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it and nothing else: it is made again where one of these metrics has changed."""
    read: set[str] = set()

    def recorded(blocks: Iterable[Block], metric: str) -> Iterator[tuple[tuple[str, ...], int | float]]:
        read.add(metric)
        return iter(())

    monkeypatch.setattr(observation, "_samples", recorded)
    observe_blocks([], {name.removeprefix("nvml_") for name in OBSERVED})

    assert read == READ


def test_the_blocks_of_the_inventory_stay_the_same_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are counted all the time; the inventory and the states of the GPUs are as they were, and cost nothing."""
    with whole_node("h100x8", tmp_path, monkeypatch) as node:
        node.run()
        kept = [node.store.get(group, "") for group in ("inventory", "gpu_state")]
        for minutes in range(1, 10):
            node.time = 3600.0 + 60.0 * minutes
            node.run()
            assert [node.store.get(group, "") for group in ("inventory", "gpu_state")] == kept
            assert node._pipeline.describe_inventory()["kinds"]["gpu"]["learning_seconds"] == 60 * (10 - minutes)
        assert node.snapshot().value("commwatch_expected", "ethernet_port") is None
        node.time = 3600.0 + 660.0
        node.run()
        assert node.snapshot().value("commwatch_expected", "ethernet_port") == 2
