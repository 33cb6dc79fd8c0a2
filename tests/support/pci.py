"""Trees of PCI devices as the kernel lays them out, for the tests of what reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from commwatch.readings import Batch
from commwatch.sources.base import Source
from support.sources import source_of

GPU = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"}
NIC = {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"}
BRIDGE = {"class": "0x060400", "vendor": "0x1000", "device": "0xc030"}
NVSWITCH = {"class": "0x068000", "vendor": "0x10de", "device": "0x22a3"}
LINK = {
    "current_link_speed": "32.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_width": "16",
    "numa_node": "0",
}


def add_device(sysfs: Path, path: str, *contents: Mapping[str, str | bytes]) -> Path:
    """Make a device at a path below /sys/devices, such as ``pci0000:17/0000:17:01.0/0000:18:00.0``."""
    home = sysfs / "devices" / path
    home.mkdir(parents=True, exist_ok=True)
    for files in contents:
        for name, text in files.items():
            (home / name).write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
    listing = sysfs / "bus/pci/devices"
    listing.mkdir(parents=True, exist_ok=True)
    (listing / home.name).symlink_to(os.path.relpath(home, listing))
    return home


def opened(sysfs: Path) -> Source:
    return source_of("pci", sysfs)


def infos(batch: Batch) -> dict[str, tuple[str, ...]]:
    """Role, parent and NUMA node of each device."""
    return {
        labels[0]: labels[1:4]
        for reading in batch.readings
        for name, labels in reading.series
        if name == "commwatch_pcie_device_info"
    }
