"""Which network interfaces are read, and what they are bound to: the names and links of ``/sys/class/net``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from commwatch.config.settings import NetworkSection
from commwatch.readings import SourceUnavailable
from commwatch.sources import files

_ETHERNET_TYPE = 1
"""ARPHRD_ETHER of linux/if_arp.h, as ``/sys/class/net/*/type`` gives it."""


_REPRESENTOR = re.compile(r"(c[0-9]+)?pf[0-9]+(vf|sf)[0-9]+")
"""The kernel's name of a virtual function or subfunction as a port of its adapter's switch (devlink)."""


class Links(NamedTuple):
    """The targets of an interface's symbolic links; a new driver, device or master changes them."""

    device: str
    driver: str
    master: str

    @property
    def driver_name(self) -> str:
        """Name of the driver, fit for a label; empty without one."""
        return files.label_of(self.driver.rpartition("/")[2])

    @property
    def master_name(self) -> str:
        """Name of the bond, bridge or team that the interface belongs to, fit for a label; empty without one."""
        return files.label_of(self.master.rpartition("/")[2])


def folder(sysfs: Path) -> str:
    return str(sysfs / "class" / "net")


def names(root: str) -> list[str]:
    """The interfaces below ``folder``, sorted.

    Raises:
        SourceUnavailable: they cannot be listed.
    """
    try:
        return sorted(os.listdir(root))
    except OSError as error:
        raise SourceUnavailable(files.reason_of(error), f"{root}: {error.strerror}") from error


def links_of(base: str) -> Links:
    return Links(_link(f"{base}/device"), _link(f"{base}/device/driver"), _link(f"{base}/master"))


def is_bonded(base: str) -> bool:
    """Whether an interface is a member of a bond, and not of a bridge, a VRF, a team or Open vSwitch."""
    return os.path.isdir(f"{base}/master/bonding")


def is_wanted(name: str, base: str, has_device: bool, settings: NetworkSection) -> bool:
    """Whether an interface is to be read.

    Wanted are the physical interfaces: Ethernet (``type`` 1) with a device of its own, a virtual adapter of a virtual
    machine among them. A virtual function or subfunction beside its adapter is not one, nor is the representor of such
    a function in a switch of the adapter (``phys_port_name`` such as ``pf0vf3``). The settings add and remove others.
    """
    if _matches(name, settings.exclude) or not os.path.isdir(base):
        return False
    if _matches(name, settings.include) or not settings.physical_only:
        return True
    kind = files.read_if_there(f"{base}/type")
    is_ethernet = kind is None or files.parse_integer(kind) == _ETHERNET_TYPE
    port = files.parse_word(files.read_if_there(f"{base}/phys_port_name") or b"")
    is_port = has_device and is_ethernet and _REPRESENTOR.fullmatch(port) is None
    return is_port and not files.is_part_of_adapter(f"{base}/device")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
