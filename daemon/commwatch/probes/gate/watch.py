"""The node while a cycle runs: looked at again and again, so that the cycle gives way to whoever comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

import structlog

from commwatch.probes.plan import YieldReason

log = structlog.get_logger("commwatch.probes.watch")

LOOK_INTERVAL_SECONDS = 0.3
"""From the begin of one look to that of the next: a process that comes is gone from within one second."""
LOOK_REUSE_SECONDS = 0.2
"""Before a gate, a look that began no longer ago than this need not be repeated."""
LOOK_DEADLINE_SECONDS = 1.0
"""Ranks that wait at a gate wait no longer than this for a look."""
_SHORTEST_PAUSE_SECONDS = 0.05
"""Between two looks, however long the first one took."""


class Halt(NamedTuple):
    """Why a cycle must give way."""

    reason: YieldReason
    detail: str


Watch: TypeAlias = Callable[[frozenset[int]], Awaitable[Halt | None]]
"""Looks at the node, given the process ids of the ranks, which are allowed there; None: the cycle may go on."""


class Lookout:
    """Looks at the node through a ``Watch``, one look at a time."""

    def __init__(self, watch: Watch, pids: Callable[[], frozenset[int]]) -> None:
        self._watch = watch
        self._pids = pids
        self._one_at_a_time = asyncio.Lock()
        self._began = float("-inf")
        self._halt: Halt | None = None

    async def until_halt(self) -> Halt:
        """Look again and again; returns once the cycle must give way."""
        while self._halt is None:
            await asyncio.sleep(max(_SHORTEST_PAUSE_SECONDS, self._began + LOOK_INTERVAL_SECONDS - time.monotonic()))
            await self._look_unless_fresh()
        return self._halt

    async def before_gate(self) -> Halt | None:
        """What a look says that began a moment ago at most; a look that takes too long is one that saw nothing."""
        try:
            await asyncio.wait_for(self._look_unless_fresh(), LOOK_DEADLINE_SECONDS)
        except asyncio.TimeoutError:
            return Halt("gpu_unknown", f"the node could not be looked at within {LOOK_DEADLINE_SECONDS:g} s")
        return self._halt

    async def _look_unless_fresh(self) -> None:
        async with self._one_at_a_time:
            if self._halt is None and time.monotonic() - self._began > LOOK_REUSE_SECONDS:
                began = time.monotonic()
                halt = await self._look()
                # Only now: a look that was called off has seen nothing.
                self._began, self._halt = began, halt

    async def _look(self) -> Halt | None:
        """What the watch says; a look that fails, with whatever it may be, is one that saw nothing."""
        try:
            return await self._watch(self._pids())
        except Exception as error:
            log.error("the look at the node failed", error=repr(error), exc_info=error)
            return Halt("gpu_unknown", f"the node could not be looked at: {type(error).__name__}: {error}")
