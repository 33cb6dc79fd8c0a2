"""Text for a terminal as lines of styled segments, so that what is printed is made without knowing where it goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

Segment: TypeAlias = tuple[str, str]
"""A text and its style as rich names it; empty for plain."""
Line: TypeAlias = list[Segment]

WIDTH = 80
HEADING = "bold"


def plain(line: Line) -> str:
    """A line without styles."""
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
