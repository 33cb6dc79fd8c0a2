"""The heat map of the pairs of GPUs as a table: numbers on colours that are also read in grey, and marks."""

from __future__ import annotations

from commwatch_exporters.node_page.markup import section, text
from commwatch_exporters.node_page.records import PairCell, PairsStatus

_WIDEST_CELL_REM = 4.2


def pairs_section(pairs: PairsStatus | None) -> str:
    """The last matrix; what to do where there is none."""
    if pairs is None:
        words = "No pairs of GPUs have been measured, or too long ago. A daemon that probes measures them once a day."
        return section("pairs", "Pairs of GPUs", f'<p class="dim">{words}</p>')
    head = "".join([f'<th scope="col">{text(name)}</th>' for name in pairs.names])
    body = "".join(
        [
            f'<tr><th scope="row">{text(name)}</th>{"".join(map(_cell, row))}</tr>'
            for name, row in zip(pairs.names, pairs.rows, strict=True)
        ]
    )
    widest = (len(pairs.names) + 1) * _WIDEST_CELL_REM
    return section(
        "pairs",
        "Pairs of GPUs",
        f'<p>{text(pairs.title)}. Row sends, column receives.</p><div class="wide bare" tabindex="0" role="region" '
        f'aria-labelledby="pairs"><table class="matrix" style="max-width:{widest:g}rem" aria-labelledby="pairs">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>{_scale(pairs)}{_notes(pairs)}"
        f'<p class="dim small">{text(pairs.facts)}</p>',
    )


def _cell(cell: PairCell) -> str:
    words = text(cell.text + cell.mark)
    if not cell.ground:
        return f'<td class="none">{words}</td>'
    marked = ' class="marked"' if cell.mark else ""
    return f'<td{marked} style="background:{cell.ground};color:{cell.ink}">{words}</td>'


def _scale(pairs: PairsStatus) -> str:
    if pairs.scale is None:
        return ""
    low, colours, high = pairs.scale
    shades = ",".join(colours)
    return (
        f'<p class="scale">{text(low)} <span style="background:linear-gradient(90deg,{shades})"></span> {text(high)}; '
        f"the darker, the slower</p>"
    )


def _notes(pairs: PairsStatus) -> str:
    return "".join([f'<p class="note"><b>{text(mark)}</b> {text(words)}</p>' for mark, words in pairs.notes])
