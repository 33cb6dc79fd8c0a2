"""The GPUs that sysfs shows on the PCI bus, and whether they, or those that should be there, need NVIDIA's driver."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from commwatch.node.inventory import Inventory
from commwatch.sources.gpu_bus import gpus_to_list
from commwatch.sources.presence import NvidiaGpus, nvidia_gpus

_LOOK_SECONDS: Final = 10.0


class GpusOnBus:
    """
    Args:
        is_simulated: the node has no device files.
    """

    def __init__(self, inventory: Inventory, sysfs: Path, procfs: Path, *, is_simulated: bool = False) -> None:
        self._inventory = inventory
        self._sysfs, self._procfs = sysfs, procfs
        self._devices = (None,) if is_simulated else ()
        self._gpus = NvidiaGpus(0, 0)
        self._read_at = float("-inf")

    def gpus(self) -> NvidiaGpus:
        """Those that are there, read each 10 s at most."""
        now = time.monotonic()
        if now - self._read_at >= _LOOK_SECONDS:
            self._read_at, self._gpus = now, nvidia_gpus(self._sysfs)
        return self._gpus

    def to_list(self) -> frozenset[str]:
        """PCI addresses of those that the driver should list; see ``gpus_to_list``."""
        return gpus_to_list(self._sysfs, self._procfs, *self._devices)

    def is_driver_wanted(self, fault: str = "") -> bool:
        """Whether this node has or should have GPUs for the NVIDIA driver, so that one that fails is a fault.

        GPUs that another driver holds for a virtual machine need none, and ``inventory.expected: {gpu: 0}`` means that
        no GPU does.

        Args:
            fault: of the driver; that it lists no GPU is one only while GPUs for it are on the bus.
        """
        expected = self._inventory.due("gpu")
        if expected == 0:
            return False
        bus = self.gpus()
        if bus.ours or fault == "no_gpu":
            return bus.ours > 0
        return bool(expected) and not bus.handed_on
