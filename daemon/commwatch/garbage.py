"""Keeps the garbage collector from looking again and again through what lives as long as the process."""

from __future__ import annotations

import gc

_ALLOCATIONS = 20_000
"""More container objects than this must have been made since the last look; Python's own figure is 700."""


def spare_the_garbage_collector() -> None:
    """Leave what is here now out of every later look, and look more seldom.

    Readings hold no cycles and are freed at once; the few cycles that there are (failed tasks, tracebacks) are still
    found, later.
    """
    gc.unfreeze()  # what an earlier call left out may be garbage by now, such as a configuration that was replaced
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 10, 10)
