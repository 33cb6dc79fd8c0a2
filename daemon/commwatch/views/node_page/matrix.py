"""The heat map of the pairs of GPUs as a table: numbers on colours that are also read in grey, and marks."""

from __future__ import annotations

from commwatch.probes.results.records import ProbeStatus
from commwatch.views.node_page.markup import duration, section, text
from commwatch.views.node_page.records import PairCell, PairsStatus

_WIDEST_CELL_REM = 4.2


def pairs_section(pairs: PairsStatus | None, probe: ProbeStatus | None) -> str:
    """The last matrix; where there is none, when there will be one, and what it waits for now."""
    if pairs is None:
        return section("pairs", "Pairs of GPUs", f'<p class="dim">{text(_awaited(probe))}</p>')
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


def _awaited(probe: ProbeStatus | None) -> str:
    if probe is None:
        return "No probe of this daemon measures pairs of GPUs."
    if probe.skip_reason.startswith("single_gpu"):
        return "A node with one GPU has no pairs."
    which = "First measurement" if probe.age_seconds is None else "The last one is too old; next measurement"
    when = "is not planned" if probe.next_run_seconds is None else f"in {duration(probe.next_run_seconds)}"
    if probe.skip_reason:
        now = f"the last turn was skipped: {probe.skip_reason}"
    elif probe.failed:
        now = f"the last turn failed: {probe.last_result}"
    else:
        now = f"{probe.name} waits for its turn among the daily probes"
    return f"{which} {when}; now: {now}."


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
        f"darker is slower</p>"
    )


def _notes(pairs: PairsStatus) -> str:
    return "".join([f'<p class="note"><b>{text(mark)}</b> {text(words)}</p>' for mark, words in pairs.notes])
