"""The simulated driver library with raw answers laid over it: any GPU, any answer, calls counted."""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pynvml
import pytest

from commwatch_rehearsal.simulation.abi import (
    ARGUMENT_VERSION_MISMATCH,
    INSUFFICIENT_SIZE,
    SUCCESS,
    TIMEOUT,
    integer,
    pointer_address,
    set_pointer,
    store,
    target,
)
from commwatch_rehearsal.simulation.library import SimulatedLibrary
from commwatch_rehearsal.simulation.node import SimulatedNode

DOUBLE, UINT, ULONG, ULONGLONG, LONGLONG, INT, USHORT = range(7)
FORMS = {DOUBLE: "<d", UINT: "<I", ULONG: "<Q", ULONGLONG: "<Q", LONGLONG: "<q", INT: "<i", USHORT: "<H"}
GARBAGE = b"\xab" * 8  # what the rest of the union may hold

FIRST_PROCESS = 4711
"""Id of a GPU's first compute process; the others follow."""
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, LOST, RESET_REQUIRED, UNKNOWN = 2, 3, 4, 15, 16, 999
XID, GPU_UNAVAILABLE, RECOVERY_ACTION = 0x8, 0x4000, 0x8000
NO_INSTANCE = 0xFFFFFFFF
_VERSION_OF_12_BYTES = 0x100000C


def packed(value_type: int, number: float) -> tuple[int, bytes]:
    """A value type with the eight bytes of its union; those that the type does not use are garbage."""
    data = struct.pack(FORMS[value_type], number)
    return value_type, data + GARBAGE[len(data) :]


@dataclass
class Fabric:
    """What a GPU says of its fabric."""

    state: int = 3
    status: int = 0
    mask: int = 0
    summary: int = 0
    clique: int = 7
    cluster: bytes = bytes(16)
    versions: tuple[int, ...] = (0x03000028, 0x02000024)
    """Versions of the structure that the driver knows."""


@dataclass
class Gpm:
    """What a GPU measures."""

    supported: int = 1
    metrics: dict[int, float | int] = field(default_factory=dict)
    """By metric id: a float is the value, an int the return code."""
    sample_code: int = 0
    metrics_code: int = 0
    knows: frozenset[int] | None = None
    """Metric ids that the library knows, which refuses a request with others as a whole; None: it knows them all."""


@dataclass
class FakeGpu:
    """What one GPU answers; what is not given is not supported."""

    pci_bus_id: bytes = b"00000000:17:00.0"
    remote_pci_bus_id: bytes = b"00000000:0A:00.0"
    name: bytes = b"NVIDIA Test"
    uuid: bytes = b"GPU-1"
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


class Library(SimulatedLibrary):
    """Sessions, handles, versions and samples are those of the simulated library; GPUs answer what a test says."""

    def __init__(self, gpus: list[FakeGpu]) -> None:
        super().__init__(SimulatedNode("h100x8", None, 0.0))
        self.gpus = gpus
        self.init_code = self.shutdown_code = self.count_code = SUCCESS
        self.calls: list[tuple[str, int]] = []
        """Name and GPU of every call on a GPU, in order."""
        self.confidential: tuple[int, int] | None = None
        """Feature and developer tools mode of confidential computing."""
        self.pairs: list[tuple[int, int]] = []
        """Earlier and later sample of each request for metrics of GPM."""
        self._taken: dict[int, FakeGpu] = {}
        self.supported = XID | GPU_UNAVAILABLE | RECOVERY_ACTION | 0x3
        """Types of events."""
        self.waiting: deque[tuple[int, int, int] | int] = deque()
        """GPU, type and data of each event; or a return code."""
        self.instance = (NO_INSTANCE, NO_INSTANCE)
        self.sets = self.made = 0
        """Event sets that are open, and all that there were."""
        self.registered: list[tuple[int, int]] = []
        """GPU and types of each registration."""
        self.register_codes: dict[int, int] = {}
        """By GPU."""
        self.peers: dict[tuple[int, int, int], int] = {}
        """Peer-to-peer status by both GPUs and index; 0 by default."""
        self.peer_code = SUCCESS
        answers: dict[str, Callable[..., int]] = {
            **_ANSWERS,
            "nvmlDeviceGetSupportedEventTypes": lambda _gpu, types: store(types, self.supported),
            "nvmlDeviceRegisterEvents": self._register,
            "nvmlGpmSampleGet": self._take,
        }
        on_two = "nvmlDeviceGetP2PStatus"
        for name in [one for one in vars(self) if one.startswith(("nvmlDevice", "nvmlGpmQuery")) or one in answers]:
            if name != on_two and not name.startswith(("nvmlDeviceGetCount", "nvmlDeviceGetHandle")):
                setattr(self, name, partial(self._on_gpu, name, answers.get(name) or partial(_number, name)))
        for name, function in (
            (on_two, self._peer), ("nvmlEventSetCreate", self._create), ("nvmlEventSetFree", self._free),
            ("nvmlEventSetWait_v2", self._next_event), ("nvmlGpmMetricsGet", self._metrics),
        ):  # fmt: skip
            setattr(self, name, function)

    def replace(self, name: str, function: Callable[..., int] | None) -> None:
        """Have another function, or none, under a symbol; the binding looks it up again."""
        pynvml._nvmlGetFunctionPointer_cache.clear()
        if function is None:
            delattr(self, name)
        else:
            setattr(self, name, function)

    @property
    def opened(self) -> int:
        """Sessions."""
        return self._open_sessions

    @property
    def samples(self) -> int:
        """Samples of GPM that are allocated and not freed."""
        return len(self._samples._blocks)

    def initialise(self, flags: Any = 0) -> int:
        return self.init_code or super().initialise(flags)

    def shut_down(self) -> int:
        return super().shut_down() or self.shutdown_code

    def count(self, count: Any) -> int:
        return self.count_code or store(count, len(self.gpus))

    def confidential_state(self, state: Any) -> int:
        if self.confidential is None:
            return NOT_SUPPORTED
        target(state).ccFeature, target(state).devToolsMode = self.confidential
        return SUCCESS

    def handle_by_index(self, index: Any, handle: Any) -> int:
        number = integer(index)
        self.calls.append(("nvmlDeviceGetHandleByIndex_v2", number))
        return self.gpus[number].handle_code or set_pointer(handle, ctypes.addressof(self._handles) + number)

    def _index(self, handle: Any) -> int:
        return pointer_address(handle) - ctypes.addressof(self._handles)

    def _on_gpu(self, name: str, answer: Callable[..., int], handle: Any, *arguments: Any) -> int:
        index = self._index(handle)
        self.calls.append((name, index))
        gpu = self.gpus[index]
        return gpu.code or gpu.codes.get(name, SUCCESS) or answer(gpu, *arguments)

    def _take(self, gpu: FakeGpu, sample: Any) -> int:
        if gpu.gpm is None:
            return NOT_SUPPORTED
        if gpu.gpm.sample_code == SUCCESS:
            self._taken[pointer_address(sample)] = gpu
        return gpu.gpm.sample_code

    def _metrics(self, reference: Any) -> int:
        request = target(reference)
        first, second = pair = (pointer_address(request.sample1), pointer_address(request.sample2))
        if request.version != 1 or first == second or self._taken[first] is not self._taken[second]:
            return INVALID_ARGUMENT
        self.pairs.append(pair)
        gpm = self._taken[second].gpm
        assert gpm is not None
        metrics = request.metrics[: request.numMetrics]
        if gpm.knows is not None and {one.metricId for one in metrics} - gpm.knows:
            return INVALID_ARGUMENT
        for metric in metrics:
            answer = gpm.metrics.get(metric.metricId, NOT_SUPPORTED)
            if isinstance(answer, float):
                metric.nvmlReturn, metric.value = SUCCESS, answer
            else:
                metric.nvmlReturn = answer
        return gpm.metrics_code

    def _create(self, event_set: Any) -> int:
        self.sets += 1
        self.made += 1
        return SUCCESS

    def _free(self, event_set: Any) -> int:
        self.sets -= 1
        self.registered.clear()
        return SUCCESS

    def _register(self, gpu: FakeGpu, types: Any, event_set: Any) -> int:
        index = next(number for number, one in enumerate(self.gpus) if one is gpu)
        if code := self.register_codes.get(index, SUCCESS):
            return code
        self.registered.append((index, types.value))
        return SUCCESS

    def _next_event(self, event_set: Any, data: Any, timeout: Any) -> int:
        assert timeout.value == 0
        if not self.waiting:
            return TIMEOUT
        answer = self.waiting.popleft()
        if isinstance(answer, int):
            return answer
        event = target(data)
        index, event.eventType, event.eventData = answer
        ctypes.c_void_p.from_buffer(event).value = ctypes.addressof(self._handles) + index
        event.gpuInstanceId, event.computeInstanceId = self.instance
        return SUCCESS

    def _peer(self, one: Any, other: Any, index: int, status: Any) -> int:
        return self.peer_code or store(status, self.peers.get((self._index(one), self._index(other), index), 0))


def _store_or(code: int, reference: Any, number: int | None) -> int:
    return code if number is None else store(reference, number)


def _number(name: str, gpu: FakeGpu, *arguments: Any) -> int:
    """A function that gives one number, which the GPU has under its name and the arguments before it."""
    return _store_or(NOT_SUPPORTED, arguments[-1], gpu.numbers.get((name, *map(integer, arguments[:-1]))))


def _write(buffer: Any, text: bytes) -> int:
    buffer.value = text
    return SUCCESS


def _fill(reference: Any, **members: Any) -> int:
    """Fill a structure; not supported where a member is None."""
    if None in members.values():
        return NOT_SUPPORTED
    for name, value in members.items():
        setattr(target(reference), name, value)
    return SUCCESS


def _link_state(gpu: FakeGpu, link: int, number: Any) -> int:
    if not gpu.link_states:
        return NOT_SUPPORTED
    return store(number, gpu.link_states[link]) if link < len(gpu.link_states) else INVALID_ARGUMENT


def _list_processes(ids: list[int] | None, count: Any, processes: Any) -> int:
    if ids is None:
        return NOT_SUPPORTED
    room = target(count).value
    store(count, len(ids))
    if len(ids) > room:
        return INSUFFICIENT_SIZE
    for number, pid in enumerate(ids):
        processes[number].pid = pid
    return SUCCESS


def _processes(gpu: FakeGpu, *arguments: Any) -> int:
    number = gpu.processes
    return _list_processes(None if number is None else [FIRST_PROCESS + one for one in range(number)], *arguments)


def _clients(gpu: FakeGpu, *arguments: Any) -> int:
    return _list_processes(None if gpu.mps_clients is None else list(gpu.mps_clients), *arguments)


def _field_values(gpu: FakeGpu, count: Any, array: Any) -> int:
    for entry in target(array):
        answer = gpu.fields.get((entry.fieldId, entry.scopeId), INVALID_ARGUMENT)
        if isinstance(answer, int):
            entry.nvmlReturn = answer
            continue
        entry.nvmlReturn, entry.valueType = SUCCESS, answer[0]
        ctypes.memmove(ctypes.addressof(entry) + 32, answer[1], 8)
    return SUCCESS


def _temperature(gpu: FakeGpu, reference: Any) -> int:
    if target(reference).version != _VERSION_OF_12_BYTES or target(reference).sensorType != 0:
        return INVALID_ARGUMENT
    return _fill(reference, temperature=gpu.numbers.get(("nvmlDeviceGetTemperatureV",)))


def _bandwidth_mode(gpu: FakeGpu, reference: Any) -> int:
    if target(reference).version != _VERSION_OF_12_BYTES:
        return ARGUMENT_VERSION_MISMATCH
    return _fill(reference, bwMode=gpu.numbers.get(("nvmlDeviceGetNvlinkBwMode",)))


def _fabric(gpu: FakeGpu, reference: Any) -> int:
    fabric, filled = gpu.fabric, target(reference)
    if fabric is None:
        return NOT_SUPPORTED
    if filled.version not in fabric.versions or ctypes.sizeof(filled) != filled.version & 0xFFFF:
        return ARGUMENT_VERSION_MISMATCH
    filled.clusterUuid = (ctypes.c_uint8 * 16)(*fabric.cluster)
    if filled.version == pynvml.nvmlGpuFabricInfo_v3:
        filled.healthSummary = fabric.summary
    return _fill(
        reference, state=fabric.state, status=fabric.status, healthMask=fabric.mask, cliqueId=fabric.clique
    )  # fmt: skip


_ANSWERS: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetPciInfo_v3": lambda gpu, info: _fill(info, busId=gpu.pci_bus_id),
    "nvmlDeviceGetUUID": lambda gpu, text, size: _write(text, gpu.uuid),
    "nvmlDeviceGetSerial": lambda gpu, text, size: NOT_SUPPORTED,
    "nvmlDeviceGetName": lambda gpu, text, size: _write(text, gpu.name),
    "nvmlDeviceGetArchitecture": lambda gpu, number: store(number, gpu.architecture),
    "nvmlDeviceGetMigMode": lambda gpu, current, pending: _store_or(NOT_SUPPORTED, current, gpu.mig),
    "nvmlDeviceGetNvLinkState": _link_state,
    "nvmlDeviceGetNvLinkVersion": lambda gpu, link, number: store(number, gpu.link_version),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link, number: store(number, 2),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": lambda gpu, link, info: _fill(info, busId=gpu.remote_pci_bus_id),
    "nvmlDeviceGetNvLinkErrorCounter": lambda gpu, link, kind, number: _store_or(
        NOT_SUPPORTED, number, gpu.error_kinds.get((link, kind))
    ),
    "nvmlDeviceGetFieldValues": _field_values,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu, number: store(number, 4),
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu, number: store(number, 5),
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda gpu, number: store(number, 6),
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu, number: store(number, gpu.pcie_width),
    "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu, number: store(number, 16),
    "nvmlDeviceGetUtilizationRates": lambda gpu, rates: _fill(rates, gpu=gpu.utilization),
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _clients,
    "nvmlDeviceGetTemperatureV": _temperature,
    "nvmlDeviceGetMemoryInfo_v2": lambda gpu, memory: _fill(
        memory, **dict(zip(("used", "total"), gpu.memory or (None, None), strict=True))
    ),
    "nvmlDeviceGetNvlinkBwMode": _bandwidth_mode,
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlGpmQueryDeviceSupport": lambda gpu, support: _fill(
        support, isSupportedDevice=gpu.gpm.supported if gpu.gpm else None
    ),
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
