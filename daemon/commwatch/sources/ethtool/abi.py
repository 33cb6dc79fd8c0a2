"""The SIOCETHTOOL calls of linux/ethtool.h that read a driver's statistics; none of them needs a capability."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

Ioctl: TypeAlias = Callable[[int, int, bytearray], object]
"""As ``fcntl.ioctl``: descriptor, request, and the ``struct ifreq`` that is changed in place."""

SIOCETHTOOL: Final = 0x8946
GSTRINGS: Final = 0x1B
GSTATS: Final = 0x1D
GSSET_INFO: Final = 0x37
STATISTICS_SET: Final = 1
"""ETH_SS_STATS."""
NAME_BYTES: Final = 32
"""ETH_GSTRING_LEN."""

MOST_STATISTICS: Final = 32768
"""An interface that claims more is not read. The largest known have a few thousand: some tens for each queue."""

_IFREQ = struct.Struct("@16sP16x")
_SET_INFO = struct.Struct("=IIQI")
_STRINGS = struct.Struct("=III")
_STATS = struct.Struct("=II")
_ROOM = _STRINGS.size + NAME_BYTES * 2 * MOST_STATISTICS
"""Many kernels write as many entries as the driver has at that moment, however many were asked for. So there is room
for twice what is accepted; pages that nothing touches take no memory."""


class Statistics(Protocol):
    """The statistics of interfaces, as ``StatisticsCalls`` reads them."""

    def count(self, interface: str) -> int: ...

    def names(self, interface: str, count: int) -> bytes | None: ...

    def numbers(self, interface: str, count: int) -> memoryview | None: ...

    def close(self) -> None: ...


class StatisticsCalls:
    """Reads names and numbers of one interface after another through one socket.

    Every method may raise OSError as the kernel gave it: ENODEV for an interface that is gone, EOPNOTSUPP for one
    whose driver keeps no statistics.
    """

    def __init__(self, call: Ioctl = fcntl.ioctl) -> None:
        self._call = call
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._memory = mmap.mmap(-1, _ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._hold: Any = ctypes.c_char.from_buffer(self._memory)
        self._address = ctypes.addressof(self._hold)
        self._bytes = memoryview(self._memory)
        self._numbers = self._bytes[_STATS.size : _STATS.size + 8 * MOST_STATISTICS].cast("Q")

    def count(self, interface: str) -> int:
        """How many statistics the driver keeps; 0 where it keeps none or claims more than can be."""
        _SET_INFO.pack_into(self._memory, 0, GSSET_INFO, 0, 1 << STATISTICS_SET, 0)
        self._ask(interface)
        _, _, supported, count = _SET_INFO.unpack_from(self._memory)
        return count if supported & 1 << STATISTICS_SET and count <= MOST_STATISTICS else 0

    def names(self, interface: str, count: int) -> bytes | None:
        """Their names, 32 bytes each, in the order of the numbers; None where there are no longer ``count``."""
        _STRINGS.pack_into(self._memory, 0, GSTRINGS, STATISTICS_SET, count)
        self._ask(interface)
        if _STRINGS.unpack_from(self._memory)[2] != count:
            return None
        return bytes(self._bytes[_STRINGS.size : _STRINGS.size + NAME_BYTES * count])

    def numbers(self, interface: str, count: int) -> memoryview | None:
        """The numbers, each of 64 bits, valid until the next call; None where there are no longer ``count``."""
        _STATS.pack_into(self._memory, 0, GSTATS, count)
        self._ask(interface)
        return self._numbers if _STATS.unpack_from(self._memory)[1] == count else None

    def close(self) -> None:
        """Let go of socket and memory."""
        self._socket.close()
        self._numbers.release()
        self._bytes.release()
        self._hold = None
        self._memory.close()

    def _ask(self, interface: str) -> None:
        request = bytearray(_IFREQ.pack(os.fsencode(interface), self._address))
        self._call(self._socket.fileno(), SIOCETHTOOL, request)


def parse_names(names: bytes) -> list[str]:
    """The names of a string set; blanks around a name are dropped, since drivers have had them by mistake.

    A name that fills its 32 bytes has no terminator; bytes that are not ASCII become escapes.
    """
    return [
        names[start : start + NAME_BYTES].partition(b"\0")[0].strip().decode("ascii", "backslashreplace")
        for start in range(0, len(names), NAME_BYTES)
    ]
