"""The pairs of GPUs as a table: numbers, of which the slow ones stand out, and marks."""

from __future__ import annotations

from commwatch.probes.results.records import ProbeStatus
from commwatch.probes.rounds import Pair
from commwatch.views.heatmap.grid import View, legend
from commwatch.views.node_page.markup import duration, section, text

_WIDEST_CELL_REM = 4.2
_SOON_SECONDS = 60.0


def pairs_section(view: View | None, probe: ProbeStatus | None) -> str:
    """The last matrix, as ``commwatch heatmap`` shows it; a table, so that a screen reader walks over its cells.

    Where there is none, when there will be one, and what it waits for now.
    """
    if view is None:
        return section("pairs", "Pairs of GPUs", f'<p class="dim">{text(_awaited(probe))}</p>')
    head = "".join([f'<th scope="col">{text(name)}</th>' for name in view.names])
    places = range(len(view.names))
    body = "".join(
        [
            f'<tr><th scope="row">{text(name)}</th>{"".join([_cell(view, (source, target)) for target in places])}</tr>'
            for source, name in enumerate(view.names)
        ]
    )
    widest = (len(view.names) + 1) * _WIDEST_CELL_REM
    return section(
        "pairs",
        "Pairs of GPUs",
        f'<p>{text(view.title)}. Row sends, column receives.</p><div class="wide bare" tabindex="0" role="region" '
        f'aria-labelledby="pairs"><table class="matrix" style="max-width:{widest:g}rem" aria-labelledby="pairs">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>{_notes(view)}"
        f'<p class="dim small">{text("; ".join(view.facts))}</p>',
    )


def _awaited(probe: ProbeStatus | None) -> str:
    if probe is None:
        return "No probe of this daemon measures pairs of GPUs."
    if probe.skip_reason.startswith("single_gpu"):
        return "A node with one GPU has no pairs."
    which = "First measurement" if probe.age_seconds is None else "The last one is too old; next measurement"
    due = probe.next_run_seconds
    when = "is not planned" if due is None else "within a minute" if due <= _SOON_SECONDS else f"in {duration(due)}"
    if probe.skip_reason:
        now = f"the last turn was skipped: {probe.skip_reason}"
    elif probe.failed:
        now = f"the last turn failed: {probe.last_result}"
    else:
        now = f"{probe.name} waits for its turn among the daily probes"
    return f"{which} {when}; now: {now}."


def _cell(view: View, pair: Pair) -> str:
    mark = view.marks.get(pair, "")
    words = text(view.text(pair) + mark)
    number = view.numbers.get(pair)
    if number is None:
        return f'<td class="none">{words}</td>'
    return f'<td class="slow">{words}</td>' if mark else f"<td>{words}</td>"


def _notes(view: View) -> str:
    notes = [note.partition("  ") for note in (*view.notes, *legend(view))]
    return "".join([f'<p class="note"><b>{text(mark)}</b> {text(words)}</p>' for mark, _, words in notes])
