"""When the daemon's periodic work runs: APScheduler, on the monotonic clock, which no step of the wall clock moves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Literal, TypeAlias

import structlog
from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    JobExecutionEvent,
    JobSubmissionEvent,
)
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from commwatch.workers.wire import on_grid

log = structlog.get_logger("commwatch.scheduler")

CLOCK_STEP_SECONDS = 2.0
"""A wall clock that moves this much against the monotonic one was stepped."""
READERS_SECONDS = 1.0
"""Scheduled readings are done within this time after the grid; the daemon's jobs run then."""

Owner: TypeAlias = Literal["daemon", "engine"]
"""Whose a job is: those of an engine end with it."""
Work: TypeAlias = "Callable[[], Coroutine[Any, Any, None]]"

# It writes a line for each run, and one of its own for what is logged and counted here.
logging.getLogger("apscheduler").setLevel(logging.CRITICAL + 1)


def after_readers(now: float, interval: float) -> float:
    """The next moment at an interval that is on the grid of the jobs.

    Args:
        now: monotonic seconds.
        interval: in seconds.
    """
    return on_grid(now - READERS_SECONDS + interval, interval) + READERS_SECONDS


class _MonotonicZone(tzinfo):
    """A time zone whose time is that of the monotonic clock, counted from 1970.

    APScheduler reads the time as ``datetime.now(timezone)``, which asks the time zone. On the wall clock a step forward
    would run all jobs at once, and a step back would stop them until somebody notices. Each moment that APScheduler is
    given is in this time zone: it would convert any other one to now, and never sleep.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic

    def at(self, monotonic: float) -> datetime:
        """A moment of the monotonic clock, in seconds."""
        return datetime.fromtimestamp(monotonic, timezone.utc).replace(tzinfo=self)

    def fromutc(self, moment: datetime) -> datetime:
        return self.at(self._monotonic())

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "monotonic"


class _Each(BaseTrigger):  # type: ignore[misc]  # the package has no types
    """About one interval after each run, on the grid that all jobs share, and after now: nothing is made up for."""

    def __init__(self, zone: _MonotonicZone, interval: float) -> None:
        self._zone = zone
        self._interval = interval

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        return self._zone.at(after_readers(now.timestamp(), self._interval))


class ClockSteps:
    """Notices steps of the wall clock."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def last(self) -> float | None:
        """Seconds by which the wall clock was stepped since the last call; None where it was not."""
        offset = self._wall() - self._monotonic()
        step, self._offset = offset - self._offset, offset
        if abs(step) <= CLOCK_STEP_SECONDS:
            return None
        log.warning("the wall clock was stepped", by_seconds=round(step, 3))
        return step


class Scheduler:
    """Runs coroutines at intervals, each at most once at a time."""

    def __init__(self, missed: Callable[[str], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        """Args:
        missed: called with each job that was due while its last run was still under way.
        """
        self._missed = missed
        self._monotonic = monotonic
        self._whole: dict[str, float] = {}
        """Monotonic time at which the last run of a job ended; -inf where it failed."""
        self._zone = _MonotonicZone(monotonic)
        self.library = AsyncIOScheduler(
            timezone=self._zone,
            jobstores={"daemon": MemoryJobStore(), "engine": MemoryJobStore()},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self.library.add_listener(self._on_missed, EVENT_JOB_MAX_INSTANCES | EVENT_JOB_MISSED)
        self.library.add_listener(self._on_end, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)

    def start(self) -> None:
        """Begin to run what has been added and what will be."""
        self.library.start()

    def stop(self) -> None:
        """Run nothing any more; what is running is cancelled and not waited for."""
        if self.library.running:
            self.library.shutdown(wait=False)

    def add(self, name: str, run: Work, interval: float, delay: float | None = None, owner: Owner = "engine") -> None:
        """Run a coroutine at an interval.

        Args:
            name: unique; what was added under it before is replaced.
            interval: seconds.
            delay: seconds to the first run; None: about one interval, on the grid that all jobs share.
            owner: whose it is.
        """
        now, trigger = self._monotonic(), _Each(self._zone, interval)
        self._whole[name] = now
        first = after_readers(now, interval) if delay is None else now + delay
        self.library.add_job(
            run, trigger, id=name, name=name, jobstore=owner, replace_existing=True, next_run_time=self._zone.at(first)
        )

    def run_in(self, name: str, delay: float) -> None:
        """Bring the next run of a job forward, or put it off; its interval counts from there.

        A job that is not planned yet stays so. One that is still under way by then misses that run.
        """
        if self.library.get_job(name) is not None:
            self.library.modify_job(name, next_run_time=self._zone.at(self._monotonic() + delay))

    def remove_all(self, owner: Owner = "engine") -> None:
        """Run none of its jobs any more; what is running comes to its end."""
        self.library.remove_all_jobs(jobstore=owner)

    def next_run(self, name: str) -> float | None:
        """Wall clock seconds since 1970 of a job's next run; None where it has none."""
        job = self.library.get_job(name)
        if job is None:
            return None
        return time.time() + float(job.next_run_time.timestamp()) - self._monotonic()

    def makes_progress(self, patience: float) -> bool:
        """Whether no job has been due for more than this time, in seconds, without its turn.

        A job whose last run is still under way has had its turn: it waits for a reader, and the scheduler lives.
        """
        late = self._zone.at(self._monotonic() - patience)
        return all(job.next_run_time >= late for job in self.library.get_jobs())

    def since_whole_run(self, name: str) -> float:
        """Seconds since a run of a job came to its end, or since it was planned; inf where the last run failed."""
        return self._monotonic() - self._whole[name]

    def _on_missed(self, event: JobSubmissionEvent | JobExecutionEvent) -> None:
        self._missed(event.job_id)

    def _on_end(self, event: JobExecutionEvent) -> None:
        error = event.exception
        self._whole[event.job_id] = float("-inf") if error is not None else self._monotonic()
        if error is not None and not isinstance(error, asyncio.CancelledError):
            # A job takes care of what it expects to fail; anything else is a defect of ours that must be seen.
            log.error("a job failed", job=event.job_id, error=repr(error), exc_info=error)
