"""Parts of a daemon in this process: a reader and a scheduler that obey the test, a clock, and blocks of readings."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_SUBMITTED

from commwatch.node.run import Collected, Collector, failed
from commwatch.readings import Absence, SourceUnavailable
from commwatch.service.instruments import Instruments
from commwatch.service.scheduling import Owner, Scheduler, Work
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.sources import SOURCES
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from support.waiting import PATIENCE_SECONDS

SLOTS = ("0000:17:00.0", "0000:18:00.0")
"""PCI addresses of the two GPUs of these tests."""


class Clock:
    """Stands in for the module ``time``: moved by hand, wall clock and monotonic one together."""

    WALL_START = 1_700_000_000.0

    def __init__(self, monotonic: float = 10_000.0) -> None:
        self.now = monotonic

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.WALL_START + self.now


class SteppedScheduler(Scheduler):
    """The daemon's scheduler on a clock that the test moves: what is due runs when the test says so."""

    def __init__(self, monotonic: Callable[[], float], missed: Callable[[str], None] = lambda job: None) -> None:
        super().__init__(missed, monotonic)
        self._begun: list[str] = []
        self._under_way = 0
        self.library.add_listener(self._on_begin, EVENT_JOB_SUBMITTED)
        self.library.add_listener(self._on_whole, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)

    def _on_begin(self, event: Any) -> None:
        self._begun.append(event.job_id)
        self._under_way += 1

    def _on_whole(self, event: Any) -> None:
        self._under_way -= 1

    async def run_due(self, hung: int = 0) -> list[str]:
        """Run what is due now, each job once; returns its names in the order in which they began.

        Args:
            hung: jobs that do not come to their end.
        """
        if not self.library.running:
            self.start()
        self._begun = []
        self.library.wakeup()
        await asyncio.sleep(0)
        while self._under_way > hung:
            await asyncio.sleep(0)
        return self._begun


class PlannedJobs(Scheduler):
    """A scheduler that runs nothing by itself and remembers what was asked of it."""

    def __init__(self) -> None:
        super().__init__(missed=lambda job: None)
        self.jobs: dict[str, tuple[float, float | None]] = {}
        """Interval and delay of each job that was added."""
        self.moved: list[tuple[str, float]] = []
        """Jobs whose next run was moved, with the seconds until it."""
        self.planned: dict[str, float] = {}
        """What ``next_run`` answers."""

    def add(self, name: str, run: Work, interval: float, delay: float | None = None, owner: Owner = "engine") -> None:
        self.jobs[name] = (interval, delay)

    def run_in(self, name: str, delay: float) -> None:
        self.moved.append((name, delay))

    def next_run(self, name: str) -> float | None:
        return self.planned.get(name)


@dataclass(frozen=True)
class NodeReads:
    """The node as probes have it read; nothing of it hangs."""

    read_gpus: Callable[[], Coroutine[Any, Any, None]]
    read_processes: Callable[[], Coroutine[Any, Any, None]]
    has_driver: bool = True

    def is_driver_expected(self) -> bool:
        return self.has_driver

    def stuck_readers(self) -> int:
        return 0


class ScriptedReader(Reader):
    """A reader without processes: each run gives the next answer of the script."""

    def __init__(self, name: str = "nvml", deadline: float = 2.0) -> None:
        settings = ReaderSettings(name, (name,), b"{}", deadline, 60.0, sysfs="", procfs=Path("/nonexistent"))
        super().__init__(settings, Instruments())
        self.answers: deque[Collected | SourceUnavailable] = deque()
        self.asked: list[str] = []
        """Collectors that were to run now."""
        self.orders: list[tuple[str, float]] = []
        """Collectors with the interval at which they are to run; 0: not any more."""
        self.hastened: list[str] = []

    def order(self, collector: str, every: float) -> None:
        self.orders.append((collector, every))

    def hasten(self, collector: str) -> None:
        self.hastened.append(collector)

    async def now(self, collector: str) -> Collected:
        self.asked.append(collector)
        return self.give(collector, self.answers.popleft())

    def give(self, collector: str, answer: Collected | SourceUnavailable) -> Collected:
        """A worker has run a collector."""
        if isinstance(answer, SourceUnavailable):
            given = failed(collector, Absence("", answer.reason, answer.detail), answer)
        else:
            given = replace(answer, collector=collector)
        self.keeper.keep(given)
        return given


def collector(
    name: str = "nvml_nvlink", reader: Reader | None = None, interval: float = 1.0, needs_release: bool = True
) -> Collector:
    """A collector of the source that its name begins with."""
    source = name if name in SOURCES else name.partition("_")[0]
    return Collector(name, source, reader or ScriptedReader(source), interval, needs_release=needs_release)


def block(values: Mapping[Series, Value], at: float | None = None) -> Block:
    """A block of these series, taken at a monotonic time; now by default."""
    return Block(Layout(values), list(values.values()), time.monotonic() if at is None else at)


def states(device: str, state: int = 1, at: float | None = None) -> Block:
    """The state of one NVLink of a GPU."""
    return block({("commwatch_nvlink_link_state", ("0", device, "0")): state}, at)


def collected(blocks: Mapping[str, Block] | None = None, *absences: Absence, duration: float = 0.01) -> Collected:
    """What one run gave."""
    return Collected(dict(blocks or {}), list(absences), duration)


def in_loop(body: Callable[[], Coroutine[Any, Any, None]], seconds: float = PATIENCE_SECONDS) -> None:
    """Run a test's coroutine with a time limit."""
    asyncio.run(asyncio.wait_for(body(), seconds))
