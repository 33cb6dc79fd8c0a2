"""A kernel that answers SIOCETHTOOL from dictionaries, written to the layout of linux/ethtool.h."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Mapping

SIOCETHTOOL = 0x8946
GSTRINGS, GSTATS, GSSET_INFO = 0x1B, 0x1D, 0x37


class Kernel:
    """Interfaces with their statistics; names may be any 32 bytes."""

    def __init__(self, **interfaces: Mapping[str, int]) -> None:
        self.interfaces: dict[str, list[tuple[bytes, int]]] = {}
        self.errors: dict[str, int] = {}
        """What every call for an interface fails with."""
        self.calls: list[tuple[str, int]] = []
        """Interface and command of each call."""
        self.old = True
        """Writes all it has, however many were asked for; a newer kernel answers that there are 0."""
        self.before: Callable[[str, int], None] = lambda name, command: None
        """Called before each answer, with interface and command; changes the interface between two calls."""
        for name, statistics in interfaces.items():
            self.set(name, statistics)

    def set(self, name: str, statistics: Mapping[str, int]) -> None:
        self.interfaces[name] = [(key.encode().ljust(32, b"\0"), value) for key, value in statistics.items()]

    def count(self, command: int) -> int:
        """How often a command was called."""
        return sum(called == command for _, called in self.calls)

    def __call__(self, descriptor: int, request: int, argument: bytearray) -> int:
        assert request == SIOCETHTOOL
        assert len(argument) == 40
        os.fstat(descriptor)  # it is open
        raw, address = struct.unpack_from("@16sP", argument)
        name = raw.rstrip(b"\0").decode()
        (command,) = struct.unpack("=I", ctypes.string_at(address, 4))
        self.calls.append((name, command))
        self.before(name, command)
        if name in self.errors:
            raise OSError(self.errors[name], os.strerror(self.errors[name]))
        if name not in self.interfaces:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self._answer(command, address, self.interfaces[name])
        return 0

    def _answer(self, command: int, address: int, statistics: list[tuple[bytes, int]]) -> None:
        if command == GSSET_INFO:
            _, _, mask = struct.unpack("=IIQ", ctypes.string_at(address, 16))
            assert mask == 2
            write(address + 8, struct.pack("=QI", 2 if statistics else 0, len(statistics)))
        elif command == GSTRINGS:
            _, string_set, asked = struct.unpack("=III", ctypes.string_at(address, 12))
            assert string_set == 1
            if asked != len(statistics) and not self.old:
                write(address + 8, struct.pack("=I", 0))
                return
            names = b"".join(name for name, _ in statistics)
            write(address + 8, struct.pack("=I", len(statistics)) + names)
        else:
            assert command == GSTATS
            _, asked = struct.unpack("=II", ctypes.string_at(address, 8))
            if asked != len(statistics) and not self.old:
                write(address + 4, struct.pack("=I", 0))
                return
            numbers = struct.pack(f"={len(statistics)}Q", *(value for _, value in statistics))
            write(address + 4, struct.pack("=I", len(statistics)) + numbers)


def write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))
