"""Waiting for what must come: until it holds, with a limit that no busy machine reaches."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

PATIENCE_SECONDS = 120.0
"""What has not come by then never will. Shorter than what the tests let hang, and than the 150 s after which the daemon
ends a worker that hangs."""


def until(
    condition: Callable[[], Found],
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.05,
    describe: Callable[[], object] = lambda: "",
    meanwhile: Callable[[], object] = lambda: None,
) -> Found:
    """Wait until something holds.

    Args:
        condition: what must hold.
        seconds: the limit.
        every: seconds between two looks.
        describe: what is known where it does not come.
        meanwhile: raises where there is nothing to wait for any more.

    Returns:
        What the condition gave.

    Raises:
        AssertionError: it did not come; says what was awaited.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        meanwhile()
        assert time.monotonic() < end, f"not within {seconds:g} s: {words(condition)}\n{describe()}"
        time.sleep(every)
    return found


async def comes(condition: Callable[[], Found], seconds: float = PATIENCE_SECONDS, every: float = 0.005) -> Found:
    """The same in an event loop, which goes on meanwhile."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {words(condition)}"
        await asyncio.sleep(every)
    return found


def words(condition: Callable[..., object]) -> str:
    """The condition as the test writes it."""
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
