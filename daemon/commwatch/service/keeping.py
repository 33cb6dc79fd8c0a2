"""Saves what must survive a crash: soon after an event, else rarely, and never so that the daemon waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import structlog

from commwatch.service.scheduling import Scheduler
from commwatch.state.directory import StateDirectory
from commwatch.state.records import encode

if TYPE_CHECKING:
    from commwatch.service.engine import Engine

log = structlog.get_logger("commwatch.keeping")

_JOB = "save"
SOON_SECONDS: Final = 1.0
"""At least between two saves, so that a flood of events writes no more often; at most from an event to its save."""
CHANGED_SECONDS: Final = 60.0
"""Seconds between two saves of a changed record; a crash loses at most the changes of this time."""


class Keeping:
    """Saves some records together, one save at a time.

    The records are encoded at one moment on the event loop, so that they agree, and written in a thread: a slow disk
    holds up nothing but the next save. An event that comes meanwhile is saved by that one.
    """

    def __init__(
        self,
        state: StateDirectory,
        engine: Engine,
        scheduler: Scheduler,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._engine = engine
        self._scheduler = scheduler
        self._monotonic = monotonic
        self._noticed = engine.version
        """As of the last picture."""
        self._failing: set[str] = set()
        self._saving = asyncio.Lock()
        self._began = float("-inf")
        """When the last save began, monotonic seconds."""
        self._is_running = self._is_stopped = False

    def notice(self) -> None:
        """Save soon if something has happened since the last save that must not be lost."""
        # Changes during a save are noticed at its end: a run that is due before that would be dropped.
        if not (self._is_stopped or self._is_running) and self._engine.version != self._noticed:
            self._scheduler.run_in(_JOB, max(0.0, self._began + SOON_SECONDS - self._monotonic()))

    def start(self) -> None:
        """Save from now on, and soon what has happened before."""
        self._scheduler.add(_JOB, self._run, CHANGED_SECONDS)
        self.notice()

    def stop(self) -> None:
        """Save no more by itself; a save under way comes to its end."""
        self._is_stopped = True

    async def _run(self) -> None:
        if self._is_stopped:
            return
        self._is_running = True
        try:
            await self.save()
        finally:
            self._is_running = False
        if self._engine.version != self._noticed:
            self._scheduler.run_in(_JOB, SOON_SECONDS)

    async def save(self) -> Mapping[str, OSError]:
        """Save what has changed; returns by name what could not be written, which is tried again at the next save."""
        return await asyncio.shield(self._save())

    async def _save(self) -> Mapping[str, OSError]:
        async with self._saving:
            self._began = self._monotonic()
            contents = {name: encode(record) for name, record in self._engine.records().items()}
            self._noticed = self._engine.version
            failures = await asyncio.to_thread(self._write, contents)
            for name in failures.keys() - self._failing:
                log.error("something cannot be saved; it is tried again later", what=name, error=str(failures[name]))
            self._failing = set(failures)
            return failures

    def _write(self, contents: Mapping[str, bytes]) -> dict[str, OSError]:
        failures = {}
        for name, content in contents.items():
            try:
                self._state.write(name, content)
            except OSError as error:
                failures[name] = error
        self._engine.save_others()
        return failures
