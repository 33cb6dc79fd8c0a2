"""The heartbeat of the daemon."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from commwatch.config.settings import Config
from commwatch.service.root import Service


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
