"""NVIDIA's GPUs on the PCI bus, by the kernel driver that serves them, and those that NVIDIA's driver should list."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from commwatch.sources import files
from commwatch.sources.pci_attributes import endpoint_role

_KIND_FILES: Final = ("class", "vendor")
_DRIVER: Final = "nvidia"
_DEVICES: Final = Path("/dev")
_DEVICE_FILE: Final = re.compile(r"nvidia[0-9]{1,3}")
_PARAMETER_BYTES: Final = 64 * 1024
_EXCLUDING: Final = ("ExcludedGpus", "GpuBlacklist")
"""Parameters of the kernel module that name GPUs to leave out; the second is of older drivers."""


def gpus_to_list(sysfs: Path, procfs: Path, devices: Path | None = _DEVICES) -> frozenset[str]:
    """PCI addresses of the GPUs that NVIDIA's driver should list here: bound to it, and meant for this process.

    A container that was given a part of them has fewer device files (``/dev/nvidia0``), which do not show which GPUs
    they are, or has the folders of its own below ``/proc/driver/nvidia/gpus``. The module's parameter
    ``NVreg_ExcludedGpus`` names GPUs by their UUID. Empty where some are withheld and it is not known which.

    Args:
        devices: usually ``/dev``; None on a simulated node, which has no device files.
    """
    bound = frozenset(address for address, _, driver in gpus_on_bus(sysfs) if driver == _DRIVER)
    files_here = 0 if devices is None else sum(bool(_DEVICE_FILE.fullmatch(name)) for name in _names(devices))
    if 0 < files_here < len(bound) or _excludes_gpus(procfs):
        return frozenset()
    shown = frozenset(name.lower() for name in _names(procfs / "driver/nvidia/gpus"))
    return bound & shown if shown else bound


def bound_devices(sysfs: Path) -> frozenset[str]:
    """PCI addresses of all devices that NVIDIA's driver is bound to, NVSwitches too, from one listing of its folder."""
    return frozenset(filter(files.is_pci_address, _names(sysfs / "bus/pci/drivers" / _DRIVER)))


def _excludes_gpus(procfs: Path) -> bool:
    """Whether the driver is configured to exclude GPUs; False if its parameters cannot be read."""
    text = (files.read_if_there(f"{procfs}/driver/nvidia/params", _PARAMETER_BYTES) or b"").decode(errors="replace")
    named = dict(line.partition(":")[::2] for line in text.splitlines())
    return any(named.get(name, "").strip(' \t"') for name in _EXCLUDING)


def _names(folder: Path) -> Sequence[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return ()


def gpus_on_bus(sysfs: Path) -> Iterator[tuple[str, str, str]]:
    """PCI address, class and kernel driver of NVIDIA's GPUs; the driver is empty where none serves it. None where the
    bus cannot be read."""
    root = sysfs / "bus/pci/devices"
    for address in filter(files.is_pci_address, _names(root)):
        base = f"{root}/{address}"
        pci_class, vendor = (files.parse_word(files.read_if_there(f"{base}/{name}") or b"") for name in _KIND_FILES)
        if endpoint_role(pci_class, vendor) != "gpu" or os.path.lexists(f"{base}/physfn"):
            continue
        yield address, pci_class, files.link_name(f"{base}/driver")
