"""What the real binding reads from a simulated library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

ALL_LINKS = 0xFFFFFFFF


def handle(index: int = 0) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def field(index: int, identifier: int, scope: int = 0) -> tuple[int, int]:
    """Return code and number of one field."""
    value = pynvml.nvmlDeviceGetFieldValues(handle(index), [(identifier, scope)])[0]
    number = value.value.uiVal if value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT else value.value.ullVal
    return value.nvmlReturn, number


def count(index: int, identifier: int, scope: int = 0) -> int:
    """The number of a field that must answer."""
    code, number = field(index, identifier, scope)
    assert code == pynvml.NVML_SUCCESS
    return number


def code_of(call: Callable[..., Any], *arguments: object) -> int:
    """The return code of a call of the binding."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        code: int = error.value
        return code
    return int(pynvml.NVML_SUCCESS)
