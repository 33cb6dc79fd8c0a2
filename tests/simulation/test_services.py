"""The services source over the simulated process table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commwatch.sources.base import Source
from commwatch_exporters.snapshot import Value
from simulation.harness import Rehearsal
from support.sources import source_of


def states(rehearsal: Rehearsal, source: Source, folder: Path) -> dict[str, Value]:
    """What is told of the services now; what else the source reads is left out."""
    rehearsal.node.write_sysfs(folder / "sys")
    rehearsal.node.write_procfs(folder / "proc")
    return {
        labels[0]: value
        for reading in source.collect("services").readings
        for (metric, labels), value in zip(reading.series, reading.values, strict=True)
        if metric == "commwatch_service_running"
    }


def test_a_stopped_fabric_manager_is_seen_and_so_is_its_return(
    rehearse: Callable[..., Rehearsal], tmp_path: Path
) -> None:
    """It stops at 10 s and is started again, as another process, at 20 s."""
    rehearsal = rehearse("h100x8", "- {fault: service_stopped, service: nv-fabricmanager, at: 10s, for: 10s}", now=9.0)
    rehearsal.node.write_procfs(tmp_path / "proc")
    source = source_of("services", tmp_path / "sys", tmp_path / "proc")
    running = {"nvidia-fabricmanager": 1, "nvidia-persistenced": 1}

    assert states(rehearsal, source, tmp_path) == running
    rehearsal.now = 10.0
    assert states(rehearsal, source, tmp_path) == {**running, "nvidia-fabricmanager": 0}
    rehearsal.now = 20.0
    assert states(rehearsal, source, tmp_path) == running


def test_a_node_without_nvswitches_needs_no_fabric_manager(rehearse: Callable[..., Rehearsal], tmp_path: Path) -> None:
    """Of GPUs without a switch only the persistence daemon is told."""
    source = source_of("services", tmp_path / "sys", tmp_path / "proc")

    assert states(rehearse("a10x2"), source, tmp_path) == {"nvidia-persistenced": 1}
