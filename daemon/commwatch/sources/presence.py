"""Whether the origin of a source is on this node at all, and which boot of it this is; opens no device.

The daemon itself uses it, so all of it is here: the source's own module is imported in its worker alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from commwatch.readings import SourceUnavailable
from commwatch.sources import files, interfaces
from commwatch.sources.base import Origin
from commwatch.sources.ethtool.table import DRIVERS
from commwatch.sources.gpu_bus import gpus_on_bus
from commwatch.sources.services import node_processes_visible

_OWN_DRIVERS: Final = frozenset({"", "nvidia"})
"""Kernel drivers of a GPU that NVIDIA's driver should serve; none where it has not been loaded."""
_OPEN_DRIVERS: Final = frozenset({"nouveau", "nova", "nova_core", "nova-core"})
_CPU_INFO_BYTES: Final = 64 * 1024
_DISPLAY: Final = "0x0300"
"""PCI class of a GPU with a display; those for computing alone have 0x0302."""


class NvidiaGpus(NamedTuple):
    """NVIDIA's GPUs on the PCI bus, by who should serve them."""

    ours: int
    """Those of NVIDIA's driver: bound to it or to none, and those for computing that nouveau has taken."""
    handed_on: int
    """Those that another driver holds on purpose, as vfio-pci does for a virtual machine."""


def nvidia_gpus(sysfs: Path) -> NvidiaGpus:
    """The GPUs that sysfs shows, driver or not; a display that nouveau serves counts as neither."""
    ours = handed_on = 0
    for _, pci_class, driver in gpus_on_bus(sysfs):
        if driver in _OWN_DRIVERS or (driver in _OPEN_DRIVERS and not pci_class.startswith(_DISPLAY)):
            ours += 1
        elif driver not in _OPEN_DRIVERS:
            handed_on += 1
    return NvidiaGpus(ours, handed_on)


def nvidia_driver_present(procfs: Path) -> bool:
    """Whether an NVIDIA kernel driver is loaded."""
    # Asked at each run of each collector of the driver, where pathlib would cost more than the kernel.
    return os.path.exists(f"{procfs}/driver/nvidia/version") or os.path.exists("/dev/nvidiactl")


def is_virtual(procfs: Path) -> bool | None:
    """Whether this is a virtual machine, by the flag that x86 processors show in one; None where they show no flags."""
    lines = (files.read_if_there(f"{procfs}/cpuinfo", _CPU_INFO_BYTES) or b"").splitlines()
    flags = next((line.split() for line in lines if line.startswith(b"flags")), None)
    return None if flags is None else b"hypervisor" in flags


def boot_identity(procfs: str) -> str:
    """The identity of this boot of the node; empty if it cannot be read."""
    return files.parse_word(files.read_if_there(f"{procfs}/sys/kernel/random/boot_id") or b"")


def driver_absent(origin: Origin) -> str | None:
    """Why the driver cannot be read; None where one is loaded."""
    return None if nvidia_driver_present(origin.procfs) else "no NVIDIA driver is loaded"


def rdma_absent(origin: Origin) -> str | None:
    """Why no RDMA port can be read on this node; None where there is an RDMA device, or its folder cannot be listed."""
    try:
        devices = os.listdir(f"{origin.sysfs}/class/infiniband")
    except (FileNotFoundError, NotADirectoryError):
        devices = []
    except OSError:
        return None  # the source gives the reason
    return None if devices else "no RDMA device"


def ethtool_absent(origin: Origin) -> str | None:
    """Why no interface has statistics that would be read; None where one has."""
    root = interfaces.folder(origin.sysfs)
    try:
        names = interfaces.names(root)
    except SourceUnavailable as error:
        return error.detail
    for name in names:
        base = f"{root}/{name}"
        is_read = files.link_name(f"{base}/device/driver") in DRIVERS
        if is_read and interfaces.is_wanted(name, base, True, origin.settings.network):
            return None
    return f"no network interface has one of the drivers {', '.join(DRIVERS)}"


def services_absent(origin: Origin) -> str | None:
    """Why the state of the driver's services is unknown; None if it is known."""
    if absent := driver_absent(origin):
        return absent
    if not node_processes_visible(origin.procfs):
        return f"the processes of this node do not show in {origin.procfs}: another PID namespace, or hidepid"
    return None


def logs_absent(origin: Origin) -> str | None:
    """Why no log of a job is read; None where one is configured."""
    return None if origin.settings.nccl_logs.paths else "no log is configured (sources.nccl_logs.paths)"


def inspector_absent(origin: Origin) -> str | None:
    """Why no file of NCCL Inspector is read; None where a folder is configured."""
    return None if origin.settings.nccl_inspector.paths else "no folder is configured (sources.nccl_inspector.paths)"


def dumps_absent(origin: Origin) -> str | None:
    """Why no dump of a Flight Recorder is read; None where a folder is configured."""
    return None if origin.settings.flight_recorder.paths else "no folder is configured (sources.flight_recorder.paths)"
