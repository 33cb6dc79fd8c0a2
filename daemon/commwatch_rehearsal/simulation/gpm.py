"""GPM of the simulated driver library: samples, and averages between two of them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass

from commwatch_rehearsal.simulation.abi import (
    ARGUMENT_VERSION_MISMATCH,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    Argument,
    pointer_address,
    set_pointer,
    target,
)
from commwatch_rehearsal.simulation.call import Call

_HOPPER = 9
_VERSION = 1
"""Of both structures."""
_MIB = 2**20
_CUMULATIVE_DRIVER = 595
"""The first driver branch that answers bytes since boot."""
_GRAPHICS_UTILIZATION, _SM_UTILIZATION = 1, 2
_PCIE_TRANSMIT, _PCIE_RECEIVE, _TOTAL_RECEIVE, _TOTAL_TRANSMIT = 20, 21, 60, 61
_FIRST_LINK, _LINKS = 62, 18
_PCIE_TRANSMIT_BYTES, _PCIE_RECEIVE_BYTES, _FIRST_LINK_BYTES = 255, 256, 261


@dataclass(frozen=True, slots=True)
class _Sample:
    place: int
    time: float
    """Seconds since the node started."""
    utilization: float
    bytes_by_metric: Mapping[int, float]
    """Bytes since the last reset, by the id of the metric that gives their rate."""
    cumulative: bool
    """Whether the driver answers bytes since boot."""


class GpmSamples:
    """The samples that a process has allocated."""

    def __init__(self) -> None:
        self._blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._samples: dict[int, _Sample] = {}

    def allocate(self, sample: Argument) -> int:
        """``nvmlGpmSampleAlloc``: a sample is the address of a byte of its own."""
        block = ctypes.create_string_buffer(1)
        address = ctypes.addressof(block)
        self._blocks[address] = block
        return set_pointer(sample, address)

    def free(self, sample: Argument) -> int:
        """``nvmlGpmSampleFree``."""
        address = pointer_address(sample)
        self._samples.pop(address, None)
        return SUCCESS if self._blocks.pop(address, None) is not None else INVALID_ARGUMENT

    def take(self, call: Call, sample: Argument) -> int:
        """``nvmlGpmSampleGet``."""
        address = pointer_address(sample)
        if address not in self._blocks:
            return INVALID_ARGUMENT
        if not supported(call) or call.condition.mig:
            return NOT_SUPPORTED
        driver = int(call.hardware.preset.driver_version.split(".")[0])
        self._samples[address] = _Sample(
            call.place, call.time, call.condition.utilization, _bytes_by_metric(call), driver >= _CUMULATIVE_DRIVER
        )
        return SUCCESS

    def metrics(self, request: Argument) -> int:
        """``nvmlGpmMetricsGet``: averages between two samples of one GPU; each metric has a code of its own."""
        asked = target(request)
        if asked.version != _VERSION:
            return ARGUMENT_VERSION_MISMATCH
        first, second = (self._samples.get(pointer_address(end)) for end in (asked.sample1, asked.sample2))
        if first is None or second is None or first.place != second.place:
            return INVALID_ARGUMENT
        for metric in asked.metrics[: asked.numMetrics]:
            value = _metric(metric.metricId, first, second)
            metric.nvmlReturn = NOT_SUPPORTED if value is None else SUCCESS
            if value is not None:
                metric.value = value
        return SUCCESS


def supported(call: Call) -> bool:
    """Whether the GPU has GPM and may use it."""
    return call.model.architecture >= _HOPPER and not call.epoch.confidential


def query_support(call: Call, support: Argument) -> int:
    """``nvmlGpmQueryDeviceSupport``."""
    filled = target(support)
    if filled.version != _VERSION:
        return ARGUMENT_VERSION_MISMATCH
    filled.isSupportedDevice = int(supported(call))
    return SUCCESS


def _bytes_by_metric(call: Call) -> Mapping[int, float]:
    condition, time = call.condition, call.time
    counts = {
        _PCIE_TRANSMIT: condition.pcie_transmit.bytes_at(time),
        _PCIE_RECEIVE: condition.pcie_receive.bytes_at(time),
    }
    if condition.transmit:
        links = list(zip(condition.receive, condition.transmit, strict=True))
        received, sent = [flow.bytes_at(time) for flow, _ in links], [flow.bytes_at(time) for _, flow in links]
        counts |= {_TOTAL_RECEIVE: sum(received), _TOTAL_TRANSMIT: sum(sent)}
        counts |= {_FIRST_LINK + 2 * link: count for link, count in enumerate(received)}
        counts |= {_FIRST_LINK + 2 * link + 1: count for link, count in enumerate(sent)}
    return counts


def _metric(number: int, first: _Sample, second: _Sample) -> float | None:
    """The value of a metric; None where this driver or GPU does not have it, NaN where it cannot be known."""
    if number in {_GRAPHICS_UTILIZATION, _SM_UTILIZATION}:
        return 100.0 * second.utilization
    if second.cumulative and (rate := _RATE_OF_BYTES.get(number)) is not None:
        return second.bytes_by_metric.get(rate)
    if number not in second.bytes_by_metric:
        return None
    seconds = second.time - first.time
    moved = second.bytes_by_metric[number] - first.bytes_by_metric.get(number, 0.0)
    return moved / seconds / _MIB if seconds > 0 and moved >= 0 else math.nan


_RATE_OF_BYTES = {
    _PCIE_TRANSMIT_BYTES: _PCIE_TRANSMIT,
    _PCIE_RECEIVE_BYTES: _PCIE_RECEIVE,
    **{_FIRST_LINK_BYTES + place: _FIRST_LINK + place for place in range(2 * _LINKS)},
}
"""Metrics of bytes since boot, and those of their rates."""
