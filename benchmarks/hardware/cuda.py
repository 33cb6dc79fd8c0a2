"""The few calls of the CUDA driver's library that keep a GPU busy: copies and fills, without torch."""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libcuda.so.1"


class CudaError(Exception):
    """The library is missing, or one of its calls failed."""


class Cuda:
    """The primary context of a GPU, current in the thread that enters it; what is allocated ends with it.

    Args:
        address: PCI address of the GPU, such as ``0000:17:00.0``.

    Raises:
        CudaError: it cannot be used.
    """

    def __init__(self, address: str) -> None:
        try:
            self._library: Any = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError(f"{LIBRARY} cannot be loaded: {error}") from error
        self._call("cuInit", 0)
        self._device = ctypes.c_int()
        self._call("cuDeviceGetByPCIBusId", ctypes.byref(self._device), address.encode())
        self._context = ctypes.c_void_p()

    def __enter__(self) -> Cuda:
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._call("cuCtxSetCurrent", self._context)
        return self

    def __exit__(self, *_: object) -> None:
        # The last release destroys the context with its memory.
        self._library.cuDevicePrimaryCtxRelease_v2(self._device)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'error').decode()} ({code})")

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Memory of the GPU; ``size`` in bytes."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def allocate_on_host(self, size: int) -> ctypes.c_void_p:
        """Pinned memory of the host; ``size`` in bytes."""
        pointer = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def copy_to_device(self, to: ctypes.c_uint64, of: ctypes.c_void_p, size: int) -> None:
        """Copy from the host; returns when it is done."""
        self._call("cuMemcpyHtoD_v2", to, of, ctypes.c_size_t(size))

    def fill(self, memory: ctypes.c_uint64, size: int) -> None:
        """Queue a kernel that writes to memory; ``size`` in bytes."""
        self._call("cuMemsetD32Async", memory, ctypes.c_uint(0), ctypes.c_size_t(size // 4), None)

    def finish(self) -> None:
        """Wait until the GPU has done all that was queued."""
        self._call("cuCtxSynchronize")
