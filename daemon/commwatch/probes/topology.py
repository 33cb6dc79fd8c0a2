"""How the GPUs of this node are joined, for the probes: from sysfs, and from what the collectors know of the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import structlog

from commwatch.errors import CommwatchError
from commwatch.node.store import Store
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.model import Topology
from commwatch.node.topology.nvlink import stored_driver
from commwatch.node.topology.reach import GpuPaths, gpu_paths
from commwatch.node.topology.sysfs import SysfsFacts
from commwatch.workers.by_hand import ask_sysfs
from commwatch_exporters.node.model import NvLink, node_at

log = structlog.get_logger("commwatch.probing")

SYSFS_DEADLINE_SECONDS = 10.0


class ProbeTopology:
    """The topology of this node; the PCI tree is read once, and again when another GPU is here."""

    def __init__(self, store: Store, sysfs: str, procfs: str) -> None:
        """Nothing is read."""
        self._store = store
        self._roots = (sysfs, procfs)
        self._tree: SysfsFacts | None = None
        self._tree_of: frozenset[str] = frozenset()

    async def read(self, addresses: Sequence[str]) -> Topology | None:
        """The topology as it is now; None where the PCI tree cannot be read."""
        if self._tree is None or self._tree_of != frozenset(addresses):
            try:
                self._tree = await ask_sysfs(*self._roots, SYSFS_DEADLINE_SECONDS)
            except CommwatchError as error:
                log.warning("the PCI tree is not known to the probes", error=str(error))
                return None
            self._tree_of = frozenset(addresses)
        return build_topology(self._tree, stored_driver(self._store))

    def paths(self, topology: Topology, addresses: Sequence[str]) -> GpuPaths | None:
        """What should lie between the GPUs of a probe; None where the topology lacks one of them.

        Args:
            topology: of this node.
            addresses: PCI addresses by rank.
        """
        return gpu_paths(topology, addresses, self._expected_links())

    def _expected_links(self) -> Counter[str]:
        """NVLinks that each GPU should have, by PCI address, as the inventory has learned."""
        with node_at(self._store.snapshot()) as node:
            return Counter(link.address for link, _ in node.each(NvLink.expected))
