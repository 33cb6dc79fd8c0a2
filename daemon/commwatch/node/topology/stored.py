"""What the store knows of the driver of this node: GPUs and NVLinks."""

from __future__ import annotations

from commwatch.node.store import Store
from commwatch.node.topology.nvlink import COLLECTORS, DriverFacts, driver_facts


def stored_driver(store: Store) -> DriverFacts:
    """GPUs and NVLinks as the collectors of the driver read them last."""
    return driver_facts(
        sample
        for collector in COLLECTORS
        for block in store.group(f"nvml_{collector}").values()
        for sample in zip(block.layout.series, block.values, strict=True)
    )
