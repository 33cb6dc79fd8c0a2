"""The loop of ``commwatch top``: asks the daemon at an interval, obeys keys and signals, and draws."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from commwatch.config.thresholds import Thresholds
from commwatch.errors import CommwatchError
from commwatch.views.top.daemon import Refused, Source
from commwatch.views.top.frame import Documents, View
from commwatch.views.top.screen import Place, screen
from commwatch.views.top.terminal import Key, Terminal

_PAST_SECONDS = 0.01
"""Delay of each drawing after a whole second: a timer may come a moment early."""
_CLOCK_SECONDS = 1.0
"""An answer that was under way this much longer than another one does not move the displayed clock, which would
otherwise stop or go back for a second."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Looking:
    """All answers so far, as a view."""

    def __init__(self, source: str, thresholds: Thresholds, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.view = View(source, thresholds)
        self._monotonic = monotonic
        self._answered_at = monotonic()
        self._ahead: float | None = None
        """Seconds between the daemon's clock and ``monotonic``; None before the first answer."""

    def answered(self, documents: Documents) -> None:
        self._answered_at = self._monotonic()
        ahead = documents.snapshot.time - self._answered_at
        if self._ahead is None or abs(ahead - self._ahead) >= _CLOCK_SECONDS:
            self._ahead = ahead
        first = self.view.first or documents.snapshot
        self.view = replace(self.view, documents=documents, first=first, trouble="")

    def failed(self, error: CommwatchError) -> None:
        """Take note that there was none; what was answered before stays."""
        self.view = replace(self.view, trouble=str(error))

    def moment(self) -> tuple[View, float]:
        """The view of now, and the time by the daemon's clock, in seconds since 1970."""
        passed = self._monotonic() - self._answered_at
        now = time.time() if self._ahead is None else self._ahead + self._monotonic()
        return replace(self.view, trouble_seconds=passed), now


class Live:
    """One session in a terminal."""

    def __init__(self, source: Source, thresholds: Thresholds, terminal: Terminal, interval: float) -> None:
        self._source = source
        self._terminal = terminal
        self._interval = interval
        self._looking = Looking(source.name, thresholds)
        self._place = Place()
        self._page = 1
        self._paused_moment: tuple[View, float] | None = None
        self._is_asking = False
        self._ask_due = 0.0
        self._ending: asyncio.Future[int]
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> int:
        """Until someone ends it.

        Returns:
            The exit code: 0 after ``q``, 128 and the signal's number after a signal.

        Raises:
            Refused: the daemon does not want to talk to us.
        """
        self._loop = asyncio.get_running_loop()
        self._ending = self._loop.create_future()
        self._loop.set_exception_handler(
            lambda _, context: self._break_off(context.get("exception", RuntimeError(context)))
        )
        for number in _ENDING:
            self._loop.add_signal_handler(number, self._end, 128 + number)
        self._loop.add_signal_handler(signal.SIGWINCH, self._draw, True)
        self._loop.add_signal_handler(signal.SIGTSTP, self._step_aside)
        try:
            self._terminal.enter()  # only now: a signal before would end us without a way back
            if self._terminal.keyboard is not None:
                self._loop.add_reader(self._terminal.keyboard, self._read_keys)
            self._tick()
            return await self._ending
        finally:
            self._terminal.leave()

    def _end(self, code: int) -> None:
        if not self._ending.done():
            self._ending.set_result(code)

    def _break_off(self, error: Exception) -> None:
        if not self._ending.done():
            self._ending.set_exception(error)

    # --- asking ---

    def _tick(self) -> None:
        now = self._loop.time()
        if now >= self._ask_due and not self._is_asking and not self._place.is_paused:
            self._is_asking = True
            self._ask_due = now + self._interval
            # A daemon thread: the end must not wait for a commwatch daemon that does not answer.
            threading.Thread(target=self._ask, name="ask", daemon=True).start()
        self._draw()
        # At the next whole second of the clock that is shown: drawn each second from now it would skip one at times.
        redraw = 1.0 - self._looking.moment()[1] % 1.0 + _PAST_SECONDS
        left = self._ask_due - now
        self._loop.call_later(left if 0 < left < redraw else redraw, self._tick)

    def _ask(self) -> None:
        """In the thread."""
        answer: Documents | Exception
        try:
            answer = self._source.ask()
        except Exception as error:
            answer = error  # a defect of ours is raised where someone sees it
        with contextlib.suppress(RuntimeError):  # the session is over
            self._loop.call_soon_threadsafe(self._take, answer)

    def _take(self, answer: Documents | Exception) -> None:
        self._is_asking = False
        if isinstance(answer, Documents):
            self._looking.answered(answer)
        elif isinstance(answer, CommwatchError) and not isinstance(answer, Refused):
            self._looking.failed(answer)
        else:
            self._break_off(answer)
        self._draw()

    # --- the terminal ---

    def _draw(self, again: bool = False) -> None:
        view, now = self._paused_moment or self._looking.moment()
        shown = screen(view, self._place, self._terminal.size, now)
        self._place, self._page = replace(self._place, offset=shown.offset), shown.page
        try:
            self._terminal.draw(shown.lines, again=again)
        except OSError:
            self._end(128 + signal.SIGHUP)  # the terminal is gone

    def _step_aside(self) -> None:
        """Ctrl-Z: the shell gets its terminal as it was; ``fg`` continues us."""
        self._terminal.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._terminal.enter()
        self._draw(True)

    def _read_keys(self) -> None:
        pressed = self._terminal.read_keys()
        if pressed is None:
            self._end(128 + signal.SIGHUP)
            return
        for key in pressed:
            self._obey(key)
        self._draw()

    def _obey(self, key: Key) -> None:
        place = self._place
        if key == "quit":
            self._end(0)
        elif key == "redraw":
            self._draw(True)
        elif key == "help":
            self._place = replace(place, shows_help=not place.shows_help, offset=0)
        elif key == "back":
            self._place = replace(place, shows_help=False)
        elif key == "pause":
            self._paused_moment = None if place.is_paused else self._looking.moment()
            self._place = replace(place, is_paused=not place.is_paused)
        else:
            moves = {"up": -1, "down": 1, "page_up": -self._page, "page_down": self._page}
            far = {"home": 0, "end": 10**9}
            offset = far[key] if key in far else place.offset + moves[key]
            self._place = replace(place, offset=max(0, offset))


def run_live(source: Source, thresholds: Thresholds, interval: float) -> int:
    """Draw until someone ends it; the terminal is as it was afterwards, however it ends.

    Raises:
        Refused: the daemon does not want to talk to us.
    """
    return asyncio.run(Live(source, thresholds, Terminal(), interval).run())


def run_plain(source: Source, thresholds: Thresholds, interval: float, write: Callable[[View, float], None]) -> None:
    """One page after the other, for a terminal that cannot be drawn on; ends with KeyboardInterrupt.

    Raises:
        Refused: the daemon does not want to talk to us.
    """
    looking = Looking(source.name, thresholds)
    while True:
        try:
            looking.answered(source.ask())
        except Refused:
            raise
        except CommwatchError as error:
            looking.failed(error)
        write(*looking.moment())
        time.sleep(interval)
