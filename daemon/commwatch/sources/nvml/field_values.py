"""Many NVML field values in one call: an array prepared once, filled by the driver, and read in place."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, Final

import pynvml

from commwatch.readings import LARGEST_VALUE
from commwatch.sources.nvml.codes import SUCCESS
from commwatch_exporters.snapshot import Value

CALL: Final = "nvmlDeviceGetFieldValues"

_WORDS: Final = 5
"""nvmlFieldValue_t is 40 bytes: ids, two times, valueType with nvmlReturn behind it, and the value's union.

The union is taken as 64 bits, little-endian as on every platform of the driver: a smaller member is its low end.
"""
_KIND, _VALUE = slice(3, None, _WORDS), slice(4, None, _WORDS)

_UNSIGNED: Final = {
    1: (2**32 - 1, 2**32 - 1),  # unsigned int
    2: (2**64 - 1, 2**64 - 1),  # unsigned long, 64 bits on Linux
    3: (2**64 - 1, 2**64 - 1),  # unsigned long long
    6: (2**16 - 1, None),  # unsigned short
}
"""By value type: the bits that count, and NVML_VALUE_NOT_AVAILABLE (-1) in that type."""

_OTHER: Final = {0: "<d", 4: "<q", 5: "<i4x"}
"""By value type: double, signed long long, int."""


class FieldBatch:
    """Field values of one GPU that are always asked for together."""

    def __init__(self, requests: Sequence[tuple[int, int, int]]) -> None:
        """Prepare the array.

        Args:
            requests: field id, scope id (the link; 0 for the device) and the factor to multiply the value with.
        """
        self._requests = tuple(requests)
        self._scales = tuple(scale for _, _, scale in requests)
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
        words = self._bytes.cast("Q")
        self._kinds, self._numbers = words[_KIND], words[_VALUE]
        self._known_kinds = b""
        """Types and return codes of the last read."""
        self._types: Sequence[int] = ()
        self._masks: list[int] = []
        self._sentinels: list[int | None] = []
        self._others: list[int] = []
        self.codes: Sequence[int] = ()
        """NVML's return code of each value of the last read."""

    def read(self, handle: object) -> list[Value]:
        """Ask the driver once and give the scaled values in the order of the requests; None where an entry failed.

        Where the call as a whole fails, as it may when no field could be filled, its code stands for every entry.
        """
        self._bytes[:] = self._blank
        try:
            # The binding's own nvmlDeviceGetFieldValues builds a new array for each call, which costs more than the
            # call; this is what it does, with the array that is there.
            code = pynvml._nvmlGetFunctionPointer(CALL)(handle, self._count, self._pointer)
        except pynvml.NVMLError as error:
            code = error.value
        if code != SUCCESS:
            self._known_kinds, self.codes = b"", (code,) * len(self._scales)
            return [None] * len(self._scales)
        kinds = self._kinds.tobytes()
        if kinds != self._known_kinds:
            self._learn(kinds)
        raws = self._numbers.tolist()
        values: list[Value] = [
            None if code or (number := raw & mask) == sentinel else number * scale
            for raw, code, mask, sentinel, scale in zip(
                raws, self.codes, self._masks, self._sentinels, self._scales, strict=True
            )
        ]
        for position in self._others:
            values[position] = self._other(position, raws[position])
        return values

    def failures(self) -> dict[int, str]:
        """The codes other than success of the last read, each with the first value that it was given for."""
        found: dict[int, str] = {}
        for code, (field, scope, _) in zip(self.codes, self._requests, strict=True):
            if code != SUCCESS:
                found.setdefault(code, f"{CALL} field {field} scope {scope}")
        return found

    def _learn(self, kinds: bytes) -> None:
        """Note the codes, and how to read entries of these types; a driver answers the same again and again."""
        self._known_kinds = kinds
        numbers = struct.unpack(f"<{2 * len(self._scales)}I", kinds)
        self._types, self.codes = numbers[0::2], numbers[1::2]
        read_as = [_UNSIGNED.get(value_type, (0, None)) for value_type in self._types]
        self._masks = [mask for mask, _ in read_as]
        self._sentinels = [sentinel for _, sentinel in read_as]
        self._others = [position for position, value_type in enumerate(self._types) if value_type not in _UNSIGNED]

    def _other(self, position: int, raw: int) -> Value:
        form = _OTHER.get(self._types[position])
        if form is None or self.codes[position] != SUCCESS:
            return None
        number: int | float = struct.unpack(form, raw.to_bytes(8, "little"))[0]
        # Integers have NVML_VALUE_NOT_AVAILABLE, which is -1; doubles have NaN.
        if isinstance(number, int):
            return None if number == -1 else number * self._scales[position]
        scaled = number * self._scales[position]
        return scaled if abs(scaled) <= LARGEST_VALUE else None
