"""Which CPUs are near a GPU."""

from __future__ import annotations

import re
from pathlib import Path

_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def near_cpus(pci_address: str, sysfs: Path) -> frozenset[int]:
    """CPUs on the NUMA node of a PCI device; empty where the kernel does not say.

    Args:
        pci_address: ``0000:17:00.0``.
        sysfs: root of sysfs.
    """
    try:
        text = (sysfs / "bus/pci/devices" / pci_address / "local_cpulist").read_text()
    except OSError:
        return frozenset()
    return parse_cpus(text)


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs of a list as the kernel writes it: ``0-31,64-95``; empty for any other text."""
    ranges = [_RANGE.fullmatch(part) for part in text.strip().split(",")]
    if not all(ranges):
        return frozenset()
    return frozenset(cpu for one in ranges if one for cpu in range(int(one[1]), int(one[2] or one[1]) + 1))
