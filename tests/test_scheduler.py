"""The scheduler: intervals kept, clock steps survived, missed runs counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from commwatch.service.timetable import Timetable
from support.waiting import PATIENCE_SECONDS


class Clocks:
    """A wall clock that stands still and can be stepped; the monotonic one stands still too."""

    def __init__(self) -> None:
        self._started = time.time()
        self.step = 0.0

    def wall(self) -> float:
        return self._started + self.step

    def monotonic(self) -> float:
        return 0.0


def counting(times: list[float]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        times.append(time.monotonic())

    return run


def in_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), PATIENCE_SECONDS))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come, bounded by the test's own time limit."""
    while not condition():
        await asyncio.sleep(0.002)


def test_a_job_runs_at_its_interval() -> None:
    """The next run is planned on the grid, so runs that come late do not drift."""

    async def body() -> None:
        times: list[float] = []
        scheduler = Timetable(missed=lambda job: None, wall=time.monotonic)
        scheduler.add("job", counting(times), interval=0.05, delay=0)
        scheduler.start()
        await until(lambda: len(times) >= 5)
        planned = scheduler.next_run("job")
        scheduler.stop()
        assert planned is not None
        intervals = planned / 0.05
        assert intervals == pytest.approx(round(intervals), abs=0.01)

    in_loop(body)


def due_at(scheduler: Timetable, now: list[float], moment: float) -> list[str]:
    """The jobs that are due at a moment."""
    now[0] = moment
    return [name for name, _ in scheduler.take_due()]


def test_what_is_due_in_the_same_second_runs_together() -> None:
    """On whole seconds of the clock that all processes share, a second after the readers' own, however late it came."""
    now = [10.0]
    scheduler = Timetable(missed=lambda job: None, monotonic=lambda: now[0])
    for moment, name, interval in (
        (11.2, "each second", 1.0),
        (11.4, "each five", 5.0),
        (11.9, "each second too", 1.0),
    ):
        now[0] = moment
        scheduler.add(name, counting([]), interval)

    assert due_at(scheduler, now, 11.99) == []
    assert due_at(scheduler, now, 12.001) == ["each second", "each second too"]
    assert due_at(scheduler, now, 16.0) == ["each second", "each five", "each second too"]
    assert due_at(scheduler, now, 16.9) == []
    assert due_at(scheduler, now, 17.0) == ["each second", "each second too"]


def test_a_job_that_rests_runs_when_it_is_brought_forward_and_no_progress_is_missed_of_it() -> None:
    """It has no time at which it should have run."""
    now = [10.0]
    scheduler = Timetable(missed=lambda job: None, monotonic=lambda: now[0])
    scheduler.add("job", counting([]), 5.0)
    scheduler.rest("job")

    assert due_at(scheduler, now, 1000.0) == []
    assert scheduler.makes_progress(5)
    scheduler.run_in("job", 0.0)
    assert scheduler.makes_progress(5)
    assert due_at(scheduler, now, 1000.0) == ["job"]
    scheduler.rest("job")
    scheduler.set_interval("job", 10.0)
    assert due_at(scheduler, now, 1011.0) == ["job"]
    now[0] = 1021.0 + 5
    assert scheduler.makes_progress(5)
    now[0] += 0.1
    assert not scheduler.makes_progress(5)


@pytest.mark.parametrize("interval", [0.05, 0.5, 1.9, 2.5, 15.0])
def test_any_interval_is_kept(interval: float) -> None:
    """One that is no whole number of seconds has a grid of its own."""
    now = [10.0]
    scheduler = Timetable(missed=lambda job: None, monotonic=lambda: now[0])
    scheduler.add("job", counting([]), interval)
    runs = [step for step in range(60_000) if due_at(scheduler, now, 10 + step / 1000)]

    assert len(runs) == pytest.approx(60 / interval, abs=1)
    assert max(later - earlier for earlier, later in pairwise(runs)) <= interval * 1000 + 1


def test_what_was_missed_is_not_made_up_for() -> None:
    """After a machine that slept, each job runs once."""
    now = [10.0]
    scheduler = Timetable(missed=lambda job: None, monotonic=lambda: now[0])
    scheduler.add("job", counting([]), 1.0)

    assert due_at(scheduler, now, 100.5) == ["job"]
    assert due_at(scheduler, now, 100.9) == []
    assert due_at(scheduler, now, 101.0) == ["job"]


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_stepped_clock_is_noticed_and_moves_no_job(step: float) -> None:
    """A step of an hour either way neither stops the jobs nor makes them all run at once."""

    async def body() -> None:
        clocks = Clocks()
        times: list[float] = []
        scheduler = Timetable(missed=lambda job: None, wall=clocks.wall, monotonic=clocks.monotonic)
        scheduler.add("job", counting(times), interval=100.0, delay=60.0)
        scheduler.start()
        clocks.step = step

        assert scheduler.clock_step() == pytest.approx(step)

        planned = scheduler.next_run("job")
        assert planned is not None
        assert planned - clocks.wall() == pytest.approx(60.0)
        assert scheduler.clock_step() is None
        assert not times
        scheduler.stop()

    in_loop(body)


def test_a_small_adjustment_of_the_clock_is_no_step() -> None:
    """What NTP slews stays below the threshold of two seconds."""

    async def body() -> None:
        clocks = Clocks()
        scheduler = Timetable(missed=lambda job: None, wall=clocks.wall, monotonic=clocks.monotonic)
        clocks.step = 1.9
        assert scheduler.clock_step() is None

    in_loop(body)


def test_a_job_that_fails_is_logged_and_runs_again() -> None:
    """A defect of ours costs no further run."""

    async def body() -> None:
        runs: list[float] = []

        async def fail() -> None:
            runs.append(time.monotonic())
            raise ValueError("broken")

        scheduler = Timetable(missed=lambda job: None)
        scheduler.add("job", fail, interval=0.01, delay=0)
        with capture_logs() as logged:
            scheduler.start()
            await until(lambda: len(runs) >= 2)
        scheduler.stop()
        assert {(one["event"], one["job"], one["error"]) for one in logged} == {
            ("a job failed", "job", "ValueError('broken')")
        }

    in_loop(body)


def test_a_job_that_is_still_running_is_not_started_again_but_counted() -> None:
    """A hung job costs its own runs and no others."""

    async def body() -> None:
        missed: list[str] = []
        others: list[float] = []
        hang = asyncio.Event()

        async def hung() -> None:
            await hang.wait()

        scheduler = Timetable(missed=missed.append)
        scheduler.add("hung", hung, interval=0.03, delay=0)
        scheduler.add("other", counting(others), interval=0.03, delay=0)
        scheduler.start()
        await until(lambda: len(missed) >= 2 and len(others) >= 4)
        assert set(missed) == {"hung"}
        hang.set()
        scheduler.stop()

    in_loop(body)


def test_progress_is_a_job_that_had_its_turn() -> None:
    """One that is due for longer than our patience is none; no job at all is nothing to wait for."""

    async def body() -> None:
        now = [100.0]
        scheduler = Timetable(missed=lambda job: None, monotonic=lambda: now[0], wall=lambda: now[0])
        assert scheduler.makes_progress(5)
        scheduler.add("job", counting([]), interval=10)
        now[0] = 106.0 + 5
        assert scheduler.makes_progress(5)
        now[0] += 0.1
        assert not scheduler.makes_progress(5)

    in_loop(body)


def test_a_slow_reader_is_no_lack_of_progress() -> None:
    """All jobs wait for the one reader, and each has its turn again and again; a tick that does not come is a lack."""

    async def body() -> None:
        now, missed, answer = [0.0], list[str](), asyncio.Event()

        async def wait() -> None:
            await answer.wait()

        scheduler = Timetable(missed=missed.append, monotonic=lambda: now[0])
        scheduler.add("slow", wait, interval=5, delay=0)
        scheduler.start()
        for _ in range(20):
            now[0] += 5
            scheduler._tick()
            await asyncio.sleep(0)
            assert scheduler.makes_progress(15)
        assert len(missed) == 19
        now[0] += 5 + 1 + 15.1
        assert not scheduler.makes_progress(15)
        answer.set()
        scheduler.stop()

    in_loop(body)


def test_a_job_that_is_brought_forward_runs_at_once() -> None:
    """A delay of zero is now, not one interval later; the interval counts from there."""

    async def body() -> None:
        clocks = Clocks()
        times: list[float] = []
        scheduler = Timetable(missed=lambda job: None, wall=clocks.wall)
        scheduler.add("job", counting(times), interval=5000.0)
        scheduler.start()
        scheduler.run_in("job", 0.0)
        await until(lambda: bool(times))
        planned = scheduler.next_run("job")
        assert planned is not None
        assert planned - clocks.wall() == pytest.approx(5000, abs=5)
        scheduler.run_in("nothing", 0.0)
        scheduler.stop()

    in_loop(body)
