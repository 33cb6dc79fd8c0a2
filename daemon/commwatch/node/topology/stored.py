"""What the store knows of the driver of this node: GPUs and NVLinks."""

from __future__ import annotations

from commwatch.node.store import Store
from commwatch.node.topology.nvlink import COLLECTORS, DriverFacts, driver_facts
from commwatch_exporters.node.model import node_at
from commwatch_exporters.snapshot import Snapshot


def stored_driver(store: Store) -> DriverFacts:
    """GPUs and NVLinks as the collectors of the driver read them last."""
    blocks = [block for collector in COLLECTORS for block in store.group(f"nvml_{collector}").values()]
    with node_at(Snapshot(blocks)) as node:
        return driver_facts(node)
