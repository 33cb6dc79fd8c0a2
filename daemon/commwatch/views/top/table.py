"""Tables of a screen: as wide as their cells, folded where the screen is narrower."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from commwatch.lines import Line, Segment, fitted_widths, row_lines
from commwatch.views.top.words import DIM, HEADING


def section(title: str, remark: str = "") -> Iterator[Line]:
    """An empty line and a heading."""
    yield []
    yield [(title, HEADING), (f"  {remark}" if remark else "", DIM)]


def table(
    heads: Sequence[str], rows: Sequence[Sequence[Segment]], width: int, *, right: Collection[int] = ()
) -> Iterator[Line]:
    """A table below its headings.

    Args:
        heads: one for each column.
        rows: the cells.
        width: of the screen.
        right: places of the columns that are aligned to the right.
    """
    cells: list[list[Segment]] = [[(head, DIM) for head in heads], *map(list, rows)]
    for place in right:
        widest = max(len(row[place][0]) for row in cells)
        for row in cells:
            text, style = row[place]
            row[place] = (text.rjust(widest), style)
    widths = fitted_widths(cells, width, [width] * len(heads))
    for row in cells:
        yield from row_lines(row, widths)
