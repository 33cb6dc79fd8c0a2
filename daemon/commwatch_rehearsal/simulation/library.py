"""The simulated driver library: what ``pynvml`` finds in place of ``libnvidia-ml.so.1``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pynvml

from commwatch_rehearsal.simulation.abi import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    GPU_NOT_FOUND,
    INVALID_ARGUMENT,
    MESSAGES,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    SUCCESS,
    UNINITIALIZED,
    Argument,
    integer,
    pointer_address,
    set_pointer,
    store,
    store_text,
    target,
)
from commwatch_rehearsal.simulation.call import Call
from commwatch_rehearsal.simulation.device_functions import DEVICE_FUNCTIONS
from commwatch_rehearsal.simulation.event_sets import EventSets
from commwatch_rehearsal.simulation.faults.nvidia_kinds import DRIVER_ERRORS
from commwatch_rehearsal.simulation.fields import ENTRY, FieldReader
from commwatch_rehearsal.simulation.gpm import GpmSamples, query_support
from commwatch_rehearsal.simulation.gpu_conditions import Answer
from commwatch_rehearsal.simulation.pair_functions import PAIR_FUNCTIONS

if TYPE_CHECKING:
    from commwatch_rehearsal.simulation.node import SimulatedNode

_HOPPER = 9
_CODES: Mapping[Answer, int] = {
    "ok": SUCCESS,
    "lost": GPU_IS_LOST,
    "reset_required": RESET_REQUIRED,
    "missing": GPU_NOT_FOUND,
    "not_started": GPU_NOT_FOUND,
    "unbound": GPU_NOT_FOUND,
}


def install(node: SimulatedNode) -> None:
    """Put the library of a node beneath ``pynvml`` in this process."""
    pynvml.nvmlLib = SimulatedLibrary(node)
    # The binding keeps the functions that it has looked up, those of an earlier library too.
    pynvml._nvmlGetFunctionPointer_cache.clear()


class SimulatedLibrary:
    """An object whose attributes are the library's functions; one that it lacks is a missing symbol."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._open_sessions = 0
        self._reloads = 0
        self._calls = 0.0
        """Calls that a fault has let fail, less those that did."""
        self._fields = FieldReader()
        self._samples = GpmSamples()
        self._event_sets = EventSets(node.now, self._is_open)
        # A handle is the address of a byte of this block.
        self._handles = ctypes.create_string_buffer(len(node.preset.gpus))
        device_functions: dict[str, Callable[..., int]] = {
            **DEVICE_FUNCTIONS,
            "nvmlDeviceGetFieldValues": self._field_values,
            "nvmlDeviceRegisterEvents": self._event_sets.register,
            "nvmlGpmQueryDeviceSupport": query_support,
            "nvmlGpmSampleGet": self._samples.take,
        }
        system_functions: dict[str, Callable[..., int]] = {
            "nvmlEventSetCreate": self._event_sets.create,
            "nvmlEventSetFree": self._event_sets.free,
            "nvmlEventSetWait_v2": self._wait,
            "nvmlGpmMetricsGet": self._samples.metrics,
            "nvmlGpmSampleAlloc": self._samples.allocate,
            "nvmlGpmSampleFree": self._samples.free,
        }
        functions: dict[str, Callable[..., int | bytes]] = {
            "nvmlInitWithFlags": self.initialise,
            "nvmlShutdown": self.shut_down,
            "nvmlErrorString": self.error_text,
            "nvmlSystemGetDriverVersion": self.driver_version,
            "nvmlSystemGetNVMLVersion": self.library_version,
            "nvmlSystemGetCudaDriverVersion_v2": self.cuda_version,
            "nvmlSystemGetConfComputeState": self.confidential_state,
            "nvmlDeviceGetCount_v2": self.count,
            "nvmlDeviceGetHandleByIndex_v2": self.handle_by_index,
        }
        # partial objects: unlike methods they take the attributes (restype) that the binding sets on C functions.
        for name, function in functions.items():
            setattr(self, name, partial(function))
        for name, read in device_functions.items():
            setattr(self, name, partial(self._device_call, name, read))
        for name, read in PAIR_FUNCTIONS.items():
            setattr(self, name, partial(self._pair_call, name, read))
        for name, read in system_functions.items():
            setattr(self, name, partial(self._system_call, read))

    def initialise(self, _flags: Argument = 0) -> int:
        hardware, time = self._node.now()
        epoch = hardware.epoch(time)
        if not epoch.driver_loaded:
            return DRIVER_NOT_LOADED
        if code := DRIVER_ERRORS.get(epoch.driver_error):
            return code
        if not self._is_open():
            # Sessions from before the driver was loaded again have ended.
            self._open_sessions, self._reloads = 0, epoch.driver_reloads
        self._open_sessions += 1
        return SUCCESS

    def shut_down(self) -> int:
        if self._open_sessions == 0:
            return UNINITIALIZED
        self._open_sessions -= 1
        return SUCCESS

    def _is_open(self) -> bool:
        """Whether there is a session, and the driver is still the one that it was opened with."""
        if self._open_sessions == 0:
            return False
        hardware, time = self._node.now()
        return hardware.epoch(time).driver_reloads == self._reloads

    def count(self, count: Argument) -> int:
        if not self._is_open():
            return UNINITIALIZED
        hardware, time = self._node.now()
        epoch = hardware.epoch(time)
        return store(count, 0 if epoch.driver_error else len(epoch.enumerated))

    def handle_by_index(self, index: Argument, handle: Argument) -> int:
        hardware, time = self._node.now()
        places = hardware.epoch(time).enumerated
        number = integer(index)
        return self._open_handle(places[number] if number < len(places) else None, handle)

    def system_text(self, text: str, buffer: Argument, size: Argument) -> int:
        return store_text(text, buffer, size) if self._is_open() else UNINITIALIZED

    def driver_version(self, buffer: Argument, size: Argument) -> int:
        return self.system_text(self._node.preset.driver_version, buffer, size)

    def library_version(self, buffer: Argument, size: Argument) -> int:
        cuda_major = self._node.preset.cuda_driver_version // 1000
        return self.system_text(f"{cuda_major}.{self._node.preset.driver_version}", buffer, size)

    def cuda_version(self, version: Argument) -> int:
        return store(version, self._node.preset.cuda_driver_version)

    def confidential_state(self, state: Argument) -> int:
        if not self._is_open():
            return UNINITIALIZED
        hardware, time = self._node.now()
        if self._node.preset.model.architecture < _HOPPER:
            return NOT_SUPPORTED
        filled = target(state)
        filled.environment = filled.ccFeature = int(hardware.epoch(time).confidential)
        filled.devToolsMode = 0
        return SUCCESS

    def error_text(self, code: Argument) -> bytes:
        return MESSAGES.get(integer(code), b"Unknown Error")

    def _field_values(self, call: Call, count: Argument, values: Argument) -> int:
        entries = memoryview(target(values)).cast("B")[: integer(count) * ENTRY.size]
        self._fields.fill(call.hardware, call.place, call.time, call.timestamp, entries)
        return SUCCESS

    def _open_handle(self, place: int | None, handle: Argument) -> int:
        if not self._is_open():
            return UNINITIALIZED
        if place is None:
            return INVALID_ARGUMENT
        call = self._touch(place)
        if call.condition.answer == "ok":
            set_pointer(handle, ctypes.addressof(self._handles) + place)
        return _CODES[call.condition.answer]

    def _device_call(self, name: str, read: Callable[..., int], handle: Argument, *arguments: Argument) -> int:
        call, code = self._reach(handle)
        return code if call is None else self._answer(name, read, (call,), arguments)

    def _pair_call(
        self, name: str, read: Callable[..., int], first: Argument, second: Argument, *arguments: Argument
    ) -> int:
        call, code = self._reach(first)
        other, other_code = self._reach(second)
        if call is None or other is None:
            return code or other_code
        return self._answer(name, read, (call, other), arguments)

    def _answer(
        self, _name: str, read: Callable[..., int], calls: Sequence[Call], arguments: Sequence[Argument]
    ) -> int:
        """The answer of a function about one GPU or two that answer."""
        return read(*calls, *arguments)

    def _system_call(self, function: Callable[..., int], *arguments: Argument) -> int:
        return function(*arguments) if self._is_open() else UNINITIALIZED

    def _wait(self, event_set: Argument, data: Argument, milliseconds: Argument) -> int:
        return self._event_sets.wait(event_set, data, milliseconds, ctypes.addressof(self._handles))

    def _reach(self, handle: Argument) -> tuple[Call | None, int]:
        """The call about the GPU of a handle, or why there is none."""
        if self._open_sessions == 0:
            return None, UNINITIALIZED
        place = pointer_address(handle) - ctypes.addressof(self._handles)
        if not 0 <= place < len(self._node.preset.gpus):
            return None, INVALID_ARGUMENT
        call = self._touch(place)
        if call.epoch.driver_reloads != self._reloads:
            return None, UNINITIALIZED
        code = _CODES[call.condition.answer] or (call.condition.calls_fail_with and self._failure(call))
        return (call, code) if code == SUCCESS else (None, code)

    def _failure(self, call: Call) -> int:
        """The code with which a call on a GPU fails; 0 if it does not. A share of failing calls is spread evenly."""
        self._calls += call.condition.calls_fail_share
        if self._calls < 1.0:
            return SUCCESS
        self._calls -= 1.0
        return call.condition.calls_fail_with

    def _touch(self, place: int) -> Call:
        hardware, time = self._node.reach(place)
        timestamp = round((self._node.started_at + time) * 1e6)
        return Call(hardware, hardware.epoch(time), place, time, timestamp)
