"""Whether all parts of a kind were read, so that one that is not here is gone."""

from __future__ import annotations

from commwatch.findings.facts import Facts
from commwatch_exporters.node.model import Collector, Inventory

ALL_READ = (Collector.success, Inventory.present)
"""What ``all_read`` reads."""


def all_read(facts: Facts, collector: str, kind: str) -> bool:
    """Whether a part that is not on the page is not on the node: its collector read all there is.

    Args:
        facts: of now.
        collector: that reads parts of the kind.
        kind: as the inventory calls it: ``rdma_port``.
    """
    node = facts.node
    return node.part(Collector, collector).success == 1 and node.part(Inventory, kind).present is not None
