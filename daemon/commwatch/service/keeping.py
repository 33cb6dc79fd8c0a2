"""Saves what must survive a crash: soon after an event, else rarely, and never so that the daemon waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import structlog

from commwatch.state.directory import StateDirectory

log = structlog.get_logger("commwatch.keeping")

SOON_SECONDS: Final = 1.0
"""At least between two saves, so that a flood of events writes no more often; at most from an event to its save."""
CHANGED_SECONDS: Final = 60.0
"""Between two saves of what changes and may be lost for so long."""
ALL_SECONDS: Final = 600.0
"""Between two saves of a record in which nothing has changed but when it was seen."""


class Record(NamedTuple):
    """One file of the state directory."""

    name: str
    content: msgspec.Struct
    essence: bytes
    """Tells whether it is worth a write: what has changed otherwise is written each ``ALL_SECONDS``."""


class _Written(NamedTuple):
    essence: bytes
    at: float
    """Monotonic seconds."""


class Keeping:
    """Saves some records together, one save at a time.

    The records are encoded at one moment on the event loop, so that they agree, and written in a thread: a slow disk
    holds up nothing but the next save. An event that comes meanwhile is saved by that one.
    """

    def __init__(
        self,
        state: StateDirectory,
        records: Callable[[], tuple[Record, ...]],
        version: Callable[[], Hashable],
        others: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            state: takes the records.
            records: gives them as they are now, in the order in which they are written.
            version: changes with each event that must not be lost.
            others: saves what agrees with nothing else; called in a thread each ``CHANGED_SECONDS``.
            monotonic: the clock, in seconds.
        """
        self._state = state
        self._records = records
        self._version = version
        self._others = others
        self._others_due = monotonic() + CHANGED_SECONDS
        self._monotonic = monotonic
        self._noticed = version()
        """As of the last picture."""
        self._written: dict[str, _Written] = {}
        self._failing: set[str] = set()
        self._wake = asyncio.Event()
        self._saving = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def notice(self) -> None:
        """Save soon if something has happened since the last save that must not be lost."""
        if self._version() != self._noticed:
            self._wake.set()

    def start(self) -> None:
        """Save from now on."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Save no more by itself; a save under way comes to its end."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), CHANGED_SECONDS)
            if self._is_stopped:  # before Python 3.12 ``wait_for`` swallows a cancellation as the event comes
                return
            began = self._monotonic()
            try:
                await self.save()
            except Exception:  # a defect of ours must be seen, and must not be the end of saving
                log.exception("the state cannot be saved")
            await asyncio.sleep(began + SOON_SECONDS - self._monotonic())

    async def save(self, *, everything: bool = False) -> Mapping[str, OSError]:
        """Save what has changed; returns by name what could not be written, which is tried again at the next save.

        Args:
            everything: also that of which only the time has changed.
        """
        return await asyncio.shield(self._save(everything))

    async def _save(self, everything: bool) -> Mapping[str, OSError]:
        async with self._saving:
            self._wake.clear()
            now = self._monotonic()
            records = self._records()
            self._noticed = self._version()
            due = [(one, msgspec.json.encode(one.content)) for one in records if everything or self._is_due(one, now)]
            failures = await asyncio.to_thread(self._write, due)
            if everything or now >= self._others_due:
                self._others_due = now + CHANGED_SECONDS
                await asyncio.to_thread(self._others)
            self._written |= {one.name: _Written(one.essence, now) for one, _ in due if one.name not in failures}
            for name in failures.keys() - self._failing:
                log.error("something cannot be saved; it is tried again later", what=name, error=str(failures[name]))
            self._failing = set(failures)
            return failures

    def _is_due(self, record: Record, now: float) -> bool:
        written = self._written.get(record.name)
        return written is None or record.essence != written.essence or now - written.at >= ALL_SECONDS

    def _write(self, due: list[tuple[Record, bytes]]) -> dict[str, OSError]:
        failures = {}
        for record, encoded in due:
            try:
                # As it was when the picture was taken; by now the loop has gone on.
                self._state.save(record.name, msgspec.json.decode(encoded, type=type(record.content)))
            except OSError as error:
                failures[record.name] = error
        return failures
