"""Attributes of PCI devices as sysfs writes them: link speed and width, class, the way to the root."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from commwatch.sources import files

_NVIDIA = "0x10de"


_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCIe generation by transfer rate, GT/s."""


_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
"""The widths that PCIe has. The kernel gives 0 or 255 for unknown, 63 for a device that is off its bus."""


_NUMBER = re.compile(rb"\s*([0-9]{1,3}(?:\.[0-9]{1,2})?)(?![0-9.])")


_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def parse_generation(data: bytes) -> int | None:
    """The generation of a link speed such as ``32.0 GT/s PCIe``; None for ``Unknown`` and all else."""
    match = _NUMBER.match(data)
    return _GENERATIONS.get(float(match[1])) if match else None


def parse_width(data: bytes) -> int | None:
    """The lanes of a link; None where the kernel does not know them."""
    lanes = files.parse_integer(data)
    return lanes if lanes in _WIDTHS else None


def endpoint_role(pci_class: str, vendor: str) -> str | None:
    """``gpu``, ``nic`` or ``nvswitch`` by PCI class (``0x030200``) and vendor (``0x10de``); None for all else."""
    if pci_class.startswith("0x03") and vendor == _NVIDIA:
        return "gpu"
    if pci_class.startswith(("0x0200", "0x0207")):
        return "nic"
    if pci_class.startswith("0x0680") and vendor == _NVIDIA:
        return "nvswitch"
    return None


def ancestors_of(chain: Iterable[str]) -> list[str]:
    """The bridges in a device's path, nearest first, up to and with the host bridge.

    Args:
        chain: the names on the way from the device to the root, the device first.
    """
    above = []
    for name in list(chain)[1:]:
        if files.is_pci_address(name):
            above.append(name)
        elif _HOST_BRIDGE.fullmatch(name):
            return [*above, name]
    return above


def bridge_roles(ancestors: Sequence[str]) -> dict[str, str]:
    """The role of each bridge above a device: the last before the host bridge is the root port."""
    bridges = [name for name in ancestors if files.is_pci_address(name)]
    return {bridge: "root_port" if bridge == bridges[-1] else "switch_port" for bridge in bridges}
