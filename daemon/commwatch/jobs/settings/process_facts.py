"""What /proc says of one process beside its environment: its user, its NCCL library, its network namespace."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from commwatch.jobs.settings.rooted_files import RootedFiles
from commwatch.sources import files

_FILE_BYTES = 64 * 1024
_PASSWD_BYTES = 4 * 2**20
_MAPS_BYTES = 8 * 2**20

_LIBRARY = re.compile(rb"^[^\n/]*(/[^\n]*/libnccl\.so[^\n/]*)$", re.MULTILINE)
_IN_NAME = re.compile(r"libnccl\.so\.([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})$")
_IN_WHEEL = re.compile(r"nvidia_nccl_cu[0-9]{1,3}-([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})(?:\.[^/]*)?\.dist-info")


def _content(name: str, folder: int, limit: int = _FILE_BYTES) -> bytes:
    """Of a file beneath; empty where it cannot be read."""
    return files.read_if_there(f"/proc/self/fd/{folder}/{name}", limit) or b""


def link(path: str, at: int | None = None) -> str:
    """The target of a link such as ``ns/net``; empty where it cannot be read."""
    try:
        return os.readlink(path, dir_fd=at)
    except OSError:
        return ""


def user_id(folder: int) -> int | None:
    """The real user id as the process itself sees it: a container may count its users otherwise."""
    match = re.search(rb"^Uid:\s+([0-9]{1,10})", _content("status", folder), re.MULTILINE)
    if match is None:
        return None
    outside = int(match[1])
    for line in _content("uid_map", folder).splitlines():
        words = line.split()
        if len(words) == 3 and all(word.isdigit() for word in words):
            inner, outer, count = (int(word) for word in words)
            if outer <= outside < outer + count:
                return inner + outside - outer
    return outside


def home_of(found: RootedFiles, user: int | None) -> str:
    """The home directory by ``/etc/passwd``; empty for users that come from elsewhere, such as a directory service."""
    if user is None:
        return ""
    try:
        lines = found.read("/etc/passwd", _PASSWD_BYTES).splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(b":")
        if len(fields) >= 6 and fields[2] == str(user).encode():
            return os.fsdecode(fields[5])
    return ""


def nccl_version(folder: int, found: RootedFiles) -> tuple[int, ...] | None:
    """The version of the library that a process has loaded: by its name, or by the Python package that it came in."""
    match = _LIBRARY.search(_content("maps", folder, _MAPS_BYTES))
    if match is None:
        return None
    path = os.fsdecode(match[1])
    named = _IN_NAME.search(path)
    if named is None:
        packages, inside, _ = path.partition("/nvidia/nccl/lib/")
        if not inside:
            return None
        with suppress(OSError):
            versions = {one[1] for name in found.names(packages) if (one := _IN_WHEEL.fullmatch(name)) is not None}
            if len(versions) == 1:
                return tuple(map(int, versions.pop().split(".")))
        return None
    return tuple(map(int, named[1].split(".")))


def interfaces(folder: int) -> frozenset[str] | None:
    """The network interfaces that the process sees."""
    lines = _content("net/dev", folder).decode("utf-8", "backslashreplace").splitlines()[2:]
    return frozenset(line.partition(":")[0].strip() for line in lines if ":" in line) or None
