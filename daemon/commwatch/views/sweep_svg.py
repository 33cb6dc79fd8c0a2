"""The curves of a sweep as SVG: bus and algorithm bandwidth over the size of the message; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from commwatch.probes.by_hand.answer import Answer, Document
from commwatch.probes.by_hand.sweep import sweep_words
from commwatch.units import format_bytes, format_rate, format_seconds
from commwatch.views.heatmap.grid import round_step
from commwatch.views.svg import FADED, LINE, MARGIN, escaped, picture, write

_WIDTH, _HEIGHT = 720, 320
"""Of the field that the curves are drawn in."""
_LEFT = 64
_TICKS = 5
_MOST_SIZES_NAMED = 10
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
"""Of Okabe and Ito: everybody can distinguish them; one for each collective."""
_DOT = 3


class _Field(NamedTuple):
    """The axes and edges of the plot."""

    sizes: Sequence[int]
    highest: float
    """Bytes per second."""
    top: float
    """Of the field, in pixels."""

    def x(self, size: int) -> float:
        low, high = math.log(self.sizes[0]), math.log(self.sizes[-1])
        return _LEFT + (_WIDTH * (math.log(size) - low) / (high - low) if high > low else _WIDTH / 2)

    def y(self, rate: float) -> float:
        return self.top + _HEIGHT * (1 - rate / self.highest)


def sweep_svg(document: Document) -> str:
    """The picture of all collectives that gave a result."""
    answers = [one for one in document.probes if one.rows]
    title = "Bandwidth over size: " + (", ".join(f"{one.probe} ×{one.ranks}" for one in answers) or "no result")
    heads = [title]
    if document.simulated_node:
        heads.append(f"Simulated node {document.simulated_node}: none of this is real.")
    top = MARGIN + LINE * len(heads) + 24.0
    body = [write(MARGIN, MARGIN + 12 + LINE * place, head, bold=True) for place, head in enumerate(heads)]
    if answers:
        sizes = sorted({row.size_bytes for one in answers for row in one.rows})
        highest = max(rate for one in answers for _, *rates in _points(one) for rate in rates)
        field = _Field(sizes, round_step(highest) if highest > 0 else 1.0, top)
        body += _axes(field)
    below = top + _HEIGHT + 48
    for place, one in enumerate(answers):
        shade = _COLOURS[place % len(_COLOURS)]
        body += _curves(field, one, shade)
        legend = f"{one.probe} ×{one.ranks}: bus bandwidth; dashed: algorithm bandwidth"
        body.append(f'<path d="M{MARGIN} {below + LINE * place - 4:g}h24" stroke="{shade}" stroke-width="2.5"/>')
        body.append(write(MARGIN + 32, below + LINE * place, legend))
    height = round(below + LINE * len(answers) + MARGIN)
    words = ". ".join(f"{one.probe}: {sweep_words(one)}" for one in answers)
    return picture("sweep", _LEFT + _WIDTH + 2 * MARGIN, height, title, words, "".join(body))


def _points(answer: Answer) -> list[tuple[int, float, float]]:
    """Size, bus and algorithm bandwidth, bytes per second."""
    return [
        (row.size_bytes, row.bus_bandwidth_bytes_per_second or 0.0, row.algorithm_bandwidth_bytes_per_second or 0.0)
        for row in answer.rows
    ]


def _axes(field: _Field) -> Iterator[str]:
    for place in range(_TICKS + 1):
        rate = field.highest * place / _TICKS
        y = field.y(rate)
        yield f'<path d="M{_LEFT} {y:.5g}h{_WIDTH}" stroke="{FADED}" stroke-opacity="0.25"/>'
        yield write(_LEFT - 6, y + 4, f"{rate / 1e9:g}", size=11, anchor="end", shade="faded")
    yield write(_LEFT - 6, field.top - 8, "GB/s", size=11, anchor="end", shade="faded")
    apart = math.ceil(len(field.sizes) / _MOST_SIZES_NAMED)
    for size in field.sizes[::apart]:
        bottom = field.top + _HEIGHT
        yield write(field.x(size), bottom + 18, format_bytes(size), size=11, anchor="middle", shade="faded")


def _curves(field: _Field, answer: Answer, shade: str) -> Iterator[str]:
    for place, style in ((2, 'stroke-width="1.2" stroke-dasharray="5 3"'), (1, 'stroke-width="2.5"')):
        line = " ".join(f"{field.x(point[0]):.5g},{field.y(point[place]):.5g}" for point in _points(answer))
        yield f'<polyline points="{line}" fill="none" stroke="{shade}" {style}/>'
    for row in answer.rows:
        rate = row.bus_bandwidth_bytes_per_second or 0.0
        words = f"{answer.probe}, {format_bytes(row.size_bytes)}: {format_seconds(row.seconds)}, {format_rate(rate)}"
        dot = f'cx="{field.x(row.size_bytes):.5g}" cy="{field.y(rate):.5g}" r="{_DOT}" fill="{shade}"'
        yield f"<circle {dot}><title>{escaped(words)}</title></circle>"
