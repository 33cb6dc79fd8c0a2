"""Answers of ``nvmlDeviceGetFieldValues``, packed into the caller's array at once."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from commwatch_rehearsal.simulation.field_answers import (
    DEVICE_FIELDS,
    DEVICE_GAUGES,
    LINK_ERRORS,
    REFUSED,
    TRAFFIC,
    Asked,
    FieldAnswer,
    link_errors,
    link_facts,
    of_all_links,
    of_link,
)
from commwatch_rehearsal.simulation.hardware import Epoch, Hardware
from commwatch_rehearsal.simulation.nvlink5 import NVLINK_5_COUNTERS, NVLINK_5_FIELDS, nvlink_5_field
from commwatch_rehearsal.simulation.presets.parts import NVLINK_5

ENTRY = struct.Struct("<IIqqIIQ")
"""One ``nvmlFieldValue_t``: field, scope, time stamp (µs), latency (µs), value type, return code, value."""

LINK_COUNTERS = frozenset({*TRAFFIC, *LINK_ERRORS, *NVLINK_5_COUNTERS})
COUNTERS = LINK_COUNTERS | (DEVICE_FIELDS.keys() - DEVICE_GAUGES)
"""Fields that count."""

_OF_ALL_LINKS = frozenset({90, 91, 147})
_LINK_FACTS = frozenset({146, 164, 165, 167})


@dataclass(frozen=True, slots=True)
class _Plan:
    """The answers to one list of fields of one GPU within an epoch."""

    template: list[int]
    """All entries flattened, seven numbers each."""
    values: list[int]
    moving: list[tuple[int, FieldAnswer]]
    """The places of those values that change, and their answers."""


class FieldReader:
    """Answers lists of fields; keeps what does not change within an epoch."""

    def __init__(self) -> None:
        self._epoch: Epoch | None = None
        self._plans: dict[tuple[int, bytes, bytes], _Plan] = {}

    def fill(self, hardware: Hardware, gpu: int, time: float, timestamp: int, buffer: memoryview) -> None:
        """Answer every entry of an array.

        Args:
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
        for place, answer in plan.moving:
            values[place] = answer.at(time)
        entries = plan.template.copy()
        entries[2::7] = [timestamp] * len(values)
        entries[6::7] = values
        _packer(len(values)).pack_into(buffer, 0, *entries)


@lru_cache(maxsize=64)
def _packer(entries: int) -> struct.Struct:
    return struct.Struct("<" + ENTRY.format[1:] * entries)


def _plan(hardware: Hardware, epoch: Epoch, gpu: int, fields: bytes, scopes: bytes) -> _Plan:
    plan = _Plan([], [], [])
    entries = zip(memoryview(fields).cast("I"), memoryview(scopes).cast("I"), strict=True)
    for place, (field, scope) in enumerate(entries):
        answer = answer_of(Asked(hardware, epoch, gpu, scope), field)
        plan.template.extend((field, scope, 0, 0, answer.value_type, answer.code, 0))
        plan.values.append(answer.value)
        if not answer.is_flat:
            plan.moving.append((place, answer))
    return plan


def answer_of(asked: Asked, field: int) -> FieldAnswer:
    read = DEVICE_FIELDS.get(field)
    if read is not None:
        return read(asked)
    nvlink = asked.hardware.preset.model.nvlink
    if nvlink is None:
        return REFUSED
    if field in TRAFFIC:
        return TRAFFIC[field](asked)
    if field in _OF_ALL_LINKS:
        return of_all_links(nvlink, field, asked)
    if field in _LINK_FACTS:
        return of_link(nvlink, lambda asked: link_facts(nvlink, field, asked), asked)
    if nvlink.version >= NVLINK_5:
        return nvlink_5_field(nvlink.links, field, asked) if field in NVLINK_5_FIELDS else REFUSED
    if field in LINK_ERRORS:
        return of_link(nvlink, lambda asked: link_errors(asked, LINK_ERRORS[field], asked.scope), asked)
    return REFUSED
