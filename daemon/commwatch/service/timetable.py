"""When things run: one tick on the monotonic clock for all jobs that are due, which no step of the wall clock moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from commwatch.workers.wire import on_grid

log = structlog.get_logger("commwatch.scheduler")

CLOCK_STEP_SECONDS = 2.0
"""A wall clock that moves this much against the monotonic one was stepped."""
_NEVER = float("inf")
READERS_SECONDS = 1.0
"""What readers do by themselves on the grid is over so long after: then the daemon looks."""


def after_readers(now: float, interval: float) -> float:
    """The next moment of the daemon at an interval, on the grid of all of its jobs.

    Args:
        now: monotonic seconds.
        interval: in seconds.
    """
    return on_grid(now - READERS_SECONDS + interval, interval) + READERS_SECONDS


@dataclass(slots=True)
class _Job:
    run: Callable[[], Awaitable[None]]
    interval: float
    due: float
    """Monotonic seconds."""


class Timetable:
    """Runs coroutines at intervals, each at most once at a time."""

    def __init__(
        self,
        missed: Callable[[str], None],
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        missed: called with each job that was due while its last run was still under way.
        """
        self._missed = missed
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._jobs: dict[str, _Job] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to run what has been added and what will be."""
        self._loop = asyncio.get_running_loop()
        self._set_timer()

    def stop(self) -> None:
        """Run nothing any more; what is running is not waited for."""
        for task in self._running.values():
            task.cancel()
        self._loop = None
        self._set_timer()

    def add(self, name: str, run: Callable[[], Awaitable[None]], interval: float, delay: float | None = None) -> None:
        """Run a coroutine at an interval.

        Args:
            name: unique; what was added under it before is replaced.
            interval: seconds.
            delay: seconds to the first run; None: about one interval, on the grid that all such jobs share.
        """
        now = self._monotonic()
        self._jobs[name] = _Job(run, interval, after_readers(now, interval) if delay is None else now + delay)
        self._set_timer()

    def run_in(self, name: str, delay: float) -> None:
        """Bring the next run of a job forward, or put it off; its interval counts from there.

        A job that is not planned yet stays so.
        """
        if name in self._jobs:
            self._plan(self._jobs[name], self._monotonic() + delay)

    def set_interval(self, name: str, interval: float) -> None:
        """Change how often a job runs; one that is not planned stays so."""
        if name in self._jobs:
            job = self._jobs[name]
            job.interval = interval
            self._plan(job, after_readers(self._monotonic(), interval))

    def rest(self, name: str) -> None:
        """Do not run a job until it is brought forward or its interval is changed."""
        self.run_in(name, _NEVER)

    def remove_all(self) -> None:
        """Run none of the jobs any more."""
        self._jobs.clear()
        self._set_timer()

    def next_run(self, name: str) -> float | None:
        """Wall clock seconds since 1970 of a job's next run; None where it has none."""
        return self._wall() + self._jobs[name].due - self._monotonic() if name in self._jobs else None

    def clock_step(self) -> float | None:
        """Seconds by which the wall clock was stepped since the last look; None where it was not."""
        offset = self._wall() - self._monotonic()
        step, self._offset = offset - self._offset, offset
        if abs(step) <= CLOCK_STEP_SECONDS:
            return None
        log.warning("the wall clock was stepped", by_seconds=round(step, 3))
        return step

    def makes_progress(self, patience: float) -> bool:
        """Whether no job has been due for more than so many seconds without its turn.

        A job whose last run is still under way has had its turn: it waits for a reader, and the timetable lives.
        """
        return all(self._monotonic() - job.due <= patience for job in self._jobs.values())

    def take_due(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """The jobs whose time has come, in the order in which they were added; what they missed is not made up for."""
        now = self._monotonic()
        due = []
        for name, job in self._jobs.items():
            if job.due <= now:
                job.due = after_readers(now, job.interval)
                due.append((name, job.run))
        return due

    def _plan(self, job: _Job, due: float) -> None:
        job.due = due
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min((job.due for job in self._jobs.values()), default=_NEVER)
        if self._loop is not None and due < _NEVER:
            self._timer = self._loop.call_later(max(0.0, due - self._monotonic()), self._tick)

    def _tick(self) -> None:
        due = self.take_due()
        self._set_timer()
        for name, run in due:
            if name in self._running:
                self._missed(name)
            else:
                self._running[name] = asyncio.create_task(self._run(name, run), name=name)

    async def _run(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except Exception as error:
            # A job takes care of what it expects to fail; anything else is a defect of ours that must be seen.
            log.error("a job failed", job=name, error=repr(error), exc_info=error)
        finally:
            del self._running[name]
