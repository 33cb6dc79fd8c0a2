"""The sysfs tree of a simulated node, in parts: each process keeps those up to date that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.tree.infiniband import infiniband_tree
from commwatch_rehearsal.simulation.tree.network import network_tree
from commwatch_rehearsal.simulation.tree.pci import pci_tree
from commwatch_rehearsal.simulation.tree.writer import Tree

PARTS: Mapping[str, Callable[[Hardware, float], Tree]] = {
    "pci": pci_tree,
    "network": network_tree,
    "rdma": infiniband_tree,
}
"""Each part at a time, seconds since the node started, by the name of the source that reads it."""


def sysfs_tree(hardware: Hardware, time: float) -> Tree:
    """All parts."""
    return {path: entry for make in PARTS.values() for path, entry in make(hardware, time).items()}
