"""Memory that is no longer needed, and that the C library keeps."""

from __future__ import annotations


def give_back_memory() -> None:
    """Return it to the system, with glibc's ``malloc_trim``; another C library is left alone."""
    import ctypes  # here: half a MiB that few processes need

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
