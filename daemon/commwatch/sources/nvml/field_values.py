"""Many NVML field values in one call: an array prepared once, filled by the driver, and read in place."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

import pynvml

from commwatch.readings import LARGEST_VALUE
from commwatch.sources.nvml.codes import SUCCESS
from commwatch_exporters.snapshot import Value

CALL: Final = "nvmlDeviceGetFieldValues"

_WORDS: Final = 5
"""nvmlFieldValue_t is 40 bytes: ids, two times, valueType with nvmlReturn behind it, and the value's union."""
_KIND: Final = slice(3, None, _WORDS)
_BEFORE_VALUE: Final = "32x"

_READ_AS: Final = {0: "d", 1: "I4x", 2: "Q", 3: "Q", 4: "q", 5: "i4x", 6: "H6x"}
"""By value type: double, unsigned int, unsigned long (64 bits on Linux), unsigned long long, signed long long, int,
unsigned short. The union is little-endian as on every platform of the driver: a smaller member is its low end."""
_NOT_AVAILABLE: Final = {1: 2**32 - 1, 2: 2**64 - 1, 3: 2**64 - 1, 4: -1, 5: -1}
"""By value type: NVML_VALUE_NOT_AVAILABLE, which is -1."""
_ANY_NOT_AVAILABLE: Final = frozenset(_NOT_AVAILABLE.values())
_DOUBLE: Final = 0
_MOST_FORMS: Final = 64
"""Forms of answers that one batch remembers."""


class _Form(NamedTuple):
    """How to read an answer whose entries have these types and return codes; a driver gives the same ones for long."""

    codes: tuple[int, ...]
    types: tuple[int, ...]
    numbers: struct.Struct
    is_plain: bool
    """Whether every entry holds a whole number."""


class FieldBatch:
    """Field values that are always read together, of one GPU after another."""

    def __init__(self, requests: Sequence[tuple[int, int, int]]) -> None:
        """Prepare the array.

        Args:
            requests: field id, scope id (the link; 0 for the device) and the factor to multiply the value with.
        """
        self._requests = tuple(requests)
        self._scales = tuple(scale for _, _, scale in requests)
        self._scaled = _stretches(self._scales)
        array = (pynvml.c_nvmlFieldValue_t * len(requests))()
        for entry, (field, scope, _) in zip(array, requests, strict=True):
            entry.fieldId, entry.scopeId = field, scope
            entry.nvmlReturn = pynvml.NVML_ERROR_UNKNOWN
        # A view of the whole array as bytes. The blank is written over it before each call, so that an entry that the
        # driver leaves alone is a failed one, not the value of the call before.
        self._bytes = memoryview(array).cast("B")
        self._blank = bytes(self._bytes)
        self._pointer: Any = ctypes.byref(array)  # ctypes has no public name for this type
        self._count = ctypes.c_int32(len(requests))
        self._kinds = self._bytes.cast("Q")[_KIND]
        self._forms: dict[bytes, _Form] = {}
        """By types and return codes."""
        self.codes: Sequence[int] = ()
        """NVML's return code of each value of the last read."""

    def read(self, handle: object) -> list[Value]:
        """Ask the driver once and give the scaled values in the order of the requests; None where an entry failed.

        Where the call as a whole fails, as it may when no field could be filled, its code counts for every entry.
        """
        self._bytes[:] = self._blank
        try:
            # The binding's own nvmlDeviceGetFieldValues builds a new array for each call, which costs more than the
            # call; this is what it does, with the array that is there.
            code = pynvml._nvmlGetFunctionPointer(CALL)(handle, self._count, self._pointer)
        except pynvml.NVMLError as error:
            code = error.value
        if code != SUCCESS:
            self.codes = (code,) * len(self._scales)
            return [None] * len(self._scales)
        kinds = self._kinds.tobytes()
        form = self._forms.get(kinds) or self._learn(kinds)
        self.codes = form.codes
        numbers = form.numbers.unpack_from(self._bytes)
        if not form.is_plain or not _ANY_NOT_AVAILABLE.isdisjoint(numbers):
            return [_value(*one) for one in zip(numbers, form.types, form.codes, self._scales, strict=True)]
        values: list[Value] = list(numbers)
        for stretch, scale in self._scaled:
            values[stretch] = [number * scale for number in numbers[stretch]]
        return values

    def failures(self) -> dict[int, str]:
        """The codes other than success of the last read, each with the first value that it was given for."""
        found: dict[int, str] = {}
        for code, (field, scope, _) in zip(self.codes, self._requests, strict=True):
            if code != SUCCESS:
                found.setdefault(code, f"{CALL} field {field} scope {scope}")
        return found

    def _learn(self, kinds: bytes) -> _Form:
        numbers = struct.unpack(f"<{2 * len(self._scales)}I", kinds)
        types, codes = numbers[0::2], numbers[1::2]
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        form = self._forms[kinds] = _Form(
            codes, types,
            struct.Struct("<" + "".join(_BEFORE_VALUE + _READ_AS.get(one, "Q") for one in types)),
            not any(codes) and _READ_AS.keys() - {_DOUBLE} >= set(types),
        )  # fmt: skip
        return form


@lru_cache(maxsize=64)
def batch_of(requests: tuple[tuple[int, int, int], ...]) -> FieldBatch:
    """The batch of these requests, one for all GPUs: they are read one after another, and its memory is warm."""
    return FieldBatch(requests)


def _stretches(scales: Sequence[int]) -> list[tuple[slice, int]]:
    """The stretches of values with the same factor, without those of factor 1."""
    found, place = [], 0
    for scale, same in groupby(scales):
        end = place + len(list(same))
        if scale != 1:
            found.append((slice(place, end), scale))
        place = end
    return found


def _value(number: int | float, value_type: int, code: int, scale: int) -> Value:
    if code != SUCCESS or value_type not in _READ_AS:
        return None
    if value_type == _DOUBLE:  # has NaN where nothing is available
        scaled = number * scale
        return scaled if abs(scaled) <= LARGEST_VALUE else None
    return None if number == _NOT_AVAILABLE.get(value_type) else number * scale
