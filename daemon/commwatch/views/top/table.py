"""Tables of a screen: as wide as their cells, folded where the screen is narrower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.lines import Line, Segment, fitted_widths, row_lines
from commwatch.views.top.words import DIM, HEADING


def section(title: str, remark: str = "") -> Iterator[Line]:
    """An empty line and a heading."""
    yield []
    yield [(title, HEADING), (f"  {remark}" if remark else "", DIM)]


def table(heads: Sequence[str], rows: Sequence[Sequence[Segment]], width: int) -> Iterator[Line]:
    """A table below its headings, one for each column, for a screen of this width."""
    cells: list[list[Segment]] = [[(head, DIM) for head in heads], *map(list, rows)]
    widths = fitted_widths(cells, width, [width] * len(heads))
    for row in cells:
        yield from row_lines(row, widths)
