"""Event sets of the simulated driver library: the Xids of GPUs that someone has registered for."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from commwatch_rehearsal.simulation.abi import (
    INVALID_ARGUMENT,
    SUCCESS,
    TIMEOUT,
    UNINITIALIZED,
    Argument,
    integer,
    point,
    pointer_address,
    set_pointer,
    target,
)
from commwatch_rehearsal.simulation.call import Call
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.xids import XidEvent, xid_events

_XID = 0x8
_NO_INSTANCE = 0xFFFFFFFF
_LOOK_SECONDS = 0.05
_LATE_SECONDS = 2.0
"""A fault without a time begins when its file was written, a little before the file is read."""


@dataclass
class _EventSet:
    block: ctypes.Array[ctypes.c_char]
    registered: dict[int, float] = field(default_factory=dict)
    """By place of the GPU: since when; seconds since the node started."""
    looked: float = 0.0
    told: set[XidEvent] = field(default_factory=set)


class EventSets:
    """The event sets of a process.

    Args:
        now: the node's parts and the time, seconds since the node started.
        is_open: whether the session that made the sets goes on.
    """

    def __init__(self, now: Callable[[], tuple[Hardware, float]], is_open: Callable[[], bool]) -> None:
        self._now = now
        self._is_open = is_open
        self._sets: dict[int, _EventSet] = {}

    def create(self, argument: Argument) -> int:
        """``nvmlEventSetCreate``."""
        block = ctypes.create_string_buffer(1)
        self._sets[ctypes.addressof(block)] = _EventSet(block)
        return set_pointer(argument, ctypes.addressof(block))

    def free(self, event_set: Argument) -> int:
        """``nvmlEventSetFree``."""
        gone = self._sets.pop(pointer_address(event_set), None)
        return SUCCESS if gone is not None else INVALID_ARGUMENT

    def register(self, call: Call, types: Argument, event_set: Argument) -> int:
        """``nvmlDeviceRegisterEvents``: what happened before is not reported."""
        found = self._sets.get(pointer_address(event_set))
        if found is None:
            return INVALID_ARGUMENT
        if integer(types) & _XID:
            found.registered.setdefault(call.place, call.time)
            found.looked = max(found.looked, call.time)
        return SUCCESS

    def wait(self, event_set: Argument, data: Argument, milliseconds: Argument, handles: int) -> int:
        """``nvmlEventSetWait_v2``: the next event, or TIMEOUT after the time given.

        Args:
            event_set: from ``create``.
            milliseconds: how long to wait; 0: not at all.
            handles: address of the handle of the first GPU.
        """
        deadline = time.monotonic() + integer(milliseconds) / 1000
        while True:
            if not self._is_open():
                return UNINITIALIZED
            found = self._sets.get(pointer_address(event_set))
            if found is None:
                return INVALID_ARGUMENT
            event = self._next(found)
            if event is not None:
                return _tell(event, target(data), handles)
            left = deadline - time.monotonic()
            if left <= 0:
                return TIMEOUT
            time.sleep(min(left, _LOOK_SECONDS))

    def _next(self, event_set: _EventSet) -> XidEvent | None:
        hardware, now = self._now()
        after = event_set.looked - _LATE_SECONDS
        event_set.told = {event for event in event_set.told if event.time > after}
        for event in xid_events(hardware, after, now):
            since = event_set.registered.get(event.gpu)
            if since is not None and event.time > since and event not in event_set.told:
                event_set.told.add(event)
                return event
        event_set.looked = now
        return None


def _tell(event: XidEvent, filled: Argument, handles: int) -> int:
    point(filled, handles + event.gpu)
    filled.eventType, filled.eventData = _XID, event.xid
    filled.gpuInstanceId = filled.computeInstanceId = _NO_INSTANCE
    return SUCCESS
