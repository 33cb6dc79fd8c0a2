"""A terminal of the kind of the VT220, as far as commwatch top uses one: it keeps what a user would see."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[(?P<given>[?0-9;]*)(?P<final>[@-~])|(?P<sign>[^\x1b])", re.DOTALL)
_LONGEST = 16
"""Signs of a sequence."""


class Emulator:
    """Screens, cursor and modes; a sequence that it does not know is an error of the test or of the program."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.is_alternate = False
        self.shows_cursor = True
        self.is_styled = False
        """Whether a style was begun and not ended."""
        self._kept: list[list[str]] = []
        self._rest = ""
        self._clear()

    def resize(self, columns: int, rows: int) -> None:
        """As a window manager does; what was there is gone, for programs draw it again."""
        self.columns, self.rows = columns, rows
        self._clear()

    @property
    def lines(self) -> list[str]:
        """What each row shows, without blanks at its end."""
        return ["".join(row).rstrip() for row in self._cells]

    def feed(self, text: str) -> None:
        """Take in what the program wrote."""
        text, place = self._rest + text, 0
        while token := _TOKEN.match(text, place):
            place = token.end()
            if token["sign"] is not None:
                self._write(token["sign"])
            else:
                self._obey(token["final"], token["given"])
        self._rest = text[place:]
        assert len(self._rest) < _LONGEST, f"no sequence of this terminal: {self._rest[:_LONGEST]!r}"

    def _clear(self) -> None:
        self._cells = [[" "] * self.columns for _ in range(self.rows)]
        self._row = self._column = 0

    def _write(self, sign: str) -> None:
        if sign == "\r":
            self._column = 0
        elif sign == "\n":
            self._feed_line()
        else:
            assert sign.isprintable(), f"no sign to be shown: {sign!r}"
            if self._column == self.columns:  # only the sign after the last column begins the next line
                self._column = 0
                self._feed_line()
            self._cells[self._row][self._column] = sign
            self._column += 1

    def _feed_line(self) -> None:
        if self._row == self.rows - 1:
            self._cells = [*self._cells[1:], [" "] * self.columns]
        else:
            self._row += 1

    def _obey(self, final: str, given: str) -> None:
        if final == "m":
            self.is_styled = given not in ("", "0")
        elif final == "H":
            row, _, column = given.partition(";")
            self._row = min(int(row or 1), self.rows) - 1
            self._column = min(int(column or 1), self.columns) - 1
        elif final == "K" and given in ("", "0"):
            begin = min(self._column, self.columns - 1)  # the cursor stands on the last column once that is written
            self._cells[self._row][begin:] = [" "] * (self.columns - begin)
        elif given == "?25":
            self.shows_cursor = final == "h"
        elif given == "?1049":
            if final == "h" and not self.is_alternate:
                self._kept = self._cells
                self._clear()
            elif final == "l" and self.is_alternate:
                self._cells = self._kept
            self.is_alternate = final == "h"
        else:
            raise AssertionError(f"no sequence of this terminal: CSI {given}{final}")
