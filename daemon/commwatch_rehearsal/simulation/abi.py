"""How the arguments of C functions are read and filled, and the codes that the functions return."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, TypeAlias

# Any: what a caller hands to a C function (byref, array, pointer, number) has no common type in ctypes.
Argument: TypeAlias = Any

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
NO_DATA = 21
ARGUMENT_VERSION_MISMATCH = 25
NOT_READY = 27
GPU_NOT_FOUND = 28
UNKNOWN = 999

MESSAGES: Mapping[int, bytes] = {
    SUCCESS: b"Success",
    UNINITIALIZED: b"Uninitialized",
    INVALID_ARGUMENT: b"Invalid Argument",
    NOT_SUPPORTED: b"Not Supported",
    NO_PERMISSION: b"Insufficient Permissions",
    NOT_FOUND: b"Not Found",
    INSUFFICIENT_SIZE: b"Insufficient Size",
    DRIVER_NOT_LOADED: b"Driver Not Loaded",
    TIMEOUT: b"Timeout",
    GPU_IS_LOST: b"GPU is lost",
    RESET_REQUIRED: b"GPU requires reset",
    LIB_RM_VERSION_MISMATCH: b"Driver/library version mismatch",
    NO_DATA: b"No data",
    ARGUMENT_VERSION_MISMATCH: b"Argument version mismatch",
    NOT_READY: b"Not ready",
    GPU_NOT_FOUND: b"GPU not found",
    UNKNOWN: b"Unknown Error",
}
"""Answers of ``nvmlErrorString``."""


def target(argument: Argument) -> Argument:
    """The object behind ``byref(x)`` or ``pointer(x)``, or the object itself."""
    if isinstance(argument, ctypes._Pointer):
        return argument.contents
    return getattr(argument, "_obj", argument)


def integer(argument: Argument) -> int:
    return argument if isinstance(argument, int) else int(argument.value)


def store(argument: Argument, value: int) -> int:
    target(argument).value = value
    return SUCCESS


def store_text(text: str, buffer: Argument, size: Argument) -> int:
    encoded = text.encode()
    if len(encoded) >= integer(size):
        return INSUFFICIENT_SIZE
    target(buffer).value = encoded
    return SUCCESS


def point(pointer: Argument, address: int) -> None:
    """Make a pointer, or a structure that begins with one, point to an address."""
    ctypes.c_void_p.from_buffer(pointer).value = address


def set_pointer(argument: Argument, address: int) -> int:
    """Make the pointer behind ``byref(pointer)`` point to an address."""
    point(argument._obj, address)
    return SUCCESS


def pointer_address(argument: Argument) -> int:
    """Where a pointer points to; 0 for none."""
    return ctypes.c_void_p.from_buffer(argument).value or 0
