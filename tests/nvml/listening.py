"""The driver's event sets and peer-to-peer status for the library of these tests."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

from nvml.library import Library

TIMEOUT = 10
XID, GPU_UNAVAILABLE, RECOVERY_ACTION = 0x8, 0x4000, 0x8000
NO_INSTANCE = 0xFFFFFFFF


class Listening:
    """Adds event sets and peer status to a library; what is waiting goes to the set that is there."""

    def __init__(self, library: Library, supported: int = XID | GPU_UNAVAILABLE | RECOVERY_ACTION | 0x3) -> None:
        self.library = library
        self.supported = supported
        self.waiting: deque[tuple[int, int, int] | int] = deque()
        """GPU, type and data of each event; or a return code."""
        self.instance = (NO_INSTANCE, NO_INSTANCE)
        self.sets = 0
        """Event sets that are open."""
        self.made = 0
        self.registered: list[tuple[int, int]] = []
        """GPU and types of each registration."""
        self.register_codes: dict[int, int] = {}
        """By GPU."""
        self.peers: dict[tuple[int, int, int], int] = {}
        """Status by both GPUs and index; 0 by default."""
        self.peer_code = 0
        library.functions |= {
            "nvmlEventSetCreate": self._create,
            "nvmlEventSetFree": self._free,
            "nvmlEventSetWait_v2": self._wait,
            "nvmlDeviceGetSupportedEventTypes": library._on_device(
                "nvmlDeviceGetSupportedEventTypes", lambda gpu, types: self._supported(types)
            ),
            "nvmlDeviceRegisterEvents": self._register,
            "nvmlDeviceGetP2PStatus": self._peer,
        }

    def _create(self, event_set: Any) -> int:
        self.sets += 1
        self.made += 1
        return 0

    def _free(self, event_set: Any) -> int:
        self.sets -= 1
        self.registered.clear()
        return 0

    def _supported(self, types: Any) -> int:
        types._obj.value = self.supported
        return 0

    def _register(self, handle: Any, types: ctypes.c_ulonglong, event_set: Any) -> int:
        index = _index(handle)
        if code := self.library.gpus[index].code or self.register_codes.get(index, 0):
            return code
        self.registered.append((index, types.value))
        return 0

    def _wait(self, event_set: Any, data: Any, timeout: ctypes.c_uint) -> int:
        assert timeout.value == 0
        if not self.waiting:
            return TIMEOUT
        answer = self.waiting.popleft()
        if isinstance(answer, int):
            return answer
        index, data._obj.eventType, data._obj.eventData = answer
        ctypes.memmove(data, ctypes.byref(ctypes.c_void_p(index + 1)), ctypes.sizeof(ctypes.c_void_p))
        data._obj.gpuInstanceId, data._obj.computeInstanceId = self.instance
        return 0

    def _peer(self, one: Any, other: Any, index: int, status: Any) -> int:
        assert isinstance(index, int)
        if self.peer_code:
            return self.peer_code
        status._obj.value = self.peers.get((_index(one), _index(other), index), 0)
        return 0


def _index(handle: Any) -> int:
    return (ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1
