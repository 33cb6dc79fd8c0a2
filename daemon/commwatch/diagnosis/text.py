"""A diagnosis as text for people: verdict, findings with evidence and next step, table of checks; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.table import (
    BRANCH_NAMES,
    KINDS,
    Kind,
    TableRow,
    age_of,
    also_seen,
    began_words,
    branch_rows,
    counted,
    facts_of,
    finding_groups,
    notes_of,
    place_of,
)  # fmt: skip
from commwatch.findings.api_documents import ClosedRecord
from commwatch.findings.causes import STOPPED
from commwatch.findings.finding import Cause, Finding, format_evidence
from commwatch.lines import HEADING, WIDTH, Line, Segment, fitted_widths, folded, plain, printable, row_lines
from commwatch.units import utc

_STYLES: dict[Kind | None, str] = {"good": "green", "warn": "yellow", "bad": "red"}
_MOST_FINDINGS = 8
"""Findings that are shown in full."""
_MOST_CLOSED = 5
"""Findings of the last day that are closed."""
_MOST_PARTS = 4
"""Of findings that are shown together."""
_COLUMNS = (9, 200, 16, 18)
"""No wider than this at 80 columns; ``published mark`` takes two lines."""

_NOT_IN_TABLE: tuple[CheckVerdict, ...] = ("passed", "not measured", "does not apply")
"""Shown below the table, or only counted."""


def diagnosis_lines(document: Diagnosis, *, width: int = WIDTH, every: bool = False) -> Iterator[Line]:
    """The whole answer.

    Args:
        width: columns; no line is wider but for a long word.
        every: all checks and all findings, also where many say the same.
    """
    for line in _lines(document, width, every):
        yield [(printable(text), style) for text, style in line]


def _lines(document: Diagnosis, width: int, every: bool) -> Iterator[Line]:
    if document.simulated is not None:
        yield [(f"Simulated node {document.simulated}: none of this is real.", "")]
        yield []
    if document.maintenance is not None:
        yield from folded([(f"The daemon is paused ({document.maintenance}): nothing new is read.", "yellow")], width)
        yield []
    word = document.verdict.word
    yield from folded([(f"{word}: ", f"bold {_STYLES[KINDS[word]]}"), (document.verdict.line, "")], width, 2)
    groups = finding_groups(document.findings, every=every)
    shown = groups if every else groups[:_MOST_FINDINGS]
    for group in shown:
        yield []
        for line, indent in _finding_lines(group, document.time):
            yield from folded(line, width, indent)
    if left := sum(map(len, groups[len(shown) :])):
        yield []
        yield [(f"and {left} more findings; --all shows them", "")]
    yield from _closed_lines(document.closed if every else document.closed[:_MOST_CLOSED], width)
    if left := 0 if every else len(document.closed[_MOST_CLOSED:]):
        yield [(f"  and {left} more; --all shows them", "")]
    if document.score.ratio is not None:
        yield []
        yield [(f"Communication score: {document.score.ratio:.2f}, {document.score.word}, of what was measured", "")]
    yield from _table(document.checks, width, every)


_SCREEN = 24
"""Lines of the answer to a full scan, at any width from 80 columns on."""
_OTHERS = 5
"""Findings after the first that have a line each."""


def screen_lines(document: Diagnosis, *, width: int = WIDTH) -> Iterator[Line]:
    """The answer on one screen: verdict, first finding with causes and next step, the others by a line, score."""
    head: list[Line] = []
    if document.simulated is not None:
        head.append([(f"Simulated node {document.simulated}: none of this is real.", "")])
    if document.maintenance is not None:
        head.append([(_cut(f"The daemon is paused ({document.maintenance}): nothing new is read.", width), "yellow")])
    word = document.verdict.word
    verdict: Line = [(f"{word}: ", f"bold {_STYLES[KINDS[word]]}"), (document.verdict.line, "")]
    head += _at_most(list(folded(verdict, width, 2)), 3)
    groups = finding_groups(document.findings)
    foot: list[Line] = [[(_cut(_headline(group), width), "")] for group in groups[1 : 1 + _OTHERS]]
    if left := sum(map(len, groups[1 + _OTHERS :])):
        foot.append([(f"and {left} more findings", "")])
    foot.append([])
    score = document.score
    said = "not measured" if score.ratio is None else f"{score.ratio:.2f}, {score.word}, of what was measured"
    foot.append([(f"Communication score: {said}", "")])
    foot += [[(_cut(f"{job.name}: {job.word}", width), "")] for job in score.jobs[:2]]
    foot += _at_most(list(folded([("Checks: ", HEADING), (counted(document.checks), "")], width, 2)), 2)
    foot.append([("--marks shows the checks, --all everything.", "dim")])
    body = _first_finding(groups[0], document.time, width, _SCREEN - len(head) - len(foot) - 1) if groups else []
    for line in (*head, *([[], *body] if body else []), *foot):
        yield [(printable(text), style) for text, style in line]


def _first_finding(group: Sequence[Finding], now: float, width: int, most: int) -> list[Line]:
    """A finding in a given number of lines: its title, causes and next step, and of the rest what fits."""
    parts = [list(folded(line, width, indent)) for line, indent in _finding_lines(group, now)]
    # The title, the next step, the likeliest cause with its evidence, the other causes; then the rest in its order.
    ranks, cause = [0], 0
    for part in parts[1:]:
        text = plain(part[0])
        cause += text.startswith("  cause ")
        is_of_first = cause == 1 and text.startswith(("  cause ", "    "))
        ranks.append(1 if text.startswith("  next: ") else 2 if is_of_first else 3 if text[:8] == "  cause " else 4)
    order = sorted(range(len(parts)), key=ranks.__getitem__)
    shown, left = set(), most
    for place in order:
        if len(parts[place]) <= left:
            shown.add(place)
            left -= len(parts[place])
    return [line for place, part in enumerate(parts) if place in shown for line in part]


def _headline(group: Sequence[Finding]) -> str:
    lead = group[0].lead
    return f"{group[0].severity}: {lead.title}: {place_of(group) if len(group) > 1 else lead.component.words}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _at_most(lines: list[Line], most: int) -> list[Line]:
    return lines if len(lines) <= most else [*lines[: most - 1], [*lines[most - 1], (" …", "")]]


def _finding_lines(group: Sequence[Finding], now: float) -> Iterator[tuple[Line, int]]:
    """Each line with the indent of its continuation."""
    finding = group[0]
    title, age = f"{finding.title}: {place_of(group)}", ""
    if len(group) == 1:
        title, age = f"{title},", f" for {age_of(finding, now)}"
    yield (
        [
            (f"{finding.severity}: ", _STYLES.get(KINDS.get(finding.severity), "")),
            (title, "bold"),
            (age, ""),
        ],
        2,
    )
    if len(group) > 1:
        for one in group[:_MOST_PARTS]:
            yield [(f"  {one.component.words}, for {age_of(one, now)}: {facts_of(one)}", "")], 4
        if len(group) > _MOST_PARTS:
            yield [(f"  and {len(group) - _MOST_PARTS} more; --all shows them", "")], 4
    else:
        if finding.detail:
            yield [(f"  {finding.detail}", "")], 4
        for fact in finding.evidence:
            yield [(f"  {format_evidence(fact)}", "")], 4
        for known in finding.job_evidence:
            label = "seen now" if known.source == "proc" else "from the job"
            yield [(f"  {label}: ", "bold"), (known.words, "")], 4
    for place, cause in enumerate(finding.causes, start=1):
        yield from _cause_lines(place, cause, finding)
    if finding.also_seen:
        yield [("  also seen: ", "bold"), (also_seen(finding), "")], 4
    yield [("  next: ", "bold"), (finding.lead.next_step, "")], 4


def _closed_lines(closed: Sequence[ClosedRecord], width: int) -> Iterator[Line]:
    if closed:
        yield []
        yield [("Closed in the last day:", HEADING)]
    for one in closed:
        note = f" ({one.note})" if one.note else ""
        words = f"  {one.severity}: {one.title}: {one.component.words}{note}"
        yield from folded([(words, ""), (f", opened {utc(one.since)}, closed {utc(one.until)}", "dim")], width, 4)


def _cause_lines(place: int, cause: Cause, finding: Finding) -> Iterator[tuple[Line, int]]:
    since = f", {began_words(cause, finding)}" if finding.code in STOPPED else ""
    yield [(f"  cause {place}: ", "bold"), (cause.words, ""), (f"{since} ({cause.reason})", "dim")], 4
    for fact in cause.evidence:
        yield [(f"    {format_evidence(fact)}", "")], 6


# --- the table of checks ---


def _table(checks: Sequence[Check], width: int, every: bool) -> Iterator[Line]:
    if not checks:
        return
    branches = list(branch_rows(checks, every=every))
    hidden = () if every else _NOT_IN_TABLE
    shown = {branch: [row for row in rows if row.verdict not in hidden] for branch, rows in branches}
    heading: list[Segment] = [(name, "dim") for name in ("verdict", "what and where", "measured", "required")]
    cells = {branch: [_cells(row) for row in rows] for branch, rows in shown.items()}
    most = [limit + max(0, width - WIDTH) // 2 for limit in _COLUMNS]
    widths = fitted_widths([heading, *(row for rows in cells.values() for row in rows)], width, (9, *most[1:]))
    yield []
    yield from folded([("Checks: ", HEADING), (counted(checks), "")], width, 2)
    if any(shown.values()):
        yield from row_lines(heading, widths)
    for branch, rows in branches:
        if not every and all(row.verdict in ("passed", "does not apply") for row in rows):
            continue
        yield []
        yield [(BRANCH_NAMES[branch], HEADING)]
        for line in cells[branch]:
            yield from row_lines(line, widths)
        for row, note in notes_of(shown[branch]):
            # A setting is known by its name, not by how many processes have it.
            label = row.where if len(row.checks) == 1 and row.where and branch != "settings" else row.what
            yield from folded([(f"  {label}: ", "bold"), (note, "")], width, 4)
        for reason, what in _unmeasured(rows).items() if not every else ():
            names = "; ".join(dict.fromkeys(what))
            yield from folded(
                [("  not measured: ", "bold"), (f"{names} ({reason})" if reason else names, "")], width, 4
            )
    if not every and any(
        len(row.checks) > 1 or row.verdict in ("passed", "does not apply") for _, rows in branches for row in rows
    ):
        yield []
        yield from folded([("--all shows each check, also what passed.", "dim")], width)


def _unmeasured(rows: Sequence[TableRow]) -> dict[str, list[str]]:
    """The unmeasured rows by reason; for many parts the first one's reason counts."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict == "not measured":
            reason = row.checks[0].detail.rstrip(".")
            first = reason.partition(" ")[0]
            if first == "A" or first[1:].islower():  # no abbreviation
                reason = reason[0].lower() + reason[1:]
            parts = f" ({len(row.checks)} parts)" if len(row.checks) > 1 else ""
            found.setdefault(reason, []).append(f"{row.what}{parts}")
    return found


def _cells(row: TableRow) -> list[Segment]:
    return [
        (row.verdict, _STYLES.get(KINDS.get(row.verdict), "dim")),
        (f"{row.what}: {row.where}" if row.where else row.what, ""),
        (row.measured or "-", ""),
        (row.required or "-", ""),
    ]
