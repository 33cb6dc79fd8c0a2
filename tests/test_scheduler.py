"""The scheduler: intervals kept, no clock step seen, missed runs counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime, timezone, tzinfo
from itertools import pairwise
from typing import Any

import pytest
from apscheduler.schedulers import base
from structlog.testing import capture_logs

from commwatch.service.scheduling import ClockSteps, Scheduler, Work
from support.core import SteppedScheduler
from support.passes import in_one_pass
from support.waiting import PATIENCE_SECONDS


class Clocks:
    """A wall clock and a monotonic one, moved by hand; only the wall clock can be stepped."""

    def __init__(self, monotonic: float = 10.0) -> None:
        self.monotonic_now = monotonic
        self.step = 0.0

    def wall(self) -> float:
        return 1_700_000_000.0 + self.monotonic_now + self.step

    def monotonic(self) -> float:
        return self.monotonic_now


class Plan:
    """The scheduler on clocks of the test."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.missed: list[str] = []
        self.scheduler = SteppedScheduler(self.clocks.monotonic, self.missed.append)

    async def due_at(self, moment: float) -> list[str]:
        """The jobs that run at a moment of the monotonic clock."""
        self.clocks.monotonic_now = moment
        return await self.scheduler.run_due()


async def nothing() -> None:
    """A job without work."""


def counting(times: list[float]) -> Work:
    async def run() -> None:
        times.append(time.monotonic())

    return run


def in_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), PATIENCE_SECONDS))


def planned(body: Callable[[Plan], Awaitable[None]]) -> None:
    async def main() -> None:
        plan = Plan()
        await body(plan)
        plan.scheduler.stop()
        await asyncio.sleep(0)

    in_loop(main)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come, bounded by the test's own time limit."""
    while not condition():
        await asyncio.sleep(0.002)


def test_jobs_run_by_themselves_once_started() -> None:
    """On the machine's clock, until the scheduler is stopped."""

    async def body() -> None:
        times: list[float] = []
        scheduler = Scheduler(missed=lambda job: None)
        scheduler.add("job", counting(times), interval=0.05, delay=0)
        scheduler.start()
        await until(lambda: len(times) >= 5)
        scheduler.stop()
        await asyncio.sleep(0)
        ran = len(times)
        await asyncio.sleep(0.2)
        assert len(times) == ran

    in_loop(body)


def test_it_sleeps_until_the_next_job_is_due() -> None:
    """Its clock is asked as often as a job is planned, and not meanwhile."""

    async def body() -> None:
        asked: list[float] = []

        def monotonic() -> float:
            asked.append(time.monotonic())
            return asked[-1]

        scheduler = Scheduler(lambda job: None, monotonic)
        scheduler.add("job", nothing, interval=0.1)
        scheduler.add("of the daemon", nothing, interval=1000.0, owner="daemon")
        scheduler.start()
        await asyncio.sleep(0.5)
        scheduler.stop()
        assert 5 <= len(asked) < 100

    in_loop(body)


def test_what_is_due_in_the_same_second_runs_together() -> None:
    """On whole seconds of the clock that all processes share, a second after the readers' own, however late it came."""

    async def body(plan: Plan) -> None:
        for moment, name, interval in ((11.2, "a", 1.0), (11.4, "b, each five", 5.0), (11.9, "c", 1.0)):
            plan.clocks.monotonic_now = moment
            plan.scheduler.add(name, nothing, interval)

        assert await plan.due_at(11.99) == []
        assert await plan.due_at(12.001) == ["a", "c"]
        assert await plan.due_at(16.0) == ["a", "c", "b, each five"]
        assert await plan.due_at(16.9) == []
        assert await plan.due_at(17.0) == ["a", "c"]

    planned(body)


def test_a_job_that_is_brought_forward_keeps_its_interval_from_there() -> None:
    """A job that has been due for too long without its turn shows that nothing runs."""

    async def body(plan: Plan) -> None:
        scheduler = plan.scheduler
        scheduler.add("job", nothing, 10.0)
        assert await plan.due_at(1001.0) == ["job"]
        scheduler.run_in("job", 0.0)
        assert await plan.due_at(1001.0) == ["job"]
        assert await plan.due_at(1011.0) == ["job"]
        plan.clocks.monotonic_now = 1021.0 + 5
        assert scheduler.makes_progress(5)
        plan.clocks.monotonic_now += 0.1
        assert not scheduler.makes_progress(5)

    planned(body)


@in_one_pass("interval", [0.05, 0.5, 1.9, 2.5, 15.0])
def test_any_interval_is_kept(interval: float) -> None:
    """One that is no whole number of seconds has a grid of its own."""

    async def body(plan: Plan) -> None:
        plan.scheduler.add("job", nothing, interval)
        runs = [step for step in range(0, 60_000, 10) if await plan.due_at(10 + step / 1000)]

        assert len(runs) == pytest.approx(60 / interval, abs=1)
        assert max(later - earlier for earlier, later in pairwise(runs)) <= interval * 1000 + 10

    planned(body)


def test_what_was_missed_is_not_made_up_for() -> None:
    """After a machine that slept, each job runs once."""

    async def body(plan: Plan) -> None:
        plan.scheduler.add("job", nothing, 1.0)

        assert await plan.due_at(100.5) == ["job"]
        assert await plan.due_at(100.9) == []
        assert await plan.due_at(101.0) == ["job"]
        assert plan.missed == []

    planned(body)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_step_of_the_wall_clock_moves_no_job(monkeypatch: pytest.MonkeyPatch, step: float, is_noticed: bool) -> None:
    """An hour either way neither stops a job nor runs it once more, whether or not a heartbeat has noticed it."""
    plans: list[Plan] = []

    class Wall(datetime):
        """As the machine's own clock answers APScheduler, but on the wall clock of the test."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            assert tz is not None
            return tz.fromutc(datetime.fromtimestamp(plans[0].clocks.wall(), timezone.utc).replace(tzinfo=tz))

    async def body(plan: Plan) -> None:
        plans.append(plan)
        monkeypatch.setattr(base, "datetime", Wall)
        monkeypatch.setattr(time, "time", plan.clocks.wall)
        steps = ClockSteps(plan.clocks.wall, plan.clocks.monotonic)
        for name, interval, delay in (("each five", 5.0, None), ("probe", 86400.0, 1800.0)):
            plan.scheduler.add(name, nothing, interval, delay=delay)
        assert await plan.due_at(16.0) == ["each five"]

        plan.clocks.step = step
        if is_noticed:
            with capture_logs() as logged:
                assert steps.last() == pytest.approx(step)
                assert steps.last() is None
            assert [one["event"] for one in logged] == ["the wall clock was stepped"]

        found = {moment: await plan.due_at(moment) for moment in (16.1, 20.9, 21.0, 21.1, 25.9, 26.0)}
        assert found == {16.1: [], 20.9: [], 21.0: ["each five"], 21.1: [], 25.9: [], 26.0: ["each five"]}
        told = plan.scheduler.next_run("probe")
        assert told is not None
        assert told - plan.clocks.wall() == pytest.approx(1810 - 26)
        assert plan.scheduler.makes_progress(5)
        assert await plan.due_at(1809.9) == ["each five"]
        assert await plan.due_at(1810.0) == ["probe"]
        assert plan.missed == []

    planned(body)


def test_a_small_adjustment_of_the_clock_is_no_step() -> None:
    """What NTP slews stays below the threshold of two seconds."""
    clocks = Clocks()
    steps = ClockSteps(clocks.wall, clocks.monotonic)
    clocks.step = 1.9
    assert steps.last() is None


def test_a_job_that_fails_is_logged_and_runs_again() -> None:
    """A defect of ours costs no further run; until a run comes to its end none is whole."""

    async def body(plan: Plan) -> None:
        errors: list[Exception] = [ValueError("broken")]

        async def fail() -> None:
            if errors:
                raise errors.pop()

        plan.scheduler.add("job", fail, interval=5.0)
        assert plan.scheduler.since_whole_run("job") == 0.0
        with capture_logs() as logged:
            assert await plan.due_at(16.0) == ["job"]
            assert plan.scheduler.since_whole_run("job") == float("inf")
            assert await plan.due_at(21.0) == ["job"]
        assert {(one["event"], one["job"], one["error"]) for one in logged} == {
            ("a job failed", "job", "ValueError('broken')")
        }
        plan.clocks.monotonic_now = 23.0
        assert plan.scheduler.since_whole_run("job") == 2.0

    planned(body)


def test_a_slow_reader_costs_its_own_runs_which_are_counted() -> None:
    """A hung job costs its own runs and no others; it has had its turn, so the scheduler makes progress."""

    async def body(plan: Plan) -> None:
        hang = asyncio.Event()

        async def hung() -> None:
            await hang.wait()

        plan.scheduler.add("hung", hung, interval=5.0)
        plan.scheduler.add("other", nothing, interval=5.0)
        begun = []
        for number in range(20):
            plan.clocks.monotonic_now = 16.0 + 5 * number
            begun += await plan.scheduler.run_due(hung=1)
            assert plan.scheduler.makes_progress(15)
        assert (begun.count("hung"), begun.count("other"), plan.missed) == (1, 20, ["hung"] * 19)
        assert plan.scheduler.since_whole_run("hung") == 101.0
        plan.clocks.monotonic_now += 5 + 15.1
        assert not plan.scheduler.makes_progress(15)
        hang.set()

    planned(body)


def test_progress_is_a_job_that_had_its_turn() -> None:
    """One that is due for longer than our patience is none; no job at all is nothing to wait for."""

    async def body(plan: Plan) -> None:
        assert plan.scheduler.makes_progress(5)
        plan.scheduler.add("job", nothing, interval=10)
        plan.clocks.monotonic_now = 16.0 + 5
        assert plan.scheduler.makes_progress(5)
        plan.clocks.monotonic_now += 0.1
        assert not plan.scheduler.makes_progress(5)

    planned(body)


def test_a_job_that_is_brought_forward_runs_at_once() -> None:
    """A delay of zero is now, not one interval later; the interval counts from there."""

    async def body(plan: Plan) -> None:
        plan.scheduler.add("job", nothing, interval=5000.0)
        plan.scheduler.run_in("job", 0.0)
        assert await plan.due_at(10.0) == ["job"]
        assert await plan.due_at(5005.9) == []
        assert await plan.due_at(5006.0) == ["job"]
        plan.scheduler.run_in("nothing", 0.0)

    planned(body)


def test_an_engine_takes_its_jobs_with_it() -> None:
    """Those of the daemon go on; under the name of one that has gone another can be added."""

    async def body(plan: Plan) -> None:
        plan.scheduler.add("of an engine", nothing, 5.0)
        plan.scheduler.add("of the daemon", nothing, 5.0, owner="daemon")
        assert await plan.due_at(16.0) == ["of the daemon", "of an engine"]
        plan.scheduler.remove_all()
        assert await plan.due_at(21.0) == ["of the daemon"]
        plan.scheduler.add("of an engine", nothing, 5.0)
        assert await plan.due_at(26.0) == ["of the daemon", "of an engine"]

    planned(body)
