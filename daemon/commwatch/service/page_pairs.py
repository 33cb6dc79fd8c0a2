"""A pair matrix as the node's page shows it: the numbers, colours and marks of ``commwatch heatmap``.

As a table and not as its picture: a screen reader walks over its cells, and the page is sent at every look.
"""

from __future__ import annotations

from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.rounds import Pair
from commwatch.views.heatmap.colours import colour, css, ink
from commwatch.views.heatmap.grid import View, legend, scale_steps
from commwatch.views.heatmap.matrix_view import view_of
from commwatch_exporters.node_page.records import PairCell, PairsStatus

_SCALE_STEPS = 7


def pairs_status(matrix: PairMatrix, low_ratio: float) -> PairsStatus:
    """Bandwidth one way, in percent of what is expected where that is known of every pair, else as it is.

    Args:
        matrix: that is shown.
        low_ratio: a bandwidth below this share of the expected one is marked.
    """
    relative = all(cell.expected_bandwidth is not None for cell in matrix.cells)
    view = view_of(matrix, "bandwidth", relative=relative, low_ratio=low_ratio)
    places = range(len(view.names))
    rows = [[_cell(view, (source, destination)) for destination in places] for source in places]
    notes = [note.partition("  ")[::2] for note in (*view.notes, *legend(view))]
    return PairsStatus(view.title, "; ".join(view.facts), view.names, rows, _scale(view), notes)


def _cell(view: View, pair: Pair) -> PairCell:
    number = view.numbers.get(pair)
    if number is None:
        return PairCell(view.text(pair), mark=view.marks.get(pair, ""))
    ground = colour(view.brightness(number))
    return PairCell(view.text(pair), css(ground), css(ink(ground)), view.marks.get(pair, ""))


def _scale(view: View) -> tuple[str, tuple[str, ...], str] | None:
    if not view.numbers:
        return None
    shades = tuple(css(colour(view.brightness(step))) for step in scale_steps(view, _SCALE_STEPS))
    return view.with_unit(view.low), shades, view.with_unit(view.high)
