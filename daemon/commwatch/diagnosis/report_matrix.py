"""A pair matrix as an HTML table: numbers on colours that are also read in grey, marks and what they mean; pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from commwatch.lines import printable
from commwatch.views.heatmap.colours import Colour, colour, ink
from commwatch.views.heatmap.grid import NO_REFERENCE, View, scale_steps

_SCALE_STEPS = 7


def matrix_html(view: View) -> str:
    """The table with its scale and its legend."""
    return "".join(_parts(view))


def _parts(view: View) -> Iterator[str]:
    title = _text(view.title)
    yield f'<section><h3>{title}</h3><p class="dim">{_text("; ".join(view.facts))}. Row sends, column receives.</p>'
    yield f'<table class="matrix" aria-label="{title}"><thead><tr><td></td>'
    yield "".join(f'<th scope="col">{_text(name)}</th>' for name in view.names)
    yield "</tr></thead><tbody>"
    for row, name in enumerate(view.names):
        cells = "".join(_cell(view, (row, column)) for column in range(len(view.names)))
        yield f'<tr><th scope="row">{_text(name)}</th>{cells}</tr>'
    yield "</tbody></table>"
    if view.numbers:
        yield _scale(view)
    for note in view.notes:
        mark, _, text = note.partition("  ")
        yield f'<p class="note"><strong>{_text(mark)}</strong> {_text(text)}</p>'
    pairs = [(row, column) for row in range(len(view.names)) for column in range(len(view.names)) if row != column]
    if any(view.text(pair) == "-" for pair in pairs):
        yield '<p class="dim">-  not measured</p>'
    if view.without_reference:
        yield f'<p class="dim">{NO_REFERENCE}  measured, but nothing is known to hold it against</p>'
    yield "</section>"


def _cell(view: View, pair: tuple[int, int]) -> str:
    number = view.numbers.get(pair)
    text = _text(view.text(pair) + view.marks.get(pair, ""))
    if number is None:
        return f'<td class="none">{text}</td>'
    ground = colour(view.brightness(number))
    marked = ' class="marked"' if pair in view.marks else ""
    return f'<td{marked} style="background:{_hex(ground)};color:{_hex(ink(ground))}">{text}</td>'


def _scale(view: View) -> str:
    """The ends of the colour scale with what lies between them."""
    shades = ",".join(_hex(colour(view.brightness(step))) for step in scale_steps(view, _SCALE_STEPS))
    kind = ", logarithmic" if view.logarithmic else ""
    return (
        f'<p class="scale"><b>{_number(view, view.low)}</b>'
        f'<span style="background:linear-gradient(90deg,{shades})"></span>'
        f"<b>{_number(view, view.high)}</b> the darker, the slower{kind}</p>"
    )


def _number(view: View, number: float) -> str:
    return _text(f"{view.figures(number)} {view.unit}")


def _hex(shade: Colour) -> str:
    return f"#{shade[0]:02x}{shade[1]:02x}{shade[2]:02x}"


def _text(text: str) -> str:
    return escape(printable(text))
