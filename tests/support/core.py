"""Parts of a daemon in this process: a reader and a scheduler that obey the test, a clock, and blocks of readings."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_SUBMITTED

from commwatch.node.run import Collected, Collector, Keeper, failed
from commwatch.readings import Absence, SourceUnavailable
from commwatch.service.scheduling import Owner, Scheduler, Work
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.sources import SOURCES
from commwatch.workers.wire import WorkerPlan
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


_ON_THE_CLOCK = ("commwatch.service.", "commwatch.node.", "commwatch.probes.node", "commwatch.jobs.logs.tracker")
"""Modules that read the daemon's clocks."""


def keep_time(patched: pytest.MonkeyPatch, clock: Clock) -> None:
    """Have the daemon's modules read a clock of the test's in place of the module ``time``."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_ON_THE_CLOCK) and hasattr(module, "time") and not callable(module.time):
            patched.setattr(module, "time", clock)


def give_clock(thing: object, clock: Clock, depth: int = 3) -> None:
    """Give a thing, and what it holds, a clock of the test's for that of the machine which they took by default."""
    for name, value in vars(thing).items():
        if value is time:
            setattr(thing, name, clock)
        elif value is _MACHINE_MONOTONIC:
            setattr(thing, name, clock.monotonic)
        elif value is _MACHINE_TIME or isinstance(getattr(value, "__self__", None), Clock):
            # The latter where the module was imported while an earlier daemon's clock stood in.
            setattr(thing, name, clock.time if value.__name__ == "time" else clock.monotonic)
        elif depth:
            for part in value if isinstance(value, list | tuple) else [value]:
                if type(part).__module__.startswith("commwatch.") and hasattr(part, "__dict__"):
                    give_clock(part, clock, depth - 1)


_MACHINE_MONOTONIC, _MACHINE_TIME = time.monotonic, time.time


class SteppedScheduler(Scheduler):
    """The daemon's scheduler on a clock that the test moves: what is due runs when the test says so."""

    def __init__(self, monotonic: Callable[[], float], missed: Callable[[str], None] = lambda job: None) -> None:
        super().__init__(missed, monotonic)
        self._begun: list[str] = []
        self._under_way = 0
        self._ended = asyncio.Event()
        self.library.add_listener(self._on_begin, EVENT_JOB_SUBMITTED)
        self.library.add_listener(self._on_whole, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)

    def _on_begin(self, event: Any) -> None:
        self._begun.append(event.job_id)
        self._under_way += 1

    def _on_whole(self, event: Any) -> None:
        self._under_way -= 1
        self._ended.set()

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
            self._ended.clear()
            await self._ended.wait()
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


class Resuming(Keeper):
    """Has new processes resume from what is there."""

    def __init__(self, state: Mapping[str, bytes]) -> None:
        self._state = state

    def resume_point(self, sources: tuple[str, ...]) -> dict[str, bytes]:
        return dict(self._state)


class ScriptedReader(Reader):
    """A reader without processes: each run gives the next answer of the script."""

    def __init__(self, name: str = "nvml", deadline: float = 2.0, keeper: Keeper | None = None) -> None:
        settings = ReaderSettings(WorkerPlan(name, (name,)), deadline, 60.0, Path("/nonexistent"))
        super().__init__(settings, keeper)
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


KEYS = {row.name: (source.name, row.key) for source in SOURCES.values() for row in source.collectors}
"""The source of a collector, and what that calls it, by its name on the metrics."""


def collector(name: str = "nvml_nvlink", interval: float = 1.0, needs_release: bool = True) -> Collector:
    """A collector of the source that its name begins with."""
    source = name if name in SOURCES else name.partition("_")[0]
    return Collector(name, source, 2.0, interval, needs_release=needs_release)


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
