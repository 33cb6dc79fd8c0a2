"""The production readers on the generated files of a node: nothing that they ask for is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commwatch_rehearsal.simulation.faults.kinds import KINDS
from commwatch_rehearsal.simulation.presets import PRESETS
from simulation.harness import Rehearsal
from support.sources import source_of, stand_in_of

Rehearse = Callable[..., Rehearsal]
FILES = ("network", "pci", "rdma", "services", "kernel_log")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("preset", ["h100x8ndr", "a10x2"])
def test_a_healthy_node_can_be_read(rehearse: Rehearse, tmp_path: Path, preset: str, name: str) -> None:
    """Every collector of every source of files gets values for all that it finds, and no reason to complain."""
    node = rehearse(preset).node
    sysfs, procfs = tmp_path / "sys", tmp_path / "proc"
    node.write_sysfs(sysfs, (name,))
    node.write_procfs(procfs)
    if name == "rdma" and not PRESETS[preset].rdma_ports:
        assert not (sysfs / "class/infiniband").exists()
        return
    log = (lambda: stand_in_of("kernel_log", node)) if name == "kernel_log" else None
    source = source_of(name, sysfs, procfs, stand_in=log)
    for collector in source.collectors:
        batch = source.collect(collector)
        assert batch.absences == []
        values = {
            (readings.device, *series): value
            for readings in batch.readings
            for series, value in zip(readings.series, readings.values, strict=True)
        }
        assert values
        # A link that is healthy has a speed, a counter a count: what is None would have been read in vain.
        # Adapters without virtual functions have no number of them.
        absent = {metric for (_, metric, _), value in values.items() if value is None}
        assert absent <= {"commwatch_rdma_port_virtual_functions"}
    source.close()


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files of each preset, in which a later node changes what differs."""
    return tmp_path_factory.mktemp("trees")


@pytest.mark.parametrize("name", KINDS)
def test_no_kind_of_fault_breaks_the_node_itself(rehearse: Rehearse, trees: Path, name: str) -> None:
    """While the example of the documentation holds, GPUs, files and kernel log go on answering in their own way."""
    kind = KINDS[name]
    node = rehearse(kind.preset, f"- {kind.entry(name)}", 5.0).node

    hardware, now = node.now()
    assert [fault.kind for fault in hardware.faults if fault.active(now)] == [name]
    assert len(hardware.epoch(now).gpus) == len(PRESETS[kind.preset].gpus)
    node.write_sysfs(trees / kind.preset / "sys")
    node.write_procfs(trees / kind.preset / "proc")
    if name == "kernel_log_unreadable":
        with pytest.raises(PermissionError):
            stand_in_of("kernel_log", node)
    else:
        assert stand_in_of("kernel_log", node).read()
