"""Compare two diagnoses: what changed, and by how much; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from commwatch.diagnosis.document import Diagnosis, Measure
from commwatch.findings.finding import Finding, Severity
from commwatch.findings.verdict import Verdict
from commwatch.lines import HEADING, WIDTH, Line, fitted_widths, folded, printable, row_lines
from commwatch.units import format_rate, format_seconds, utc
from commwatch.views.heatmap.compare import SMALLEST_CHANGE, compare, comparison_notes

COMPARISON_SCHEMA: Literal["commwatch-diagnosis-comparison/1"] = "commwatch-diagnosis-comparison/1"
_STYLES = {"better": "green", "worse": "red", "same": ""}
_WHAT = 60
"""Columns of the first column at most."""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """One measure in both."""

    what: str
    before: float
    """In the base unit."""
    after: float
    unit: Literal["bytes_per_second", "seconds", "ratio"]
    change_percent: float | None
    """Of the number before; null where that was 0."""
    word: Literal["better", "worse", "same"]
    """same: less than 5 %, which is noise."""


class ChangedFinding(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    component: str
    """Value of the label."""
    words: str
    """Title and component as people say them, with the likeliest cause."""
    severity: Severity


class DiagnosisComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``commwatch diagnose --compare --json``."""

    schema: Literal["commwatch-diagnosis-comparison/1"] = COMPARISON_SCHEMA
    before_time: float
    """Seconds since 1970."""
    after_time: float
    not_comparable: tuple[str, ...]
    """Why differences may have another cause than the node; empty where there is none."""
    verdict_before: Verdict
    verdict_after: Verdict
    measures: tuple[Gain, ...]
    """The largest change first."""
    only_before: tuple[str, ...]
    """Measures of the earlier diagnosis that the later one lacks."""
    only_after: tuple[str, ...]
    pairs: tuple[str, ...]
    """Changes between pairs of GPUs, in sentences."""
    findings_gone: tuple[ChangedFinding, ...]
    """Most severe first."""
    findings_new: tuple[ChangedFinding, ...]

    @property
    def is_worse(self) -> bool:
        """Whether a measure fell, or a critical finding or a warning is new."""
        new = any(one.severity != "info" for one in self.findings_new)
        return new or any(one.word == "worse" for one in self.measures)


def compared(before: Diagnosis, after: Diagnosis) -> DiagnosisComparison:
    """Hold one against an earlier one."""
    earlier, later = _measures(before), _measures(after)
    gains = [_gain(earlier[what], later[what]) for what in later if what in earlier]
    found, lost = ({one.code + one.component.identity: one for one in of.findings} for of in (after, before))
    pairs: list[str] = []
    if before.matrix is not None and after.matrix is not None:
        notes = comparison_notes(compare(before.matrix, after.matrix, "bandwidth"))
        pairs = [note.removeprefix("-  ") for note in notes]
    return DiagnosisComparison(
        before_time=before.time,
        after_time=after.time,
        not_comparable=tuple(_differences(before, after)),
        verdict_before=before.verdict,
        verdict_after=after.verdict,
        measures=tuple(sorted(gains, key=lambda one: -abs(one.change_percent or 0.0))),
        only_before=tuple(earlier.keys() - later.keys()),
        only_after=tuple(later.keys() - earlier.keys()),
        pairs=tuple(pairs),
        findings_gone=tuple(_finding(one) for key, one in lost.items() if key not in found),
        findings_new=tuple(_finding(one) for key, one in found.items() if key not in lost),
    )


def _measures(of: Diagnosis) -> dict[str, Measure]:
    known = {one.what: one for one in of.measures}
    if of.score.ratio is not None:
        known["communication score"] = Measure("communication score", of.score.ratio, "ratio")
    return known


def _gain(before: Measure, after: Measure) -> Gain:
    change = after.value / before.value - 1 if before.value else None
    word: Literal["better", "worse", "same"] = "same"
    if change is None or abs(change) >= SMALLEST_CHANGE:
        word = "better" if (after.value > before.value) == (after.unit != "seconds") else "worse"
    return Gain(
        what=after.what, before=before.value, after=after.value, unit=after.unit, word=word,
        change_percent=None if change is None else 100 * change,
    )  # fmt: skip


def _finding(one: Finding) -> ChangedFinding:
    words = f"{one.title}: {one.component.words}"
    if one.lead is not one:
        words += f"; likeliest cause: {one.words}"
    return ChangedFinding(code=one.code, component=one.component.identity, words=words, severity=one.severity)


def _differences(before: Diagnosis, after: Diagnosis) -> Iterator[str]:
    if before.simulated != after.simulated:
        yield f"of another node: {before.simulated or 'a real one'} before, {after.simulated or 'a real one'} after"
    if before.time > after.time:
        yield "the first is younger than the second: is the order right?"
    for when, one in (("before", before), ("after", after)):
        if not one.measures:
            yield f"{when}: nothing was measured; diagnose --full-scan measures"


def comparison_lines(comparison: DiagnosisComparison, *, width: int = WIDTH) -> Iterator[Line]:
    for line in _lines(comparison, width):
        yield [(printable(text), style) for text, style in line]


def _lines(comparison: DiagnosisComparison, width: int) -> Iterator[Line]:
    yield [(f"What changed from {utc(comparison.before_time)} to {utc(comparison.after_time)}", HEADING)]
    for reason in comparison.not_comparable:
        yield from folded([("Not comparable: ", "yellow"), (reason, "")], width, 2)
    yield from folded(
        [("before: ", "bold"), (f"{comparison.verdict_before.word}: {comparison.verdict_before.line}", "")], width, 2
    )
    yield from folded(
        [("after:  ", "bold"), (f"{comparison.verdict_after.word}: {comparison.verdict_after.line}", "")], width, 2
    )
    for word, findings in (("gone", comparison.findings_gone), ("new", comparison.findings_new)):
        if findings:
            yield []
            yield [(f"Findings that are {word}", HEADING)]
        for one in findings:
            yield from folded([(f"  {one.severity}: {one.words}", "")], width, 4)
    yield from _table(comparison.measures, width)
    if comparison.pairs:
        yield []
        yield [("Pairs of GPUs, bandwidth", HEADING)]
        for note in comparison.pairs:
            yield from folded([(f"  {note}", "")], width, 4)
    for when, names in (("before", comparison.only_before), ("after", comparison.only_after)):
        if names:
            yield []
            yield from folded([(f"Measured only {when}: {'; '.join(names)}", "")], width, 2)


def _table(gains: Sequence[Gain], width: int) -> Iterator[Line]:
    moved = [one for one in gains if one.word != "same"]
    if moved:
        rows: list[Line] = [[(name, "dim") for name in ("measure", "before", "after", "change")]]
        rows += [
            [(one.what, ""), (_number(one, one.before), ""), (_number(one, one.after), ""), _change(one)]
            for one in moved
        ]
        widths = fitted_widths(rows, width, (_WHAT, 12, 12, 20))
        yield []
        yield [("Measures", HEADING)]
        for row in rows:
            yield from row_lines(row, widths)
    if same := len(gains) - len(moved):
        yield []
        yield [(f"{same} measure{'s' * (same != 1)} changed by less than {100 * SMALLEST_CHANGE:.0f} %.", "")]


def _number(one: Gain, value: float) -> str:
    if one.unit == "ratio":
        return f"{value:.2f}"
    return format_seconds(value) if one.unit == "seconds" else format_rate(value)


def _change(one: Gain) -> tuple[str, str]:
    percent = "" if one.change_percent is None else f"{one.change_percent:+.0f} %, "
    return f"{percent}{one.word}", _STYLES[one.word]
