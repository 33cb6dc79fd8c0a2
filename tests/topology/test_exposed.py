"""The topology made of metrics is that of the files and the driver; no branch fails on a healthy node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from commwatch.diagnosis.check import Branch
from commwatch.diagnosis.topology import topology_of
from commwatch.findings.api_documents import metric_records
from commwatch.findings.facts import Facts
from commwatch.findings.history import CounterHistory
from commwatch.jobs.settings.records import AuditRecord
from commwatch.node.topology.sysfs import read_sysfs
from commwatch_exporters.node.model import Node
from commwatch_rehearsal.simulation.presets import PRESETS
from diagnosis.exposed import branch_of, known_of
from support.simulated_daemon import whole_node
from topology.harness import codes, shown


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_metrics_tell_the_topology(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices, links, adapters and ways are those of sysfs, and a healthy node fails no check."""
    with whole_node(preset, tmp_path, monkeypatch) as node:
        snapshot = node.snapshot()
        read = {one.address: one for one in read_sysfs(*map(Path, node.roots)).devices}
    told = topology_of(Facts(Node(snapshot), CounterHistory({}), 1.0))

    assert {address: (device.parent, device.numa_node, device.link) for address, device in told.devices.items()} == {
        address: (one.ancestors[0], one.numa_node, one.link) for address, one in read.items()
    }
    assert [(gpu.index, gpu.address) for gpu in told.gpus] == [
        (place, gpu.pci_address) for place, gpu in enumerate(PRESETS[preset].gpus)
    ]
    assert {nic.address: (nic.rdma_devices, nic.interfaces) for nic in told.nics} == {
        one.address: (one.rdma_devices, one.interfaces) for one in read.values() if one.role == "nic"
    }
    assert "nvlink_unknown" not in codes(shown(told))

    known = known_of({}, audit=AuditRecord(read=8))
    known = replace(known, snapshot=structs.replace(known.snapshot, metrics=metric_records(snapshot)))
    branches: tuple[Branch, ...] = ("topology", "infiniband", "settings")
    checks = [check for branch in branches for check in branch_of(known, branch)]
    assert [check for check in checks if check.verdict == "failed"] == []
