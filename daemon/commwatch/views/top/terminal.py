"""The terminal: a screen of its own, keys without echo, and all as it was before when that ends.

Only sequences that every terminal since the VT220 and its emulators know are written; so there is no database of
terminals to be missing on the node.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

from commwatch.lines import Line

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""Another screen, no cursor, no folding of what is too wide, all empty."""
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_RESET: Final = "\x1b[0m"
_CODES: Final = {
    "bold": "1", "dim": "2", "reverse": "7", "red": "31", "green": "32", "yellow": "33",
}  # fmt: skip
_FALLBACK_SIZE: Final = (80, 24)
_IFLAG: Final = 0


def can_be_drawn_on(environment: dict[str, str]) -> bool:
    """Whether the terminal can move its cursor: False if TERM is dumb or empty."""
    return environment.get("TERM", "") not in ("", "dumb")


def wants_colours(environment: dict[str, str]) -> bool:
    """False if NO_COLOR is set (https://no-color.org)."""
    return not environment.get("NO_COLOR")


class Terminal:
    """Standard input and output while ``top`` draws; a context that leaves them as they were."""

    def __init__(self, *, coloured: bool) -> None:
        self._out = sys.stdout.fileno()
        self._encoding = sys.stdout.encoding or "ascii"
        self._coloured = coloured
        self.keyboard: int | None = sys.stdin.fileno() if sys.stdin.isatty() else None
        """Where keys come from; None where standard input is no terminal."""
        self._modes: list[Any] | None = None
        self._drawn = b""

    def __enter__(self) -> Terminal:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Take the terminal over."""
        if self.keyboard is not None:
            self._modes = termios.tcgetattr(self.keyboard)
            tty.setcbreak(self.keyboard)  # signals of the keyboard stay signals
            own = termios.tcgetattr(self.keyboard)
            own[_IFLAG] &= ~termios.IXON  # Ctrl-S would stop our writing, and with it everything
            termios.tcsetattr(self.keyboard, termios.TCSANOW, own)
        self._drawn = b""
        self._write(_ENTER.encode())

    def leave(self) -> None:
        """Give it back as it was."""
        # Where it is gone, so is whoever would see it.
        with contextlib.suppress(OSError):
            self._write(_LEAVE.encode())
        if self.keyboard is not None and self._modes is not None:
            with contextlib.suppress(termios.error):
                # What was typed for us and not read is not for the shell.
                termios.tcsetattr(self.keyboard, termios.TCSAFLUSH, self._modes)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        try:
            columns, rows = os.get_terminal_size(self._out)
        except OSError:
            return _FALLBACK_SIZE
        return columns or _FALLBACK_SIZE[0], rows or _FALLBACK_SIZE[1]

    def draw(self, lines: Sequence[Line], *, whole: bool = False) -> None:
        """Show lines, one for each row; nothing is written where they stand there already.

        Args:
            lines: of the screen.
            whole: whatever stands there may be of something else.
        """
        text = "\r\n".join(f"{self._styled(line)}\x1b[K" for line in lines)
        drawn = f"\x1b[H{text}\x1b[J".encode(self._encoding, "replace")
        if whole:
            self._write(b"\x1b[2J")
        if whole or drawn != self._drawn:
            self._write(drawn)
            self._drawn = drawn

    def _styled(self, line: Line) -> str:
        return "".join(self._segment(text, style) for text, style in line)

    def _segment(self, text: str, style: str) -> str:
        if not style or not self._coloured:
            return text
        return f"\x1b[{';'.join(_CODES[word] for word in style.split())}m{text}{_RESET}"

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]
