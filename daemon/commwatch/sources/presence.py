"""Whether the origin of a source is on this node at all, and which boot of it this is; opens no device."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from commwatch.config.settings import NetworkSection, Sources
from commwatch.readings import SourceUnavailable
from commwatch.sources import files, interfaces
from commwatch.sources.ethtool.table import DRIVERS
from commwatch.sources.services import node_processes_visible


def nvidia_driver_present(procfs: Path) -> bool:
    """Whether an NVIDIA kernel driver is loaded."""
    return (procfs / "driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


def boot_identity(procfs: str) -> str:
    """What tells this boot of the node from others; empty where it cannot be read."""
    return files.parse_word(files.read_if_there(f"{procfs}/sys/kernel/random/boot_id") or b"")


def rdma_absent(sysfs: Path) -> str | None:
    """Why no RDMA port can be read on this node; None where there is an RDMA device.

    Args:
        sysfs: usually ``/sys``.
    """
    try:
        devices = os.listdir(sysfs / "class/infiniband")
    except OSError:
        devices = []
    return None if devices else "no RDMA device"


def ethtool_absent(sysfs: Path, settings: NetworkSection) -> str | None:
    """Why no interface has statistics that would be read; None where one has."""
    root = interfaces.folder(sysfs)
    try:
        names = interfaces.names(root)
    except SourceUnavailable as error:
        return error.detail
    for name in names:
        base = f"{root}/{name}"
        links = interfaces.links_of(base)
        if links.driver_name in DRIVERS and interfaces.is_wanted(name, base, bool(links.device), settings):
            return None
    return f"no network interface has one of the drivers {', '.join(DRIVERS)}"


def services_absent(procfs: Path) -> str | None:
    """Why nothing can be said of the driver's services; None where it can."""
    if not nvidia_driver_present(procfs):
        return "no NVIDIA driver is loaded"
    if not node_processes_visible(procfs):
        return f"the processes of this node do not show in {procfs}: another PID namespace, or hidepid"
    return None


def origin_absent(source: str, sysfs: Path, procfs: Path, sources: Sources) -> str | None:
    """Why a source has nothing to read on this node; None where it has, or where only reading can tell.

    Args:
        source: as the configuration names it.
        sysfs: usually ``/sys``.
        procfs: usually ``/proc``.
        sources: which interfaces and logs are wanted.
    """
    checks: dict[str, Callable[[], str | None]] = {
        "rdma": lambda: rdma_absent(sysfs),
        "ethtool": lambda: ethtool_absent(sysfs, sources.network),
        "services": lambda: services_absent(procfs),
        "nccl_logs": lambda: None if sources.nccl_logs.paths else "no log is configured (sources.nccl_logs.paths)",
    }
    check = checks.get(source)
    return check() if check is not None else None
