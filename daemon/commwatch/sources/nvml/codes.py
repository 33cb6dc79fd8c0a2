"""NVML return codes: those for a counter that does not exist, and the meaning of the others for an operator."""

from __future__ import annotations

from typing import Final

import pynvml

from commwatch.readings import Reason

SUCCESS: Final = 0

NOT_THERE: Final = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
"""This driver or GPU does not have it: no link of that number, no such counter, a field that an older library does not
know, a function that it lacks or no longer serves, a structure of a version that it does not know."""

ABSENT: Final = NOT_THERE | {pynvml.NVML_ERROR_NO_DATA}
"""Return codes of a counter that will never give a number, at its first reading."""

GONE: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
"""No further call may be made on this GPU's handle."""

NO_DRIVER: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Nothing can be read from any GPU before the library is restarted."""

HANDLE_DEAD: Final = frozenset(
    {pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_GPU_NOT_FOUND}
)
"""Return codes, for a question that each GPU can answer, of a handle whose GPU was removed or reset."""

_REASONS: Final[dict[int, Reason]] = {
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
    pynvml.NVML_ERROR_NOT_FOUND: "not_found",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "not_found",
    pynvml.NVML_ERROR_UNINITIALIZED: "no_driver",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "no_driver",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_driver",
    pynvml.NVML_ERROR_GPU_IS_LOST: "lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "reset_required",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library_mismatch",
    pynvml.NVML_ERROR_NO_DATA: "not_ready",
    pynvml.NVML_ERROR_NOT_READY: "not_ready",
}


_HINTS: Final[dict[int, str]] = {
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "; the driver's libraries were updated and its kernel module was not: "
    "reload the module or restart the node",
    pynvml.NVML_ERROR_UNINITIALIZED: "; the driver was unloaded beneath us, and is opened again",
}


def exists(code: int) -> bool | None:
    """Whether a counter exists that answered with this code when it was tried; None where that shows nothing."""
    return True if code == SUCCESS else False if code in ABSENT else None


def reason_of(code: int) -> Reason:
    """The bounded reason for a return code other than success."""
    return _REASONS.get(code, "unreadable")


def describe(call: str, code: int) -> str:
    """A failed call for an operator's eyes: what was asked and what NVML answered."""
    return f"{call}: {pynvml.NVMLError(code)} (NVML code {code}){_HINTS.get(code, '')}"


def failure(call: str, code: int) -> tuple[Reason, str]:
    """Reason and detail of a failed call."""
    return reason_of(code), describe(call, code)
