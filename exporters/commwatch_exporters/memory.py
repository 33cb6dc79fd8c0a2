"""Memory that is no longer needed, and that others keep: the C library, and transports that refer to themselves."""

from __future__ import annotations

import asyncio


def give_back_memory() -> None:
    """Return it to the system, with glibc's ``malloc_trim``; another C library is left alone."""
    import ctypes  # here: half a MiB that few processes need

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def let_go_of(transport: asyncio.BaseTransport) -> None:
    """Have a transport that is closed freed at once.

    asyncio's refers to itself (``_read_ready_cb`` of CPython 3.7 to 3.14). So it would wait for the garbage collector,
    which the daemon calls rarely: in a flood of connections 10 MiB, within minutes. Where it has another form nothing
    happens.
    """
    getattr(transport, "__dict__", {}).pop("_read_ready_cb", None)
