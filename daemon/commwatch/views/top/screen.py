"""The layout of ``commwatch top``: from documents, size and time to the lines of a screen; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from commwatch.lines import Line, folded, printable
from commwatch.views.top.frame import View
from commwatch.views.top.gpu_lines import gpu_lines
from commwatch.views.top.head_lines import collector_lines, finding_lines, node_lines, title_lines
from commwatch.views.top.port_lines import cluster_lines, interface_lines, rdma_lines
from commwatch.views.top.probe_lines import pair_lines, probe_lines
from commwatch.views.top.table import section

HELP = (
    "q             quit",
    "j, down       a line down; k, up: a line up",
    "space, PgDn   a page down; b, PgUp: a page up",
    "g, Home       to the top; G, End: to the end",
    "p             pause: nothing is asked and nothing moves until p again",
    "?             this page, and back; Esc: back",
    "",
    "Verdict: by the most severe finding. A dash: not read.",
    "Errors: of all links or of the port since they were reset; +N since top was started.",
    "Streak: results in a row that were slow, or low in bandwidth; three raise an alert.",
    "PCIe: an idle GPU slows its link; 'low' is a generation too low under load.",
    "Clocks: free, or what holds them down.",
)


@dataclass(frozen=True, slots=True)
class Place:
    """The viewer's position and display options."""

    offset: int = 0
    """Lines of the body that are scrolled away."""
    is_paused: bool = False
    shows_help: bool = False


@dataclass(frozen=True, slots=True)
class Screen:
    lines: tuple[Line, ...]
    """At most as many as the terminal has rows; the last one may be narrower than the terminal, none is wider."""
    offset: int
    """The one that was wanted, kept within the body."""
    page: int
    """Lines of the body that fit."""


def page_lines(view: View, width: int, now: float) -> list[Line]:
    """All that is to be said, however long: for a screen that is not scrolled.

    Args:
        width: in columns.
        now: seconds since 1970 by the daemon's clock.
    """
    return [_printable(line) for line in (*title_lines(view, width, now), *_body(view, width, now))]


def screen(view: View, place: Place, size: tuple[int, int], now: float) -> Screen:
    """The content of a terminal of a given size.

    Args:
        place: what of it.
        size: columns and rows.
        now: seconds since 1970 by the daemon's clock.
    """
    width, height = size
    head = list(title_lines(view, width, now))
    body = list(_help(width) if place.shows_help else _body(view, width, now))
    page = max(1, height - len(head) - 1)
    offset = max(0, min(place.offset, len(body) - page))
    seen = body[offset : offset + page]
    seen += [[]] * (page - len(seen))
    foot = _foot(place, offset, page, len(body), width)
    lines = [_clipped(_printable(line), width) for line in (*head, *seen, foot)]
    return Screen(tuple(lines[:height]), offset, page)


def _body(view: View, width: int, now: float) -> Iterator[Line]:
    documents = view.documents
    if documents is None:
        return
    node = documents.snapshot.node
    first = None if view.first is None else view.first.node
    yield from node_lines(node, documents.findings, view.thresholds, width, now)
    yield from finding_lines(documents.findings, width, now)
    yield from gpu_lines(node, first, width)
    yield from rdma_lines(node, first, width)
    yield from interface_lines(node, first, width)
    yield from probe_lines(documents.probes, node, width, now)
    yield from pair_lines(node, view.thresholds, width)
    yield from cluster_lines(node, width, now)
    yield from collector_lines(node, width, now)


def _help(width: int) -> Iterator[Line]:
    yield from section("Keys")
    for text in HELP:
        yield from folded([(text, "")], width, 14)


def _foot(place: Place, offset: int, page: int, total: int, width: int) -> Line:
    keys = "q quit  p go on  ? help" if place.is_paused else "q quit  j/k scroll  p pause  ? help"
    seen = f"{offset + 1}-{min(offset + page, total)} of {total}" if total else ""
    left = f"PAUSED  {keys}" if place.is_paused else keys
    return [(f"{left:<{max(0, width - len(seen) - 1)}}{seen}", "reverse")]


def _printable(line: Line) -> Line:
    """A line without characters that move a terminal's cursor: much of the text comes from outside."""
    return [(printable(text), style) for text, style in line]


def _clipped(line: Line, width: int) -> Line:
    kept: Line = []
    left = width
    for text, style in line:
        if left > 0 and text:
            kept.append((text[:left], style))
            left -= len(text)
    return kept
