"""Each collector in turn gives no reading on a healthy node: never OK meanwhile, no part blamed, and OK again after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from commwatch.config.settings import Config, Inventory, Paths, Simulation
from commwatch.findings.health import BLIND
from commwatch.node.run import Collected, failed
from commwatch.readings import Absence
from commwatch.workers.sources import SOURCES
from support.drill_faces import faces_agree
from support.simulated_daemon import Outage, SimulatedDaemon, simulated

NODE = """
like: h100x8ndr
gpus: 2
nics:
  - {rdma: mlx5_0, speed: 400, near_gpu: 0}
  - {interface: ens1np0, rdma: mlx5_2, speed: 100, numa: 1}
"""
COLLECTORS = [
    one.name for row in SOURCES.values() if not (row.of_jobs or row.completes) for one in row.collectors
]  # fmt: skip
LEARNED_AT = 720.0
STEP = 15.0
LASTS = 360.0
"""Seconds for which nothing is read: longer than a device may fail before that is a warning."""
HEALED_WITHIN = 600.0
OF_THE_READING = BLIND | {"source_unread", "driver_calls_failing", "driver_silent"}
"""Findings that name no part of the node."""


def as_a_whole(given: Collected) -> Collected:
    """The collector fails."""
    return failed("", Absence("", "unreadable", "Unknown Error"))


def on_each_device(given: Collected) -> Collected:
    """All that is asked of a device fails, of each."""
    devices = [device for device in given.blocks if device]
    absences = [Absence(device, "unreadable", "Unknown Error") for device in devices]
    return replace(given, blocks={"": given.blocks[""]} if "" in given.blocks else {}, absences=absences)


def on_one_device(given: Collected) -> Collected:
    """The same of the first."""
    device = min(device for device in given.blocks if device)
    blocks = {name: block for name, block in given.blocks.items() if name != device}
    return replace(given, blocks=blocks, absences=[Absence(device, "unreadable", "Unknown Error")])


WITHOUT_DEVICES = {"nvml_events", "services", "kernel_log"}
WAYS: Mapping[str, Outage] = {one.__name__: one for one in (as_a_whole, on_each_device, on_one_device)}
CASES = [
    (collector, way) for collector in COLLECTORS for way in WAYS
    if way == as_a_whole.__name__ or collector not in WITHOUT_DEVICES
]  # fmt: skip


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[SimulatedDaemon]:
    """It has learned the node."""
    (tmp_path / "node.yaml").write_text(NODE)
    config = Config(
        paths=Paths(state=str(tmp_path / "state")), simulation=Simulation(preset=str(tmp_path / "node.yaml")),
        inventory=Inventory(expected={"gpu": 2}),
    )  # fmt: skip
    with simulated(str(tmp_path / "node.yaml"), tmp_path, config=config) as daemon:
        for place in range(1, 13):
            daemon.step_to(LEARNED_AT / 12 * place)
        yield daemon


def verdict(daemon: SimulatedDaemon) -> tuple[str, str]:
    """Word and line."""
    said = daemon.findings()["verdict"]
    return said["word"], said["line"]


@pytest.mark.parametrize(("collector", "way"), CASES)
def test_what_is_not_read_is_never_ok(collector: str, way: str, daemon: SimulatedDaemon) -> None:
    """From two intervals and 30 s on, with words that name it; probes go on where the GPUs are still known."""
    assert verdict(daemon)[0] == "OK"
    interval = daemon.engine.collection.collectors[collector].current_interval
    late = daemon.time + 2.0 * interval + 30.0 + 2.0 * STEP
    daemon.outages[collector] = WAYS[way]
    while daemon.time < late + LASTS:
        daemon.step_to(daemon.time + STEP)
        assert {one["code"] for one in daemon.findings()["findings"]} <= OF_THE_READING
        assert daemon.time < late or verdict(daemon)[0] != "OK", f"after {daemon.time - LEARNED_AT:.0f} s"
    faces_agree(daemon)

    daemon.outages.clear()
    healed = daemon.time + max(HEALED_WITHIN, interval + STEP)
    while daemon.time < healed:
        daemon.step_to(daemon.time + STEP)
    assert verdict(daemon) == ("OK", "no warning or critical finding")
    assert daemon.findings()["findings"] == []
