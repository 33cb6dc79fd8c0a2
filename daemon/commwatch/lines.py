"""Text for a terminal as lines of styled segments, so that what is printed is made without knowing where it goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TypeAlias

Segment: TypeAlias = tuple[str, str]
"""A text and its style as rich names it; empty for plain."""
Line: TypeAlias = list[Segment]

WIDTH = 80
HEADING = "bold"


def plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def columns(rows: Sequence[Sequence[Segment]]) -> Iterator[Line]:
    """Aligned columns: two spaces between them where that fits the width, else one."""
    widths = [max(len(row[place][0]) for row in rows) for place in range(len(rows[0]))]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else " "
    for row in rows:
        yield [
            (text.ljust(width) + (gap if place < len(widths) - 1 else ""), style)
            for place, ((text, style), width) in enumerate(zip(row, widths, strict=True))
        ]


def folded(line: Line, width: int, indent: int = 0) -> Iterator[Line]:
    """A line broken at blanks, so that no piece is wider than ``width``; the later ones are indented.

    A word that is wider than that stays whole: it may be a path or an address to be copied.
    """
    current: Line = []
    used = 0
    for text, style in line:
        for place, word in enumerate(text.split(" ")):
            blank = 1 if place else 0
            if used + blank + len(word) > width and word and used > indent:
                yield current
                current, used = [(" " * indent + word, style)], indent + len(word)
            else:
                current.append((" " * blank + word, style))
                used += blank + len(word)
    yield current


_NARROWEST_COLUMN = 6


def fitted_widths(rows: Sequence[Sequence[Segment]], width: int, most: Sequence[int]) -> list[int]:
    """How wide each column of a table is to be: as its widest cell, the widest ones less where that is too much.

    Args:
        rows: all of the table.
        width: of the whole, with two blanks between columns.
        most: the largest width of each column.
    """
    widths = [min(limit, max(len(row[place][0]) for row in rows)) for place, limit in enumerate(most)]
    available = width - 2 * (len(widths) - 1)
    while sum(widths) > available and max(widths) > _NARROWEST_COLUMN:
        widths[widths.index(max(widths))] -= 1
    return widths


def row_lines(row: Sequence[Segment], widths: Sequence[int]) -> Iterator[Line]:
    """A row of a table as one line or, where a cell is wider than its column, as several."""
    cells = [wrap(text, width, break_on_hyphens=False) or [""] for (text, _), width in zip(row, widths, strict=True)]
    for height in range(max(map(len, cells))):
        yield [
            ((cell[height] if height < len(cell) else "").ljust(width + 2), style)
            for cell, width, (_, style) in zip(cells, widths, row, strict=True)
        ]


def printable(text: str) -> str:
    """Text without what would move a terminal's cursor or cannot be written."""
    if text.isprintable():
        return text
    # Not os.fsencode, which cannot take every sign where the locale is not of UTF-8.
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else "?" for one in readable)
