"""The heartbeat of the daemon."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from commwatch.config.settings import Config
from commwatch.service import root
from commwatch.service.root import HEARTBEAT_SECONDS, LOOK_SECONDS, Service
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
        _instruments=SimpleNamespace(measure_processes=lambda *_: None),
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
