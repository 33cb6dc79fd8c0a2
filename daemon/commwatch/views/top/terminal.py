"""The terminal of ``commwatch top``: rich draws on a screen of its own; keys come without echo; all is given back."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import termios
import tty
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from rich.console import Console, Group
from rich.text import Text

from commwatch.lines import Line

Key: TypeAlias = Literal["up", "down", "page_up", "page_down", "home", "end", "quit", "pause", "help", "back", "redraw"]

_FALLBACK_SIZE: Final = (80, 24)
_IFLAG: Final = 0


def can_be_drawn_on() -> bool:
    """Whether the terminal can move its cursor: False if TERM is empty, dumb or unknown."""
    return os.environ.get("TERM", "") not in ("", "dumb", "unknown")


class Terminal:
    """Standard input and output while ``top`` draws."""

    def __init__(self) -> None:
        # https://no-color.org: then without any style, since no meaning depends on one.
        plain = bool(os.environ.get("NO_COLOR"))
        self._console = Console(color_system=None if plain else "auto", force_terminal=True)
        self._out = sys.stdout.fileno()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a sign that the encoding lacks still takes one column
        self.keyboard: int | None = sys.stdin.fileno() if sys.stdin.isatty() else None
        """Where keys come from; None where standard input is no terminal."""
        self._modes: list[Any] | None = None
        self._typed = b""
        self._drawn: object = None

    def enter(self) -> None:
        """Take the terminal over."""
        if self.keyboard is not None:
            self._modes = termios.tcgetattr(self.keyboard)
            tty.setcbreak(self.keyboard)  # signals of the keyboard stay signals
            own = termios.tcgetattr(self.keyboard)
            own[_IFLAG] &= ~termios.IXON  # Ctrl-S would stop our writing, and with it everything
            termios.tcsetattr(self.keyboard, termios.TCSANOW, own)
        self._drawn = None
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def leave(self) -> None:
        """Give it back as it was."""
        try:
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
        except OSError:
            # It is gone, and so is whoever would see it: what is still buffered must not end us with a code of its own.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._out)
        if self.keyboard is not None and self._modes is not None:
            with contextlib.suppress(termios.error):
                # Unread keys were typed for us, not for the shell.
                termios.tcsetattr(self.keyboard, termios.TCSAFLUSH, self._modes)

    @property
    def size(self) -> tuple[int, int]:
        """Current columns and rows, whatever COLUMNS is: a window changes its size."""
        try:
            columns, rows = os.get_terminal_size(self._out)
        except OSError:
            return _FALLBACK_SIZE
        return columns or _FALLBACK_SIZE[0], rows or _FALLBACK_SIZE[1]

    def draw(self, lines: Sequence[Line], *, again: bool = False) -> None:
        """Show lines, one for each row; nothing is written where the same is there already.

        Args:
            again: whatever is there may be of something else.

        Raises:
            OSError: the terminal is gone.
        """
        size = self.size
        if again or self._drawn != (size, lines):
            texts = [Text.assemble(*line, no_wrap=True, overflow="crop") for line in lines]
            self._console.update_screen(Group(*texts), options=self._console.options.update_dimensions(*size))
            self._drawn = (size, lines)

    def read_keys(self) -> list[Key] | None:
        """The keys that were pressed; None if the terminal is gone."""
        try:
            data = os.read(self.keyboard, 1024) if self.keyboard is not None else b""
        except OSError:
            data = b""
        if not data:
            return None
        pressed, self._typed = keys(self._typed + data)
        return pressed


_PLAIN: dict[bytes, Key] = {
    b"q": "quit", b"Q": "quit", b"j": "down", b"k": "up", b" ": "page_down", b"b": "page_up", b"g": "home",
    b"G": "end", b"p": "pause", b"?": "help", b"h": "help", b"\x0c": "redraw",
}  # fmt: skip
_SEQUENCES: dict[bytes, Key] = {
    b"A": "up", b"B": "down", b"H": "home", b"F": "end", b"1~": "home", b"7~": "home", b"4~": "end", b"8~": "end",
    b"5~": "page_up", b"6~": "page_down",
}  # fmt: skip
_TOKEN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\[[ -?]*(?=[^ -~])|\x1bO.|\x1b(?=\x1b)|\x1b[^\[O\x1b]|[^\x1b]", re.DOTALL
)
"""A control sequence (ECMA-48), one that breaks off, a key of the keypad's application mode, a lone escape, a key with
Alt, a sign."""
_ESCAPE = b"\x1b"
_LONGEST = 32
"""Bytes of a sequence that is not finished yet; what is longer is none."""


def keys(data: bytes) -> tuple[list[Key], bytes]:
    """The keys that have a meaning, and the beginning of an incomplete sequence."""
    found: list[Key] = []
    place = 0
    while token := _TOKEN.match(data, place):
        place = token.end()
        text = token[0]
        key = _SEQUENCES.get(text[2:]) if len(text) > 2 else _PLAIN.get(text)
        if key is not None:
            found.append(key)
    rest = data[place:]
    if rest == _ESCAPE:  # that key: terminals send the whole of a sequence at once
        return [*found, "back"], b""
    return found, rest if len(rest) <= _LONGEST else b""
