"""What the small NVML library answers beside links and fields: clocks, power, fabric, GPM, sampled PCIe rates."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, VERSION_MISMATCH = 0, 2, 3, 25


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


class GpmFunctions:
    """The GPM functions of a library; samples are numbers that stand for the GPU they were taken of."""

    def __init__(self, gpus: list[Any]) -> None:
        self._gpus = gpus
        self._taken: dict[int, int] = {}
        self._next = 1000
        self.samples = 0
        """Allocated and not freed."""
        self.pairs: list[tuple[int, int]] = []
        """Earlier and later sample of each request for metrics."""

    def functions(self) -> dict[str, Callable[..., int]]:
        return {
            "nvmlGpmSampleAlloc": self._allocate,
            "nvmlGpmSampleFree": self._free,
            "nvmlGpmMetricsGet": self._metrics,
        }

    def _allocate(self, sample: Any) -> int:
        self._next += 1
        self.samples += 1
        ctypes.memmove(sample, ctypes.byref(ctypes.c_void_p(self._next)), ctypes.sizeof(ctypes.c_void_p))
        return SUCCESS

    def _free(self, sample: Any) -> int:
        self._taken.pop(_address(sample), None)
        self.samples -= 1
        return SUCCESS

    def take(self, gpu: Any, sample: Any) -> int:
        if gpu.gpm is None:
            return NOT_SUPPORTED
        if gpu.gpm.sample_code == SUCCESS:
            self._taken[_address(sample)] = self._gpus.index(gpu)
        return int(gpu.gpm.sample_code)

    def _metrics(self, reference: Any) -> int:
        request = reference._obj
        pair = (_address(request.sample1), _address(request.sample2))
        if request.version != 1 or pair[0] == pair[1] or self._taken[pair[0]] != self._taken[pair[1]]:
            return INVALID_ARGUMENT
        self.pairs.append(pair)
        gpm = self._gpus[self._taken[pair[1]]].gpm
        asked = {request.metrics[place].metricId for place in range(request.numMetrics)}
        if gpm.knows is not None and asked - gpm.knows:
            return INVALID_ARGUMENT
        for place in range(request.numMetrics):
            metric = request.metrics[place]
            answer = gpm.metrics.get(metric.metricId, NOT_SUPPORTED)
            if isinstance(answer, float):
                metric.nvmlReturn, metric.value = SUCCESS, answer
            else:
                metric.nvmlReturn = answer
        return int(gpm.metrics_code)


def _address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0


def _number(name: str, arguments: int) -> Callable[..., int]:
    """A function that gives one number, which the GPU has under its name and its arguments."""

    def function(gpu: Any, *given: Any) -> int:
        key = (name, *(getattr(one, "value", one) for one in given[:arguments]))
        number = gpu.numbers.get(key)
        if number is None:
            return NOT_SUPPORTED
        given[arguments]._obj.value = number
        return SUCCESS

    return function


def _temperature(gpu: Any, temperature: Any) -> int:
    number = gpu.numbers.get(("nvmlDeviceGetTemperatureV",))
    if number is None:
        return NOT_SUPPORTED
    if temperature._obj.version != 0x100000C or temperature._obj.sensorType != 0:
        return INVALID_ARGUMENT
    temperature._obj.temperature = number
    return SUCCESS


def _memory(gpu: Any, memory: Any) -> int:
    if gpu.memory is None:
        return NOT_SUPPORTED
    memory._obj.used, memory._obj.total = gpu.memory
    return SUCCESS


def _bandwidth_mode(gpu: Any, mode: Any) -> int:
    number = gpu.numbers.get(("nvmlDeviceGetNvlinkBwMode",))
    if number is None:
        return NOT_SUPPORTED
    mode._obj.bwMode = number
    return SUCCESS if mode._obj.version == 0x100000C else VERSION_MISMATCH


def _fabric(gpu: Any, info: Any) -> int:
    fabric, filled = gpu.fabric, info._obj
    if fabric is None:
        return NOT_SUPPORTED
    if filled.version not in fabric.versions or ctypes.sizeof(filled) != filled.version & 0xFFFF:
        return VERSION_MISMATCH
    filled.state, filled.status, filled.healthMask = fabric.state, fabric.status, fabric.mask
    filled.cliqueId = fabric.clique
    filled.clusterUuid = (ctypes.c_uint8 * 16)(*fabric.cluster)
    if filled.version == pynvml.nvmlGpuFabricInfo_v3:
        filled.healthSummary = fabric.summary
    return SUCCESS


def _gpm_support(gpu: Any, support: Any) -> int:
    if gpu.gpm is None:
        return NOT_SUPPORTED
    support._obj.isSupportedDevice = gpu.gpm.supported
    return SUCCESS


FUNCTIONS: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetCurrentClocksEventReasons": _number("nvmlDeviceGetCurrentClocksEventReasons", 0),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _number("nvmlDeviceGetCurrentClocksThrottleReasons", 0),
    "nvmlDeviceGetTemperatureV": _temperature,
    "nvmlDeviceGetTemperature": _number("nvmlDeviceGetTemperature", 1),
    "nvmlDeviceGetPowerUsage": _number("nvmlDeviceGetPowerUsage", 0),
    "nvmlDeviceGetEnforcedPowerLimit": _number("nvmlDeviceGetEnforcedPowerLimit", 0),
    "nvmlDeviceGetClockInfo": _number("nvmlDeviceGetClockInfo", 1),
    "nvmlDeviceGetPerformanceState": _number("nvmlDeviceGetPerformanceState", 0),
    "nvmlDeviceGetPersistenceMode": _number("nvmlDeviceGetPersistenceMode", 0),
    "nvmlDeviceGetComputeMode": _number("nvmlDeviceGetComputeMode", 0),
    "nvmlDeviceGetPcieThroughput": _number("nvmlDeviceGetPcieThroughput", 1),
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetNvlinkBwMode": _bandwidth_mode,
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlGpmQueryDeviceSupport": _gpm_support,
}
