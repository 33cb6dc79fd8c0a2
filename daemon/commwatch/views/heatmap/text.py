"""A pair matrix as text: coloured cells on a terminal, numbers with marks in a pipe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from textwrap import wrap

from commwatch.lines import HEADING, WIDTH, Line, Segment
from commwatch.views.heatmap.colours import Colour, colour, ink
from commwatch.views.heatmap.grid import View, legend, scale_steps, summary

_SCALE_STEPS = 24


def heatmap_lines(view: View, *, coloured: bool, width: int | None = None) -> Iterator[Line]:
    """The picture as lines.

    Args:
        coloured: styles will be seen: then the scale of the colours is shown too.
        width: columns of the terminal, over which a large matrix is cut into blocks; None where nothing limits it.
    """
    folded = min(WIDTH, width or WIDTH)
    if view.simulated:
        yield [(f"Simulated node {view.simulated}: none of this is real.", "")]
        yield []
    yield from ([(text, HEADING)] for text in wrap(view.title, folded))
    yield from ([(text, "")] for text in wrap("; ".join(view.facts), folded))
    yield [("Row sends, column receives.", "")]
    yield []
    yield from _matrix(view, width)
    yield []
    yield from ([(one, "")] for one in wrap(summary(view), folded))
    if coloured and view.numbers:
        yield _scale(view)
    yield from ([(one, "")] for one in legend(view))
    if view.notes:
        yield []
    for note in view.notes:
        yield from _hanging(note, folded)


def _matrix(view: View, limit: int | None) -> Iterator[Line]:
    """All columns, or where they do not fit the limit, as many as fit, then the next ones below."""
    names, count = view.names, len(view.names)
    cells = [[view.text((row, column)) for column in range(count)] for row in range(count)]
    number_width = max((len(cell) for row in cells for cell in row), default=1)
    mark_width = 1 if view.marks else 0
    width = max(number_width + mark_width, *map(len, names))
    left = max(map(len, names))
    # A space before each cell and, where that fits, one within its colour on either side.
    padding = 1 if left + count * (width + 3) <= min(WIDTH, limit or WIDTH) else 0
    most = count if limit is None else max(1, (limit - left) // (width + 1 + 2 * padding))
    step = math.ceil(count / math.ceil(count / most)) if count else 1  # blocks of the same width
    for first in range(0, count, step):
        block = range(first, min(first + step, count))
        if first:
            yield []
        head: Line = [(" " * left, "")]
        head += [(f" {names[column]:>{width + 2 * padding}}", HEADING) for column in block]
        yield head
        for row in range(count):
            line: Line = [(names[row].ljust(left), HEADING)]
            for column in block:
                mark = view.marks.get((row, column), "")
                text = f"{cells[row][column]}{mark:<{mark_width}}"
                line += [(" ", ""), (f"{text:>{width + padding}}{' ' * padding}", _style(view, (row, column)))]
            yield line


def _style(view: View, pair: tuple[int, int]) -> str:
    number = view.numbers.get(pair)
    if number is None:
        return "dim"
    ground = colour(view.brightness(number))
    weight = "bold " if pair in view.marks else ""
    return f"{weight}{_rgb(ink(ground))} on {_rgb(ground)}"


def _rgb(shade: Colour) -> str:
    return f"rgb({shade[0]},{shade[1]},{shade[2]})"


def _scale(view: View) -> Line:
    grounds = [colour(view.brightness(step)) for step in scale_steps(view, _SCALE_STEPS)]
    swatch: list[Segment] = [(" ", f"on {_rgb(ground)}") for ground in grounds]
    kind = ", logarithmic" if view.logarithmic else ""
    ends = f" {view.with_unit(view.high)}{kind}; darker is slower"
    return [("Colours: ", ""), (f"{view.with_unit(view.low)} ", ""), *swatch, (ends, "")]


def _hanging(note: str, folded: int) -> Iterator[Line]:
    """A note behind its mark, folded."""
    mark, gap, text = note.partition("  ")
    indent = len(mark) + len(gap)
    for place, one in enumerate(wrap(text, folded - indent)):
        yield [((mark + gap) if place == 0 else " " * indent, HEADING), (one, "")]
