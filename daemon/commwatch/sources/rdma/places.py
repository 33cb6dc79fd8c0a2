"""Lists the RDMA ports: the devices of ``/sys/class/infiniband`` and their ports; only names are read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import NamedTuple

from commwatch.sources import files


class Place(NamedTuple):
    """The location of a port in sysfs."""

    device: str
    """Name of the RDMA device, as a label."""
    port: str
    home: str
    """Directory of the device."""
    is_only: bool
    """The device has no other port, so that the counters of the device are those of the port."""

    @property
    def key(self) -> str:
        """As NCCL and the verbs tools write it: ``mlx5_0:1``."""
        return f"{self.device}:{self.port}"

    @property
    def path(self) -> str:
        return f"{self.home}/ports/{self.port}"


def names_in(folder: str) -> frozenset[str]:
    """The names in a directory; empty if it cannot be read."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def places(root: str, exclude: Sequence[str] = ()) -> Mapping[str, Place]:
    """The ports that are here now, by key; virtual functions and subfunctions are left out where their adapter is here,
    and ports that carry no RDMA.

    Args:
        root: ``/sys/class/infiniband``.
        exclude: devices to leave out, by name or PCI address; shell patterns.

    Raises:
        OSError: the directory cannot be read.
    """
    found = {}
    for name in sorted(os.listdir(root)):
        home = f"{root}/{name}"
        if is_function_beside(home) or is_excluded(home, exclude):
            continue
        ports = sorted(filter(str.isdecimal, names_in(f"{home}/ports")), key=int)
        for port in ports:
            place = Place(files.label_of(name), port, home, len(ports) == 1)
            if not is_for_packets(place.path):
                found[place.key] = place
    return found


def is_function_beside(home: str) -> bool:
    """Whether an RDMA device, by its folder, is that of a virtual function or subfunction whose adapter has one here.

    A container may have the function alone: then it is what the container has.
    """
    device = f"{home}/device"
    adapter = f"{device}/physfn" if os.path.lexists(f"{device}/physfn") else f"{device}/.."
    return files.is_part_of_adapter(device) and bool(names_in(f"{adapter}/infiniband"))


def is_excluded(home: str, exclude: Sequence[str], address: str = "") -> bool:
    """Whether the configuration leaves a device out.

    Args:
        home: its folder.
        exclude: as for ``places``.
        address: its PCI address, if that is known.
    """
    names = (os.path.basename(home), address or os.path.basename(os.path.realpath(f"{home}/device")))
    return any(fnmatchcase(*one) for one in product(names, exclude))


def is_for_packets(port: str) -> bool:
    """Whether a port, by its folder, carries Ethernet packets alone: its GID table has no place for an address.

    So are the ports of an mlx5 adapter in switchdev mode, its own and one for each function that it could have, and of
    one without RoCE.
    """
    try:
        return not os.listdir(f"{port}/gids")
    except OSError:
        return False


def bound_to(root: str) -> dict[str, str]:
    """The link target of each RDMA device, by name: a change means that one came, went or was replaced.

    Raises:
        OSError: the directory cannot be read.
    """
    found = {}
    for name in os.listdir(root):
        try:
            found[name] = os.readlink(f"{root}/{name}")
        except OSError:
            found[name] = ""
    return found
