"""Which sources a node needs: what is not on it, and is not missed, is not read."""

from __future__ import annotations

from pathlib import Path

from commwatch.config.settings import Paths, Sources
from commwatch.config.simulated import SimulationPlan
from commwatch.node.gpus_on_bus import GpusOnBus
from commwatch.node.inventory_tracker import InventoryTracker
from commwatch.sources.base import Origin
from commwatch.sources.presence import nvidia_driver_present
from commwatch.workers.sources import SOURCES


class Presence:
    """What is on this node, or should be."""

    def __init__(
        self, roots: Paths | SimulationPlan, procfs: Path, sources: Sources, inventory: InventoryTracker, bus: GpusOnBus
    ) -> None:
        """Args:
        roots: where the node shows itself.
        procfs: where the driver of a real node does.
        sources: their configuration.
        inventory: knows what should be here.
        bus: knows the GPUs on the PCI bus.
        """
        self._origin = Origin(Path(roots.sysfs), Path(roots.procfs), sources)
        self._is_simulated = isinstance(roots, SimulationPlan)
        self._procfs = procfs
        self._inventory = inventory
        self._bus = bus

    def has_driver(self) -> bool:
        """Whether this node has an NVIDIA driver that could be read."""
        return self._is_simulated or nvidia_driver_present(self._procfs)

    def is_driver_expected(self) -> bool:
        """Whether this node has an NVIDIA driver, or should have one."""
        return self.has_driver() or self._bus.is_driver_wanted()

    def why_absent(self, source: str) -> str | None:
        """Why a source is not needed on this node; None where it is."""
        if SOURCES[source].needs_gpus:
            if self.is_driver_expected():
                return None
            return "no NVIDIA driver is loaded and no GPU is on the PCI bus; to see a GPU node: --simulate h100x8"
        if source == "rdma" and self._inventory.expects("rdma_port"):
            return None  # ports that should be here and are not are a fault
        return SOURCES[source].why_absent(self._origin)
