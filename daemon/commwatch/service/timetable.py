"""When things run: APScheduler for the plan, a monotonic heartbeat for what a wall clock cannot promise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone

import structlog
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

log = structlog.get_logger("commwatch.scheduler")

GRID_SECONDS = 0.05
"""First runs that are not asked for at a certain time fall on multiples of this."""
CLOCK_STEP_SECONDS = 2.0
"""A wall clock that moves this much against the monotonic one was stepped."""


class Timetable:
    """Runs coroutines at intervals; keeps going when the wall clock is stepped."""

    def __init__(
        self,
        missed: Callable[[str], None],
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._missed = missed
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._last_run = monotonic()
        self._intervals: dict[str, float] = {}
        # UTC is named, since APScheduler would look up the zone of the machine.
        self._apscheduler = AsyncIOScheduler(
            timezone=timezone.utc,
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._apscheduler.add_listener(self._on_event, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES | EVENT_JOB_ERROR)

    def start(self) -> None:
        """Begin to run what has been added and what will be."""
        self._apscheduler.start()

    def stop(self) -> None:
        """Run nothing any more; what is running is not waited for."""
        if self._apscheduler.running:
            self._apscheduler.shutdown(wait=False)

    def add(self, name: str, run: Callable[[], Awaitable[None]], interval: float, delay: float | None = None) -> None:
        """Run a coroutine at an interval.

        Args:
            name: unique; what was added under it before is replaced.
            interval: seconds.
            delay: seconds to the first run; None: about one interval, on the grid that all such jobs share.
        """
        self._intervals[name] = interval
        self._last_run = self._monotonic()
        first = self._time_in(delay) if delay is not None else self._on_grid(interval)

        async def tracked() -> None:
            self._last_run = self._monotonic()
            try:
                await run()
            except asyncio.CancelledError:
                if self._apscheduler.running:
                    raise
                # Stopping cancels what is under way: that is no failure of the job.

        self._apscheduler.add_job(
            tracked, IntervalTrigger(seconds=interval, timezone=timezone.utc), id=name, name=name, next_run_time=first,
            replace_existing=True,
        )  # fmt: skip

    def run_in(self, name: str, delay: float) -> None:
        """Bring the next run of a job forward, or put it off; its interval counts from there.

        A job that is not planned yet stays so.
        """
        if name not in self._intervals:
            return
        self._apscheduler.modify_job(name, next_run_time=self._time_in(delay))

    def set_interval(self, name: str, interval: float) -> None:
        """Change how often a job runs; one that is not planned stays so."""
        if name not in self._intervals:
            return
        self._intervals[name] = interval
        self._apscheduler.reschedule_job(name, trigger=IntervalTrigger(seconds=interval, timezone=timezone.utc))

    def remove(self, name: str) -> None:
        """Run a job no more."""
        self._intervals.pop(name, None)
        if self._apscheduler.get_job(name) is not None:
            self._apscheduler.remove_job(name)

    def remove_all(self) -> None:
        """Run none of the jobs any more."""
        self._intervals.clear()
        self._apscheduler.remove_all_jobs()

    def next_run(self, name: str) -> float | None:
        """Wall clock seconds since 1970 of a job's next run; None where it has none."""
        job = self._apscheduler.get_job(name)
        return None if job is None or job.next_run_time is None else float(job.next_run_time.timestamp())

    def _time_in(self, delay: float) -> datetime:
        return datetime.fromtimestamp(self._wall(), timezone.utc) + timedelta(seconds=delay)

    def _on_grid(self, interval: float) -> datetime:
        """In one interval from the last tick: jobs that are due together cost one wake-up."""
        wall = self._wall()
        return datetime.fromtimestamp(wall, timezone.utc) + timedelta(seconds=interval - wall % GRID_SECONDS)

    def clock_step(self) -> float | None:
        """Seconds by which the wall clock was stepped since the last look; None where it was not.

        APScheduler plans by the wall clock: after a step back it would run nothing until the old time is reached
        again, after a step forward it would run everything at once. So every job is planned again.
        """
        offset = self._wall() - self._monotonic()
        step = offset - self._offset
        self._offset = offset
        if abs(step) <= CLOCK_STEP_SECONDS:
            return None
        log.warning("the wall clock was stepped", by_seconds=round(step, 3))
        for name, interval in self._intervals.items():
            planned = self.next_run(name)
            delay = interval if planned is None else planned + step - self._wall()
            self._apscheduler.modify_job(name, next_run_time=self._time_in(min(max(delay, 0.0), interval)))
        return step

    def makes_progress(self, patience: float) -> bool:
        """Whether a job has started within so many seconds, or none was due."""
        longest = min(self._intervals.values(), default=None)
        return longest is None or self._monotonic() - self._last_run <= longest + patience

    def _on_event(self, event: JobEvent) -> None:
        if event.code == EVENT_JOB_ERROR:
            # A job takes care of what it expects to fail; anything else is a defect of ours that must be seen.
            log.error("a job failed", job=event.job_id, error=repr(event.exception), exc_info=event.exception)
        else:
            self._missed(event.job_id)


async def every(interval: float, run: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine at an interval of the monotonic clock until cancelled; slow runs do not stretch the period."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        await run()
        due = max(due + interval, loop.time())
        await asyncio.sleep(due - loop.time())
