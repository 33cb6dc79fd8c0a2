"""A pair matrix as SVG, for a file and within a page: text stays text, no script, light and dark; pure."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from commwatch.probes.rounds import Pair
from commwatch.views.heatmap.colours import colour, css, ink
from commwatch.views.heatmap.grid import LOW, View, legend, scale_steps, scale_ticks, summary
from commwatch.views.svg import BLANK, BOLD_LETTER, FADED, LETTER, LINE, MARGIN, escaped, picture, write

_LEAST_WIDTH = 440
_CELLS = ((16, 44, 12), (32, 34, 10), (64, 18, 0))
"""Up to this number of ends: side of a cell and height of its number in pixels; 0 where no number would be legible."""
_LONGEST_NAME = 16
_SCALE_STEPS = 48
_SCALE_WIDTH = 320

_FRAME = "#d55e00"
"""Vermilion of Okabe and Ito: seen by all, and on every cell colour within a white line."""


def matrix_svg(view: View) -> str:
    """The picture, with what its marks mean; the same for the same matrix."""
    return _Picture(view).svg()


class _Picture:
    """Title and facts, the matrix, the colour scale, and the notes, from the top."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.count = len(view.names)
        self.cell, self.digits = next((size for most, *size in _CELLS if self.count <= most), _CELLS[-1][1:])
        self.names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in view.names]
        self.label = min(12, self.cell - 6)
        self.name_width = LETTER * self.label * max(map(len, self.names), default=0)
        self.left = MARGIN + self.name_width + 6
        self.width = max(_LEAST_WIDTH, round(self.left + self.count * self.cell + MARGIN))
        self.y = float(MARGIN)

    def svg(self) -> str:
        view, body = self.view, "".join(self._parts())
        words = " ".join([f"{'; '.join(view.facts)}. {summary(view)}", *view.notes, *legend(view)])
        height = round(self.y + MARGIN)
        return picture("pair-matrix", self.width, height, view.title, words, body)

    def _parts(self) -> Iterator[str]:
        view = self.view
        yield from self._lines(view.title, size=16, bold=True)
        if view.simulated:
            yield from self._lines(f"Simulated node {view.simulated}: none of this is real.", bold=True)
        for fact in (*view.facts, "Row sends, column receives."):
            yield from self._lines(fact, shade="faded")
        yield from self._matrix()
        if view.numbers:
            yield from self._scale()
        self.y += 6
        yield from self._lines(summary(view))
        for note in (*view.notes, *legend(view)):
            mark, _, words = note.partition("  ")
            yield write(MARGIN, self.y + 12, mark, bold=True)
            yield from self._lines(words, indent=18)

    def _lines(
        self, text: str, *, size: int = 12, bold: bool = False, shade: str = "ink", indent: int = 0
    ) -> Iterator[str]:
        """A text folded to the width."""
        columns = (self.width - 2 * MARGIN - indent) / (size * (BOLD_LETTER if bold else LETTER))
        for line in wrap(text, int(columns), break_on_hyphens=False):
            yield write(MARGIN + indent, self.y + size, line, size=size, bold=bold, shade=shade)
            self.y += LINE * size / 12

    def _matrix(self) -> Iterator[str]:
        upright = self.name_width < self.cell - 2
        self.y += 14 + (self.label if upright else self.name_width)
        for place, name in enumerate(self.names):
            x, y = self.left + self.cell * (place + 0.5), self.y + self.cell * (place + 0.5) + 0.35 * self.label
            yield write(self.left - 6, y, name, size=self.label, anchor="end")
            if upright:
                yield write(x, self.y - 5, name, size=self.label, anchor="middle")
            else:
                yield write(x + 0.35 * self.label, self.y - 5, name, size=self.label, upwards=True)
        for row in range(self.count):
            for column in range(self.count):
                yield from self._cell((row, column))
        self.y += self.count * self.cell + 12

    def _cell(self, pair: Pair) -> Iterator[str]:
        """Colour and number; where there is no room for it the number is in a title, which a pointer shows."""
        view, mark = self.view, self.view.marks.get(pair, "")
        x, y, side = self.left + self.cell * pair[1], self.y + self.cell * pair[0], self.cell - 2
        number, text = view.numbers.get(pair), view.text(pair)
        ground = None if number is None else colour(view.brightness(number))
        fill = f'class="blank" fill="{BLANK}"' if ground is None else f'fill="{css(ground)}"'
        box = f'x="{x + 1:g}" y="{y + 1:g}" width="{side}" height="{side}" rx="{3 if self.digits else 1}"'
        if self.digits or not text:
            yield f"<rect {box} {fill}/>"
        else:
            title = f"{view.names[pair[0]]} to {view.names[pair[1]]}: {text} {mark}".rstrip()
            yield f"<rect {box} {fill}><title>{escaped(title)}</title></rect>"
        if mark:
            dashes = ' stroke-dasharray="4 2"' if mark == LOW else ""
            inner = f'x="{x + 2.5:g}" y="{y + 2.5:g}" width="{side - 3}" height="{side - 3}" rx="2" fill="none"'
            white, line = (3.2, 1.8) if self.digits else (2.2, 1.2)
            yield f'<rect {inner} stroke="#fff" stroke-width="{white}"/>'
            yield f'<rect class="mark" {inner} stroke="{_FRAME}" stroke-width="{line}"{dashes}/>'
        shade = css(ink(ground)) if ground else ""
        middle = x + self.cell / 2
        if mark and self.digits:
            yield write(x + 7, y + 14, mark, size=10, bold=True, fill=shade)
            yield write(middle, y + self.cell / 2 + 9, text, size=self.digits, anchor="middle", fill=shade)
        elif text and (mark or self.digits or ground is None):
            size = self.digits or 10
            y += self.cell / 2 + 0.35 * size
            yield write(middle, y, text if self.digits else mark or text, size=size, anchor="middle", fill=shade)

    def _scale(self) -> Iterator[str]:
        view, step = self.view, _SCALE_WIDTH / _SCALE_STEPS
        yield '<g shape-rendering="crispEdges">'
        for place, number in enumerate(scale_steps(view, _SCALE_STEPS)):
            box = f'x="{self.left + place * step:.4g}" y="{self.y:g}" width="{step + 0.4:.3g}" height="10"'
            yield f'<rect {box} fill="{css(colour(view.brightness(number)))}"/>'
        yield "</g>"
        for number, share in scale_ticks(view):
            x = self.left + share * _SCALE_WIDTH
            yield f'<path class="faded" d="M{x - 0.5:.5g} {self.y + 10:g}h1v4h-1z" fill="{FADED}"/>'
            words = f"{number:.3g}" if number < 1000 else f"{number:.0f}"
            yield write(x, self.y + 25, words, size=11, anchor="middle", shade="faded")
        kind = ", logarithmic scale" if view.logarithmic else ""
        yield write(self.left, self.y + 41, f"{view.unit}; darker is slower{kind}", size=11, shade="faded")
        self.y += 46
