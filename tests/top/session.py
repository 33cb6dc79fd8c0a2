"""commwatch top on a real terminal, and a daemon's end of the control socket that a test can switch off."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import msgspec

from commwatch.views.top.frame import Documents
from support.answering import answering as answering_with
from support.daemon import environment
from support.waiting import until, words
from top.emulator import Emulator

_OWN = ("NO_COLOR", "COLUMNS", "LINES", "PYTHONUNBUFFERED")
"""Variables that would change what is drawn, or how."""


class Session:
    """A running ``commwatch top`` and its terminal."""

    def __init__(self, columns: int, rows: int, *arguments: str, **extra: str) -> None:
        self._master, self._slave = pty.openpty()
        self.seen = Emulator(columns, rows)
        """What the user sees."""
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(self._slave)
        """Of the terminal before it was started."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.written = ""
        """All that it wrote."""
        kept = {name: value for name, value in environment().items() if name not in _OWN}
        # The first terminal that the leader of a session opens is the one whose keys send it signals.
        shell = ["sh", "-c", 'exec "$@" <>"$0" >&0 2>&0', os.ttyname(self._slave)]
        # A shell that runs the tests in the background has them ignore Ctrl-C, and so all that they start.
        listening = ["env", "--default-signal=INT,QUIT"]
        self.process = subprocess.Popen(
            [*shell, *listening, sys.executable, "-m", "commwatch", "top", *arguments],
            start_new_session=True,
            env={**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **extra},
        )

    def resize(self, columns: int, rows: int) -> None:
        """As a window manager does; the kernel tells the program."""
        self.seen.resize(columns, rows)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    def vanish(self) -> None:
        """As the window of a terminal that is closed."""
        os.close(self._master)

    def read(self, seconds: float = 0.05) -> None:
        """Take in what it wrote meanwhile."""
        while select.select([self._master], [], [], seconds)[0]:
            text = self._decoder.decode(os.read(self._master, 65536))
            self.written += text
            self.seen.feed(text)
            seconds = 0.0

    def until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """The first screen of which something holds."""

        def holds() -> bool:
            self.read()
            return self.seen.is_alternate and condition(self.seen.lines)

        until(holds, every=0.0, describe=lambda: f"{words(condition)}\n{self.written[-4000:]}")
        return self.seen.lines

    def shows(self, text: str) -> list[str]:
        """The first screen with a text."""
        return self.until(lambda lines: any(text in line for line in lines))

    def end(self) -> int:
        """Wait for its end; what it wrote is read, for a terminal that nobody reads stops a program."""
        until(self.has_ended, every=0.0, describe=lambda: self.written[-4000:])
        self.read()
        return self.process.returncode

    def has_ended(self) -> bool:
        """Whether it has; what it wrote until now is read."""
        ended = self.process.poll() is not None
        self.read()
        return ended

    @property
    def is_restored(self) -> bool:
        """Whether the terminal is as it was: its modes, its cursor, the screen of the shell."""
        seen = self.seen
        is_back = seen.shows_cursor and not seen.is_alternate and not seen.is_styled
        return is_back and termios.tcgetattr(self._slave) == self.modes

    def close(self) -> None:
        """End it whatever it does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for descriptor in (self._master, self._slave):
            with suppress(OSError):  # it has vanished
                os.close(descriptor)


@contextmanager
def session(columns: int, rows: int, *arguments: str, **extra: str) -> Iterator[Session]:
    """A session that is gone afterwards.

    Args:
        columns: of the terminal.
        rows: of the terminal.
        arguments: of ``commwatch top``.
        extra: further environment variables.
    """
    one = Session(columns, rows, *arguments, **extra)
    try:
        yield one
    finally:
        one.close()


def answering(state: Path, said: Documents) -> AbstractContextManager[list[str]]:
    """A daemon's end of the control socket that says these documents, at the time of each answer."""

    def at_its_time(document: msgspec.Struct) -> Callable[[], msgspec.Struct]:
        return lambda: msgspec.structs.replace(document, time=time.time())

    given = {"findings": said.findings, "probes": said.probes, "snapshot": said.snapshot}
    return answering_with(state, {name: at_its_time(one) for name, one in given.items()})
