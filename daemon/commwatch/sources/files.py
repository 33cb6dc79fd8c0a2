"""Readers of the files of sysfs and procfs; parsing is separate from reading."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from commwatch.readings import Reason

_PAGE_BYTES = 4096
"""No attribute of sysfs is longer than one page."""

_INTEGER = re.compile(rb"-?[0-9]{1,20}")
_USERS = re.compile(rb"^Uid:\t(\d{1,10})\t(\d{1,10})\b", re.MULTILINE)
_INNER = re.compile(rb"^NSpid:[\t\d]*\t(\d{1,10})$", re.MULTILINE)
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_SUBFUNCTION = ".sf."
"""In the name of a subfunction on the auxiliary bus: ``mlx5_core.sf.4``."""

NO_VALUE_NOW = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
"""Errors of an attribute without a value at present, such as the speed of a link that is down."""

_REASONS: dict[int, Reason] = {
    errno.EACCES: "no_permission",
    errno.EPERM: "no_permission",
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.ENODEV: "not_found",
    errno.ENXIO: "not_found",
    errno.EAGAIN: "not_ready",
    errno.EBUSY: "not_ready",
}


def reason_of(error: OSError) -> Reason:
    """Why a file of sysfs could not be read."""
    return _REASONS.get(error.errno or 0, "unreadable")


Reading: TypeAlias = Callable[[str, int], bytes]
"""Path and most bytes of a file to its content; raises OSError."""


def _read(path: str, most_bytes: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if most_bytes <= _PAGE_BYTES:  # an attribute comes in one piece
            return os.read(descriptor, most_bytes)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(descriptor)


_layers: list[Reading] = [_read]
"""The last one reads for the readers of this process."""


def put_beneath(layer: Callable[[Reading], Reading]) -> Callable[[], None]:
    """Put a layer between all readers of this process and the kernel, which records or replays what that answers.

    Args:
        layer: what reads, given what has read so far.

    Returns:
        What removes the layer.
    """
    added = layer(_layers[-1])
    _layers.append(added)
    return lambda: _layers.remove(added)


def read(path: str, most_bytes: int = _PAGE_BYTES) -> bytes:
    """The content of a file.

    Raises:
        OSError: as the kernel gave it.
    """
    return _layers[-1](path, most_bytes)


def read_if_there(path: str, most_bytes: int = _PAGE_BYTES) -> bytes | None:
    """As ``read``; None where it cannot be read, for whatever reason."""
    try:
        return read(path, most_bytes)
    except OSError:
        return None


def parse_integer(data: bytes) -> int | None:
    """A decimal integer of at most 20 digits; None for any other text."""
    text = data.strip()
    return int(text) if _INTEGER.fullmatch(text) else None


class Users(NamedTuple):
    """User ids of a process, by the count of the node."""

    real: int
    effective: int
    """Whose its sockets and files are."""


def parse_users(status: bytes | None) -> Users | None:
    """The users in ``/proc/PID/status``; None where it is not shown or cut."""
    found = _USERS.search(status or b"")
    return None if found is None else Users(int(found[1]), int(found[2]))


def parse_inner_pid(status: bytes) -> int | None:
    """Id of a process in its own namespace, in ``/proc/PID/status``; None where it is not shown."""
    found = _INNER.search(status)
    return None if found is None else int(found[1])


def parse_word(data: bytes) -> str:
    """The first word of an attribute, fit for a label; empty where there is none."""
    words = data.split(maxsplit=1)
    return words[0].decode("utf-8", "backslashreplace") if words else ""


def label_of(name: str) -> str:
    """A file name as text that can be encoded: bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def is_pci_address(name: str) -> bool:
    """Whether a name is a PCI address as sysfs spells it, such as ``0000:17:00.0``."""
    return _PCI_ADDRESS.fullmatch(name) is not None


def is_part_of_adapter(device: str) -> bool:
    """Whether a device is a virtual function or a subfunction of an adapter that is on this node.

    Args:
        device: its folder, or a link to it.
    """
    return os.path.lexists(f"{device}/physfn") or _SUBFUNCTION in os.path.realpath(device).rpartition("/")[2]


def functions_of(device: str) -> int:
    """How many virtual functions and subfunctions an adapter is split into; 0 where its folder cannot be read."""
    try:
        return sum(name.startswith("virtfn") or _SUBFUNCTION in name for name in os.listdir(device))
    except OSError:
        return 0


def device_chain(path: Path | str) -> list[str]:
    """The names on the way from a device of sysfs up to the root, the device first; empty where it is not there."""
    try:
        resolved = Path(path).resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a loop of symbolic links, before Python 3.13
        return []
    return list(reversed(resolved.parts))


def link_name(path: str) -> str:
    """The last name in the target of a symbolic link, such as the driver of ``device/driver``; empty without one."""
    try:
        return label_of(os.readlink(path).rpartition("/")[2])
    except OSError:
        return ""
