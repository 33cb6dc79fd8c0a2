"""The heartbeat of the daemon, and the jobs that it plans beside those of an engine."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import Config, Otlp, Textfile
from commwatch.node.run import TEND_SECONDS
from commwatch.service import daemon
from commwatch.service.daemon import (
    HEARTBEAT_SECONDS,
    LOOK_SECONDS,
    PROGRESS_PATIENCE_SECONDS,
    WHOLE_PATIENCE_SECONDS,
    Daemon,
)
from commwatch.service.instruments import Instruments
from commwatch.service.scheduling import ClockSteps
from support.core import Clock, SteppedScheduler


class _SteppedClock(Clock):
    """Its wall clock can be stepped."""

    step = 0.0
    fed = 0
    """How often the watchdog was."""

    def time(self) -> float:
        return super().time() + self.step

    def notify(self, *lines: str) -> None:
        """What systemd gets."""
        self.fed += lines == ("WATCHDOG=1",)


class _Living(Daemon):
    """Of a daemon its heart, its jobs, and housekeeping that does what the test says."""

    def __init__(self, clock: _SteppedClock) -> None:
        self.clock = clock
        self._scheduler: SteppedScheduler = SteppedScheduler(clock.monotonic)
        self._clock_steps = ClockSteps(clock.time, clock.monotonic)
        self.config = Config(textfile=Textfile("/run/commwatch.prom"))
        self._instruments, self._web = Instruments(), None
        self._reload, self._stop, self._watches = asyncio.Event(), asyncio.Event(), True
        self.followed: list[float] = []
        """Steps of the clock of which collectors were told."""
        self.late: list[float] = []
        self.runs: list[tuple[str, float]] = []
        """Jobs, with the monotonic second of each run."""
        self.hangs = self.fails = False
        self.engine: Any = SimpleNamespace(collection=SimpleNamespace(follow_clock=self.followed.append))
        self._starvation: Any = SimpleNamespace(beat=self.late.append)
        self._textfile: Any = SimpleNamespace(write=self._write)
        self._otlp: Any = SimpleNamespace(send=self._send)

    @property
    def fed(self) -> int:
        return self.clock.fed

    async def _write(self, settings: Textfile) -> None:
        self.runs.append(("textfile", self.clock.now // 1))

    async def _send(self, settings: Otlp) -> None:
        """No collector is configured."""

    async def _keep_house(self) -> None:
        self.runs.append(("housekeeping", self.clock.now // 1))
        if self.fails:
            raise ZeroDivisionError
        if self.hangs:
            await asyncio.Event().wait()

    async def _evaluate(self) -> None:
        self.runs.append(("look", self.clock.now // 1))

    async def live(self, seconds: float, *, is_scheduled: bool = True) -> int:
        """Let time pass; returns how often the watchdog was fed.

        Args:
            seconds: how much.
            is_scheduled: whether the scheduler runs what is due.
        """
        before = self.fed
        for _ in range(round(seconds / HEARTBEAT_SECONDS)):
            self.clock.now += HEARTBEAT_SECONDS
            if is_scheduled:
                await self._scheduler.run_due(hung=int(self.hangs))
            self._beat(0.0)
        return self.fed - before

    def wake_after(self, seconds: float) -> int:
        """Let the whole process stand still; returns how often the watchdog was fed before the scheduler ran."""
        before = self.fed
        self.clock.now += HEARTBEAT_SECONDS + seconds
        self._beat(seconds)
        return self.fed - before

    def plan(self) -> None:
        """As the daemon does when it is ready."""
        self._plan()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _SteppedClock:
    """Of the daemon; a pause of a task moves it and takes no time."""
    one, pause = _SteppedClock(10_001.0), asyncio.sleep

    async def sleep(seconds: float) -> None:
        one.now += seconds
        await pause(0)

    monkeypatch.setattr(daemon, "time", one)
    monkeypatch.setattr(daemon, "notify", one.notify)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return one


def test_the_heart_beats_on_the_grid_of_the_jobs(clock: _SteppedClock) -> None:
    """So they share a wake-up. A defect in a beat is logged, feeds no watchdog, and is not the last beat."""
    clock.now += 0.3

    async def body() -> None:
        service = _Living(clock)
        service.plan()
        beats: list[float] = []

        def beat(late: float) -> None:
            beats.append(clock.now)
            clock.now += 0.25  # it takes a moment
            if len(beats) == 4:
                heart.cancel()
            raise ZeroDivisionError

        service._starvation.beat = beat
        heart = asyncio.create_task(service._live())
        with capture_logs() as logged:
            await asyncio.wait([heart])
        assert beats == [10_001.3, 10_006.0, 10_011.0, 10_016.0]
        assert [one["event"] for one in logged] == ["the heartbeat failed"] * 4
        assert service.fed == 0

    asyncio.run(body())


def test_the_jobs_of_the_daemon_run_at_their_intervals(clock: _SteppedClock) -> None:
    """Housekeeping and the textfile at once, and what was read is taken before the rules look at it."""

    async def body() -> None:
        service = _Living(clock)
        service.plan()
        await service._scheduler.run_due()
        await service.live(30.0)
        textfile = [moment for name, moment in service.runs if name == "textfile"]
        assert textfile == [10_001.0, 10_016.0, 10_031.0]
        rest = [one for one in service.runs if one[0] != "textfile"]
        assert rest == sorted(
            [("housekeeping", 10_001.0 + number * TEND_SECONDS) for number in range(7)]
            + [("look", 10_001.0 + number * LOOK_SECONDS) for number in range(1, 4)],
            key=lambda one: (one[1], one[0]),
        )

    asyncio.run(body())


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_stepped_clock_is_counted_and_moves_no_job(clock: _SteppedClock, step: float) -> None:
    """Collectors are told of it once, and the watchdog is fed as before."""

    async def body() -> None:
        service = _Living(clock)
        service.plan()
        await service.live(10.0)
        clock.step, service.runs = step, []
        with capture_logs():
            assert await service.live(20.0) == 4
        assert service.followed == [pytest.approx(step)]
        registry = service._instruments.registry
        assert registry.get_sample_value("commwatch_clock_steps_total") == 1
        names = [name for name, _ in service.runs]
        assert (names.count("housekeeping"), names.count("look"), len(set(service.runs))) == (4, 2, len(names))

    asyncio.run(body())


def test_the_watchdog_is_fed_while_housekeeping_waits_for_readers(clock: _SteppedClock) -> None:
    """At its own interval; but housekeeping that waits for ever is no life."""

    async def body() -> None:
        service = _Living(clock)
        service.plan()
        service.hangs = True
        seconds = WHOLE_PATIENCE_SECONDS
        assert await service.live(seconds) == pytest.approx(seconds / HEARTBEAT_SECONDS, abs=1)
        with capture_logs() as logged:
            assert await service.live(600.0) <= 1
        assert logged[-1]["event"] == "a job has not come to its end for too long"
        assert logged[-1]["jobs"] == ["housekeeping"]

    asyncio.run(body())


def test_the_watchdog_is_not_fed_after_housekeeping_that_failed(clock: _SteppedClock) -> None:
    """Until it comes to its end once: a defect that lasts ends in a restart."""

    async def body() -> None:
        service = _Living(clock)
        service.plan()
        service.fails = True
        with capture_logs():
            assert await service.live(60.0) == 0
        service.fails = False
        assert await service.live(10.0) >= 1

    asyncio.run(body())


def test_the_watchdog_is_not_fed_where_the_scheduler_is_dead(clock: _SteppedClock) -> None:
    """A job is due and nobody gives it its turn, while heartbeats go on."""

    async def body() -> None:
        service = _Living(clock)
        service.plan()
        assert await service.live(PROGRESS_PATIENCE_SECONDS, is_scheduled=False) >= 3
        with capture_logs() as logged:
            assert await service.live(60.0, is_scheduled=False) <= 1
        assert logged[-1]["event"] == "the scheduler does not run"

    asyncio.run(body())


def test_the_watchdog_is_fed_at_once_by_a_process_that_stood_still(clock: _SteppedClock) -> None:
    """Whichever timer of the event loop comes first: systemd would not wait for the next beat."""

    async def body() -> None:
        service = _Living(clock)
        service.plan()
        assert await service.live(60.0) == 12
        assert service.wake_after(PROGRESS_PATIENCE_SECONDS + 8.0) == 1
        assert await service.live(60.0) == 12

    asyncio.run(body())


def test_a_configuration_is_read_again_as_often_as_that_is_asked_for() -> None:
    """Also where that is asked for during a reading; one that fails is not the last."""

    async def body() -> None:
        service, readings = _Living(_SteppedClock()), list[int]()

        async def read() -> None:
            readings.append(len(readings))
            if len(readings) == 1:
                service._reload.set()
                raise ZeroDivisionError
            if len(readings) == 2:
                task.cancel()

        service._reload_now = read  # type: ignore[method-assign]  # when, not what
        service._reload.set()
        task = asyncio.create_task(service._reload_when_asked())
        with capture_logs() as logged:
            await asyncio.wait([task])
        assert (readings, len(logged)) == ([0, 1], 1)

    asyncio.run(body())


def test_the_watchdog_is_not_fed_where_no_engine_took_over(clock: _SteppedClock) -> None:
    """A defect kept the new one from its start and the old one has stopped: systemd starts the daemon again."""

    async def body() -> None:
        service, failures = _Living(clock), [ZeroDivisionError()]

        async def change(*_: object) -> None:
            if failures:
                raise failures.pop()

        service._reload_config, service._changing = Config, asyncio.Lock()
        service._prepare = lambda config: None  # type: ignore  # nothing is made of it
        service._change_to = change  # type: ignore  # fails or not
        service._status_line = lambda: ""  # type: ignore[method-assign]
        service.plan()
        assert await service.live(30.0) == 6
        with pytest.raises(ZeroDivisionError):
            await service._reload_now()
        with capture_logs() as logged:
            assert await service.live(30.0) == 0
        assert {one["event"] for one in logged} == {
            "nothing is watched since the configuration could not be read again"
        }
        await service._reload_now()
        assert await service.live(30.0) == 6

    asyncio.run(body())


def test_an_inventory_is_accepted_by_the_engine_that_stays() -> None:
    """While the configuration is read again, the one before it would take what it accepted with it."""

    class Node:
        async def accept_inventory(self) -> dict[str, Any]:
            return {"by": self}

    async def body() -> None:
        service = object.__new__(Daemon)
        service._changing = asyncio.Lock()
        old, new = Node(), Node()
        service.engine = old  # type: ignore[assignment]  # what it is asked
        async with service._changing:
            accepted = asyncio.create_task(service._control_accept())
            await asyncio.sleep(0)
            service.engine = new  # type: ignore[assignment]  # likewise
        assert await accepted == {"by": new}

    asyncio.run(body())
