"""Ctrl-C, SIGTERM and SIGHUP: noted at once, heeded where nothing is half started, so that nothing is left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_asked: list[int] = []


@contextmanager
def heeded_signals() -> Iterator[None]:
    """Within it the signals raise nothing; ``pause`` ends what waits."""

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        _asked.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked.clear()


def pause(seconds: float) -> None:
    """Sleep.

    Raises:
        SystemExit: a signal has come; its code is 128 and the number of the signal, as shells have it.
    """
    time.sleep(seconds)
    if _asked:
        raise SystemExit(128 + _asked[0])
