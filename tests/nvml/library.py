"""A small NVML library of Python functions that stands beneath the real binding: any GPU, any answer, calls counted."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from nvml.context import FUNCTIONS, Fabric, Gpm, GpmFunctions

DOUBLE, UINT, ULONG, ULONGLONG, LONGLONG, INT, USHORT = range(7)
FORMS = {DOUBLE: "<d", UINT: "<I", ULONG: "<Q", ULONGLONG: "<Q", LONGLONG: "<q", INT: "<i", USHORT: "<H"}
GARBAGE = b"\xab" * 8  # what the rest of the union may hold

FIRST_PROCESS = 4711
"""Id of a GPU's first compute process; the others follow."""
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, LOST, RESET_REQUIRED, UNKNOWN = 2, 3, 4, 15, 16, 999


def packed(value_type: int, number: float) -> tuple[int, bytes]:
    """A value type with the eight bytes of its union; those that the type does not use are garbage."""
    data = struct.pack(FORMS[value_type], number)
    return value_type, data + GARBAGE[len(data) :]


@dataclass
class FakeGpu:
    """What one GPU answers."""

    pci_bus_id: bytes = b"00000000:17:00.0"
    remote_pci_bus_id: bytes = b"00000000:0A:00.0"
    name: bytes = b"NVIDIA Test"
    architecture: int = 9
    link_states: list[int] = field(default_factory=list)
    link_version: int = 6
    fields: dict[tuple[int, int], tuple[int, bytes] | int] = field(default_factory=dict)
    """By field id and scope: value type and union, or a return code."""
    error_kinds: dict[tuple[int, int], int] = field(default_factory=dict)
    """By link and kind."""
    mig: int | None = None
    """1 with MIG enabled, 0 without, None where the driver does not know of it."""
    pcie_width: int = 8
    utilization: int | None = 0
    processes: int | None = 0
    mps_clients: tuple[int, ...] | None = ()
    """Process ids that compute through the server of MPS."""
    memory: tuple[int, int] | None = None
    """Bytes in use and in all."""
    numbers: dict[tuple[str | int, ...], int] = field(default_factory=dict)
    """By function and its arguments, the number that it gives."""
    fabric: Fabric | None = None
    gpm: Gpm | None = None
    handle_code: int = 0
    code: int = 0
    """What every call on the handle returns; 0: what was asked."""
    codes: dict[str, int] = field(default_factory=dict)
    """The same for single functions."""


class Library:
    """Stands in for the object that ctypes makes of libnvidia-ml.so.1."""

    def __init__(self, gpus: list[FakeGpu]) -> None:
        self.gpus = gpus
        self.init_code = 0
        self.shutdown_code = 0
        self.opened = 0
        self.calls: list[tuple[str, int]] = []
        """Name and GPU of every call on a GPU, in order."""
        self.functions: dict[str, Callable[..., int]] = {
            "nvmlInitWithFlags": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetCount_v2": self._count,
            "nvmlDeviceGetHandleByIndex_v2": self._handle,
            "nvmlSystemGetDriverVersion": lambda text, size: _write(text, b"580.82.07"),
            "nvmlSystemGetNVMLVersion": lambda text, size: _write(text, b"13.580.82.07"),
            "nvmlSystemGetCudaDriverVersion_v2": lambda number: _set(number, 13000),
        }
        self.confidential: tuple[int, int] | None = None
        """Feature and developer tools mode of confidential computing."""
        self.functions["nvmlSystemGetConfComputeState"] = self._confidential
        self.gpm = GpmFunctions(gpus)
        self.functions |= self.gpm.functions()
        answers = {**_DEVICE_FUNCTIONS, **FUNCTIONS, "nvmlGpmSampleGet": self.gpm.take}
        for name, answer in answers.items():
            self.functions[name] = self._on_device(name, answer)

    def __getattr__(self, name: str) -> Callable[..., int]:
        try:
            return self.functions[name]
        except KeyError:
            raise AttributeError(name) from None

    def _init(self, flags: int) -> int:
        self.opened += not self.init_code
        return self.init_code

    def _shutdown(self) -> int:
        self.opened -= 1
        return self.shutdown_code

    def _confidential(self, state: Any) -> int:
        if self.confidential is None:
            return NOT_SUPPORTED
        state._obj.ccFeature, state._obj.devToolsMode = self.confidential
        return 0

    def _count(self, number: Any) -> int:
        return _set(number, len(self.gpus))

    def _handle(self, index: ctypes.c_uint, handle: Any) -> int:
        self.calls.append(("nvmlDeviceGetHandleByIndex_v2", index.value))
        if code := self.gpus[index.value].handle_code:
            return code
        ctypes.memmove(handle, ctypes.byref(ctypes.c_void_p(index.value + 1)), ctypes.sizeof(ctypes.c_void_p))
        return 0

    def _on_device(self, name: str, answer: Callable[..., int]) -> Callable[..., int]:
        def function(handle: Any, *arguments: Any) -> int:
            index = (ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1
            self.calls.append((name, index))
            gpu = self.gpus[index]
            return gpu.code or gpu.codes.get(name, 0) or answer(gpu, *arguments)

        return function


def _set(reference: Any, number: int) -> int:
    reference._obj.value = number
    return 0


def _set_or(code: int, reference: Any, number: int | None) -> int:
    return code if number is None else _set(reference, number)


def _write(buffer: Any, text: bytes) -> int:
    buffer.value = text
    return 0


def _pci_info(gpu: FakeGpu, info: Any) -> int:
    info._obj.busId = gpu.pci_bus_id
    return 0


def _remote_pci_info(gpu: FakeGpu, link: int, info: Any) -> int:
    info._obj.busId = gpu.remote_pci_bus_id
    return 0


def _link_state(gpu: FakeGpu, link: int, number: Any) -> int:
    if not gpu.link_states:
        return NOT_SUPPORTED
    return _set(number, gpu.link_states[link]) if link < len(gpu.link_states) else INVALID_ARGUMENT


def _error_counter(gpu: FakeGpu, link: int, kind: int, number: Any) -> int:
    return _set_or(NOT_SUPPORTED, number, gpu.error_kinds.get((link, kind)))


def _mig_mode(gpu: FakeGpu, current: Any, pending: Any) -> int:
    return _set_or(NOT_SUPPORTED, current, gpu.mig)


def _utilization(gpu: FakeGpu, rates: Any) -> int:
    if gpu.utilization is None:
        return NOT_SUPPORTED
    rates._obj.gpu = gpu.utilization
    return 0


def _processes(gpu: FakeGpu, count: Any, processes: Any) -> int:
    if gpu.processes is None:
        return NOT_SUPPORTED
    room = count._obj.value
    count._obj.value = gpu.processes
    if gpu.processes > room:
        return 7
    for number in range(gpu.processes):
        processes[number].pid = FIRST_PROCESS + number
    return 0


def _clients(gpu: FakeGpu, count: Any, processes: Any) -> int:
    if gpu.mps_clients is None:
        return NOT_SUPPORTED
    room = count._obj.value
    count._obj.value = len(gpu.mps_clients)
    if len(gpu.mps_clients) > room:
        return 7
    for number, pid in enumerate(gpu.mps_clients):
        processes[number].pid = pid
    return 0


def _field_values(gpu: FakeGpu, count: ctypes.c_int32, array: Any) -> int:
    for entry in array._obj:
        answer = gpu.fields.get((entry.fieldId, entry.scopeId), INVALID_ARGUMENT)
        if isinstance(answer, int):
            entry.nvmlReturn = answer
            continue
        entry.nvmlReturn, entry.valueType = 0, answer[0]
        ctypes.memmove(ctypes.addressof(entry) + 32, answer[1], 8)
    return 0


_DEVICE_FUNCTIONS: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetPciInfo_v3": _pci_info,
    "nvmlDeviceGetUUID": lambda gpu, text, size: _write(text, b"GPU-1"),
    "nvmlDeviceGetSerial": lambda gpu, text, size: NOT_SUPPORTED,
    "nvmlDeviceGetName": lambda gpu, text, size: _write(text, gpu.name),
    "nvmlDeviceGetArchitecture": lambda gpu, number: _set(number, gpu.architecture),
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetNvLinkState": _link_state,
    "nvmlDeviceGetNvLinkVersion": lambda gpu, link, number: _set(number, gpu.link_version),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link, number: _set(number, 2),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": _remote_pci_info,
    "nvmlDeviceGetNvLinkErrorCounter": _error_counter,
    "nvmlDeviceGetFieldValues": _field_values,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu, number: _set(number, 4),
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu, number: _set(number, 5),
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda gpu, number: _set(number, 6),
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu, number: _set(number, gpu.pcie_width),
    "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu, number: _set(number, 16),
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _clients,
}


def install(monkeypatch: pytest.MonkeyPatch, library: object) -> None:
    """Put a library beneath the binding for the time of one test."""
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


def hopper(links: int = 4) -> FakeGpu:
    """A GPU with NVLink 4, all links active."""
    gpu = FakeGpu(link_states=[1] * links)
    for link in range(links):
        gpu.fields |= {
            (165, link): packed(UINT, 1),
            (138, link): packed(ULONGLONG, 1000 + link),
            (139, link): packed(ULONGLONG, 2000 + link),
            (164, link): packed(UINT, 26562),
        }
        gpu.error_kinds |= {(link, kind): 10 * kind + link for kind in (0, 1, 2)}
    gpu.fields |= {(94, 0): packed(UINT, 7), (95, 0): packed(UINT, 0)}
    return gpu


def blackwell(links: int = 2) -> FakeGpu:
    """A GPU with NVLink 5, all links active."""
    gpu = FakeGpu(architecture=10, link_states=[1] * links, link_version=7)
    for link in range(links):
        gpu.fields |= {(165, link): packed(UINT, 1), (164, link): packed(UINT, 53125)}
        gpu.fields |= {(202, link): packed(ULONGLONG, 5000 + link), (204, link): packed(ULONGLONG, 6000 + link)}
        gpu.fields |= {(138, link): packed(ULONGLONG, 1), (139, link): packed(ULONGLONG, 1)}
        gpu.fields |= {(number, link): packed(ULONGLONG, number) for number in (*range(206, 216), 219, 221)}
        gpu.fields |= {(220, link): packed(ULONGLONG, 0x3 << 8 | 14), (222, link): packed(ULONGLONG, 0xFFF)}
    return gpu
