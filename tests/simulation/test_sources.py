"""The production readers on the generated files of a node: nothing that they ask for is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commwatch.config.settings import Sources, section_json
from commwatch.simulation.describe import fault_example
from commwatch.simulation.faults.kinds import KINDS
from commwatch.simulation.kernel_log import SimulatedKernelLog
from commwatch.simulation.presets import PRESETS
from commwatch.workers.child import make_source
from commwatch.workers.wire import WorkerPlan
from simulation.harness import Rehearsal

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
    plan = WorkerPlan((name,), section_json(Sources()), str(sysfs), str(procfs), (), None, None)
    source = make_source(name, plan, node)

    if name == "rdma" and not PRESETS[preset].rdma_ports:
        assert not (sysfs / "class/infiniband").exists()
        return
    source.open(lambda _device: None, frozenset(), None)
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
        assert [key for key, value in values.items() if value is None] == []
    source.close()


@pytest.mark.parametrize("name", KINDS)
def test_no_kind_of_fault_breaks_the_node_itself(rehearse: Rehearse, tmp_path: Path, name: str) -> None:
    """While the example of the documentation holds, GPUs, files and kernel log go on answering in their own way."""
    kind = KINDS[name]
    node = rehearse(kind.preset, f"- {fault_example(name, kind)}", 5.0).node

    hardware, now = node.now()
    assert [fault.kind for fault in hardware.faults if fault.active(now)] == [name]
    assert len(hardware.epoch(now).gpus) == len(PRESETS[kind.preset].gpus)
    node.write_sysfs(tmp_path / "sys")
    node.write_procfs(tmp_path / "proc")
    if name == "kernel_log_unreadable":
        with pytest.raises(PermissionError):
            SimulatedKernelLog(node)
    else:
        assert SimulatedKernelLog(node).read()
