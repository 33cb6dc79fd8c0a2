"""How a call of the driver's library is written down: its arguments as numbers, texts and memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

from commwatch_rehearsal.simulation.abi import pointer_address
from commwatch_rehearsal.simulation.recording.lines import Argument

FIELD_VALUES: Final = "nvmlDeviceGetFieldValues"
GPM_SAMPLE: Final = "nvmlGpmSampleGet"
GPM_METRICS: Final = "nvmlGpmMetricsGet"
WAIT: Final = "nvmlEventSetWait_v2"
INITIALISE: Final = "nvmlInitWithFlags"
ERROR_TEXT: Final = "nvmlErrorString"
OPENS_HANDLE: Final = "nvmlDeviceGetHandle"
MAKES: Final = frozenset({"nvmlGpmSampleAlloc", "nvmlEventSetCreate"})
"""Calls that lend a thing of the library's own: its address means nothing elsewhere."""
LISTS: Final = "RunningProcesses"
"""In the name of a call whose list has room for more than there is: its size is no part of the question."""

FIELD_WORDS: Final = 5
"""Of 64 bits: ids, time, latency, valueType with nvmlReturn above it, value."""

_BYREF: Final = type(ctypes.byref(ctypes.c_int()))


def memory_of(argument: Any) -> Any:
    """The caller's memory that an argument lets the library write; None for a value."""
    if isinstance(argument, _BYREF):
        return argument._obj  # type: ignore[attr-defined]
    return argument if isinstance(argument, ctypes.Array | ctypes.Structure) else None


def question(
    function: str, arguments: Sequence[Any], number: Callable[[int], int], text: Callable[[str], str]
) -> tuple[Argument, ...]:
    """The arguments of a call.

    Args:
        arguments: as the binding hands them over.
        number: the small number of a GPU's handle; 0 for any other pointer.
        text: replaces names in a text.
    """
    return tuple(_written(function, argument, number, text) for argument in arguments)


def _written(function: str, argument: Any, number: Callable[[int], int], text: Callable[[str], str]) -> Argument:
    if argument is None or isinstance(argument, int | float):
        return argument
    if isinstance(argument, bytes):
        return "'" + text(argument.decode("latin-1"))
    if isinstance(argument, ctypes._Pointer):
        return number(pointer_address(argument))
    memory = memory_of(argument)
    if memory is None:
        value = argument.value
        return "'" + text(value.decode("latin-1")) if isinstance(value, bytes) else value
    if LISTS in function:
        return "="
    if isinstance(memory, ctypes._Pointer):
        return "=handle"
    content = bytes(memory).rstrip(b"\0")
    size = ctypes.sizeof(memory)
    return f"={size}:{content.hex()}" if content else f"={size}"
