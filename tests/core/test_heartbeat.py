"""The heartbeat of the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commwatch.config.settings import Config
from commwatch.node.starvation import Starvation
from commwatch.service import root
from commwatch.service.root import (
    BEAT_PATIENCE_SECONDS,
    HEARTBEAT_SECONDS,
    LOOK_SECONDS,
    PROGRESS_PATIENCE_SECONDS,
    Service,
)
from commwatch.service.timetable import Timetable
from support.core import Clock


class _TimeoutOfPython310(Exception):
    """There ``asyncio.TimeoutError`` is not the built-in one."""


class _Enough(Exception):
    pass


class _Beating(Service):
    """Of a daemon only the heart."""

    def __init__(self) -> None:
        self._config = Config()
        self._reload = asyncio.Event()
        self._starvation = Starvation(Path("/nonexistent"))
        self.beats = 0

    async def _beat(self) -> None:
        self.beats += 1
        if self.beats == 3:
            raise _Enough


def test_it_beats_again_when_its_time_has_come_on_python_3_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it no configuration is read again, no maintenance is seen, and systemd's watchdog ends the daemon."""

    async def nothing_came(waited_for: Any, timeout: float) -> None:
        waited_for.close()
        raise _TimeoutOfPython310

    monkeypatch.setattr(asyncio, "TimeoutError", _TimeoutOfPython310)
    monkeypatch.setattr(asyncio, "wait_for", nothing_came)

    async def body() -> None:
        service = _Beating()
        with pytest.raises(_Enough):
            await service._live()
        assert service.beats == 3

    asyncio.run(body())


def test_the_node_is_judged_at_its_own_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat comes some milliseconds after its time, now more and now less: no look is left for the next beat."""
    clock, looks = Clock(), list[float]()
    monkeypatch.setattr(root, "time", clock)
    service = SimpleNamespace(
        _instruments_due=0.0,
        _instruments=SimpleNamespace(measure_processes=lambda *_: None, show_starvation=lambda _: None),
        _starvation=None,
        _engine=SimpleNamespace(processes=list, refresh=list, look=lambda: looks.append(clock.now // 1)),
        _config=Config(),
        _notifier=SimpleNamespace(status=lambda _: None),
        _show_healthchecks=list,
        _status_line=str,
        snapshot=list,
    )
    for number in range(8):
        clock.now = 1000.0 + number * HEARTBEAT_SECONDS + 0.01 / (1 + number)
        Service._refresh_instruments(service)  # type: ignore[arg-type]

    assert looks == [1000.0 + number * LOOK_SECONDS for number in range(4)]


class _Fed(Service):
    """Of a daemon what feeds the watchdog, and a heartbeat that does what the test says."""

    def __init__(self, clock: Clock) -> None:
        self._scheduler = Timetable(missed=lambda job: None, monotonic=clock.monotonic)
        self._whole_beat_at = clock.now
        self.fed = 0
        self.release = asyncio.Event()
        self.defect = False
        self._notifier: Any = SimpleNamespace(watchdog=self._count)

    def _count(self) -> None:
        self.fed += 1

    async def _beat_once(self) -> None:
        if self.defect:
            raise ZeroDivisionError
        await self.release.wait()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of the daemon; a pause of a task moves it and takes no time."""
    one, pause = Clock(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        one.now += seconds
        await pause(0)

    monkeypatch.setattr(root, "time", one)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return one


async def fed_within(service: _Fed, clock: Clock, seconds: float) -> int:
    """How often the watchdog is fed in so many seconds."""
    before, end = service.fed, clock.now + seconds
    task = asyncio.create_task(service._feed_watchdog())
    while clock.now < end:
        await asyncio.sleep(0)
    task.cancel()
    return service.fed - before


def test_the_watchdog_is_fed_while_a_heartbeat_waits_for_readers(clock: Clock) -> None:
    """At its own interval; but a heartbeat that waits for ever is no life."""

    async def body() -> None:
        service = _Fed(clock)
        beat = asyncio.create_task(service._beat())
        seconds = BEAT_PATIENCE_SECONDS
        assert await fed_within(service, clock, seconds) == pytest.approx(seconds / HEARTBEAT_SECONDS, abs=1)
        assert await fed_within(service, clock, 600.0) <= 1
        service.release.set()
        await beat
        assert await fed_within(service, clock, 30.0) >= 5

    asyncio.run(body())


def test_the_watchdog_is_not_fed_after_a_heartbeat_that_failed(clock: Clock) -> None:
    """Until one comes to its end: a defect that lasts ends in a restart."""

    async def body() -> None:
        service = _Fed(clock)
        service.release.set()
        service.defect = True
        await service._beat()
        assert await fed_within(service, clock, 60.0) == 0
        service.defect = False
        await service._beat()
        assert await fed_within(service, clock, 10.0) >= 1

    asyncio.run(body())


def test_the_watchdog_is_not_fed_where_the_timetable_is_dead(clock: Clock) -> None:
    """A job is due and nobody gives it its turn, while heartbeats go on."""

    async def nothing() -> None:
        return

    async def body() -> None:
        service = _Fed(clock)
        service._scheduler.add("job", nothing, 5.0, delay=0.0)  # never started
        assert await fed_within(service, clock, PROGRESS_PATIENCE_SECONDS) >= 3
        service._whole_beat_at = clock.now
        assert await fed_within(service, clock, 60.0) <= 1

    asyncio.run(body())


def test_an_inventory_is_accepted_by_the_engine_that_stays() -> None:
    """While the configuration is read again, the one before it would take what it accepted with it."""

    class Node:
        async def accept_inventory(self) -> dict[str, Any]:
            return {"by": self}

    async def body() -> None:
        service = object.__new__(Service)
        service._changing = asyncio.Lock()
        old, new = Node(), Node()
        service._engine = old  # type: ignore[assignment]  # what it is asked
        async with service._changing:
            accepted = asyncio.create_task(service._control_accept())
            await asyncio.sleep(0)
            service._engine = new  # type: ignore[assignment]  # likewise
        assert await accepted == {"by": new}

    asyncio.run(body())
