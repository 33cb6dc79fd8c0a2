"""Answers of ``nvmlDeviceGetFieldValues``, packed into the caller's array at once."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from commwatch.simulation.abi import INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS
from commwatch.simulation.hardware import Epoch, Flow, GpuCondition, Hardware
from commwatch.simulation.presets import NVLinkModel

ENTRY = struct.Struct("<IIqqIIQ")
"""One ``nvmlFieldValue_t``: field, scope, time stamp (µs), latency (µs), value type, return code, value."""
ALL_LINKS = 0xFFFFFFFF
"""The scope that asks for the sum over all links."""

_UNSIGNED_INT, _UNSIGNED_LONG_LONG = 1, 3
_KIB = 1024
_RAW_OVERHEAD = 17 / 16
"""Raw over payload bytes: one flit of header for 16 flits of payload."""

_SPEED_COMMON, _LINK_COUNT, _PCIE_REPLAYS, _PCIE_REPLAY_ROLLOVERS = 90, 91, 94, 95
_TRAFFIC = {
    138: ("transmit", 1.0),
    139: ("receive", 1.0),
    140: ("transmit", _RAW_OVERHEAD),
    141: ("receive", _RAW_OVERHEAD),
}
_SWITCH_LINK_COUNT = 147
_ERRORS = {161: "nvlink_replay", 162: "nvlink_recovery", 163: "nvlink_crc"}
_SPEED, _STATE, _VERSION = 164, 165, 166

_Count: TypeAlias = Callable[[float], int]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one entry gets within an epoch: a code, a fixed value, a traffic counter, or a function of the time."""

    code: int
    value_type: int = _UNSIGNED_INT
    value: int = 0
    flow: tuple[Flow, float] | None = None
    count: _Count | None = None


_NO_SUCH_LINK = _Answer(INVALID_ARGUMENT)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The answers to one list of fields of one GPU within an epoch."""

    template: list[int]
    """All entries flattened, seven numbers each."""
    values: list[int]
    flows: list[tuple[int, float, float, float, float]]
    """Place, offset, rate, phase and bytes per unit of each traffic counter."""
    counts: list[tuple[int, _Count]]


class FieldReader:
    """Answers lists of fields; keeps what does not change within an epoch."""

    def __init__(self) -> None:
        self._epoch: Epoch | None = None
        self._plans: dict[tuple[int, bytes, bytes], _Plan] = {}

    def fill(self, hardware: Hardware, gpu: int, time: float, timestamp: int, buffer: memoryview) -> None:
        """Answer every entry of an array.

        Args:
            hardware: the node's parts.
            gpu: place of the GPU in the preset.
            time: seconds since the node started.
            timestamp: µs since 1970, for the entries.
            buffer: writable bytes of whole entries, their field and scope filled in.
        """
        epoch = hardware.epoch(time)
        if epoch is not self._epoch:
            self._epoch = epoch
            self._plans.clear()
        words = buffer.cast("I")
        fields, scopes = words[0::10].tobytes(), words[1::10].tobytes()
        plan = self._plans.get((gpu, fields, scopes))
        if plan is None:
            plan = self._plans[gpu, fields, scopes] = _plan(hardware, epoch, gpu, fields, scopes)
        values = plan.values.copy()
        for place, offset, rate, phase, unit in plan.flows:
            values[place] = int(Flow(offset, rate, phase).bytes_at(time) / unit)
        for place, count in plan.counts:
            values[place] = count(time)
        entries = plan.template.copy()
        entries[2::7] = [timestamp] * len(values)
        entries[6::7] = values
        _packer(len(values)).pack_into(buffer, 0, *entries)


@lru_cache(maxsize=64)
def _packer(entries: int) -> struct.Struct:
    return struct.Struct("<" + ENTRY.format[1:] * entries)


def _plan(hardware: Hardware, epoch: Epoch, gpu: int, fields: bytes, scopes: bytes) -> _Plan:
    plan = _Plan([], [], [], [])
    entries = zip(memoryview(fields).cast("I"), memoryview(scopes).cast("I"), strict=True)
    for place, (field, scope) in enumerate(entries):
        answer = _answer(hardware, epoch, gpu, field, scope)
        plan.template.extend((field, scope, 0, 0, answer.value_type, answer.code, 0))
        plan.values.append(answer.value)
        if answer.flow is not None:
            flow, unit = answer.flow
            plan.flows.append((place, flow.offset, flow.rate, flow.phase, unit))
        if answer.count is not None:
            plan.counts.append((place, answer.count))
    return plan


def _answer(hardware: Hardware, epoch: Epoch, gpu: int, field: int, scope: int) -> _Answer:
    if field == _PCIE_REPLAYS:
        return _Answer(SUCCESS, count=lambda time: hardware.pcie_replays(gpu, time))
    if field == _PCIE_REPLAY_ROLLOVERS:
        return _Answer(SUCCESS)
    nvlink = hardware.preset.model.nvlink
    if nvlink is not None and field in _TRAFFIC:
        return _traffic(epoch.gpus[gpu], field, scope)
    if nvlink is not None and field in {_SPEED_COMMON, _LINK_COUNT, _SWITCH_LINK_COUNT}:
        return _of_all_links(nvlink, epoch.gpus[gpu], field)
    if nvlink is not None and field in {*_ERRORS, _SPEED, _STATE, _VERSION}:
        return _of_one_link(hardware, nvlink, epoch, gpu, field, scope)
    return _Answer(NOT_SUPPORTED)


def _of_all_links(nvlink: NVLinkModel, condition: GpuCondition, field: int) -> _Answer:
    active = sum(condition.links_active)
    if field == _SPEED_COMMON:
        return _Answer(SUCCESS, value=nvlink.line_rate_megabytes_per_second) if active else _NO_SUCH_LINK
    if field == _SWITCH_LINK_COUNT:
        return _Answer(SUCCESS, value=active if nvlink.remote == "switch" else 0)
    return _Answer(SUCCESS, value=nvlink.links)


def _of_one_link(hardware: Hardware, nvlink: NVLinkModel, epoch: Epoch, gpu: int, field: int, link: int) -> _Answer:
    if link >= nvlink.links:
        return _NO_SUCH_LINK
    if field in _ERRORS:
        kind = _ERRORS[field]
        return _Answer(SUCCESS, _UNSIGNED_LONG_LONG, count=lambda time: hardware.nvlink_errors(kind, gpu, link, time))
    active = epoch.gpus[gpu].links_active[link]
    if field == _STATE:
        return _Answer(SUCCESS, value=int(active))
    if field == _VERSION:
        return _Answer(SUCCESS, value=nvlink.version)
    return _Answer(SUCCESS, value=nvlink.line_rate_megabytes_per_second) if active else _NO_SUCH_LINK


def _traffic(condition: GpuCondition, field: int, scope: int) -> _Answer:
    """A traffic counter in KiB; the kernel driver refuses it for a link that is not active."""
    direction, overhead = _TRAFFIC[field]
    flows = condition.transmit if direction == "transmit" else condition.receive
    unit = _KIB / overhead
    active = condition.links_active
    if scope == ALL_LINKS and any(active):
        present = [flow for flow, up in zip(flows, active, strict=True) if up]
        return _Answer(
            SUCCESS,
            _UNSIGNED_LONG_LONG,
            count=lambda time: sum(int(flow.bytes_at(time) / unit) for flow in present),
        )
    if scope >= len(flows) or not active[scope]:
        return _NO_SUCH_LINK
    return _Answer(SUCCESS, _UNSIGNED_LONG_LONG, flow=(flows[scope], unit))
