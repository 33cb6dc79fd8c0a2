"""The text output of ``commwatch probe``: a table with rates in one unit, sentences below it, and the matrix of
pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from textwrap import fill
from typing import TypeAlias

from commwatch.lines import WIDTH
from commwatch.node.topology.pair_matrix import PairCell, PairMatrix
from commwatch.probes.by_hand.answer import Answer, Document, StepRow, notes_of
from commwatch.probes.by_hand.sweep import sweep_words
from commwatch.probes.by_hand.trial import ROUNDS, SettingTrial, TrialDocument
from commwatch.probes.plan import Measured
from commwatch.units import format_bytes, format_seconds
from commwatch.views.heatmap.grid import figures
from commwatch.views.heatmap.matrix_view import view_of
from commwatch.views.heatmap.text import heatmap_lines
from commwatch.views.terminal import print_lines, print_table, screen

RIGHT = frozenset({1, 2, 3, 4, 5, 6})
"""Columns of numbers."""

Cells: TypeAlias = tuple[str, ...]

_NONE = "-"

_COPIES = {"host_to_device": "to GPU{}", "device_to_host": "from GPU{}"}


def print_answers(document: Document, low_ratio: float) -> None:
    """Print the table of all probes, their sentences, and the matrix of those over pairs.

    Args:
        low_ratio: a bandwidth below this share of the expected one is marked.
    """
    coloured, width = screen()
    folded = min(WIDTH, width or WIDTH)
    _print_head(document)
    print_table("Probes", columns_of(document.probes), table_rows(document.probes, low_ratio), right=RIGHT)
    notes = list(_notes(document.probes))
    if notes:
        print()
    for note in notes:
        print(fill(note, folded, subsequent_indent="  ", break_on_hyphens=False))
    for answer in document.probes:
        if answer.pairs is not None:
            print()
            view = view_of(answer.pairs, "bandwidth", relative=False, low_ratio=low_ratio)
            lines = list(heatmap_lines(view, coloured=coloured, width=width))
            # The notice about simulated results is printed already.
            print_lines(lines[2:] if view.simulated else lines)


def print_sweep(document: Document) -> None:
    """Print a table for each collective, as nccl-tests has it: size, time, algorithm and bus bandwidth."""
    _print_head(document)
    for answer in document.probes:
        print(f"{answer.probe} ×{answer.ranks}: {answer.verdict}")
        if answer.rows:
            print_table("", SWEEP_COLUMNS, _sweep_rows(answer), right=frozenset(range(len(SWEEP_COLUMNS))))
        for note in dict.fromkeys(filter(None, (sweep_words(answer), *notes_of(answer)))):
            print(fill(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False))
        print()


def print_trial(document: TrialDocument) -> None:
    """Print each step without and with the settings, and what they gain."""
    _print_head(document)
    settings = " ".join(f"{name}={value}" for name, value in document.trial.settings.items())
    print(f"Without and with {settings}, medians of {ROUNDS} rounds")
    if document.trial.gains:
        print_table("", TRIAL_COLUMNS, _trial_rows(document.trial), right=frozenset({1, 2, 3, 4}))
    notes = list(_notes(document.probes))
    if document.trial.gains and not document.kept:
        notes.append("not kept for commwatch diagnose --settings: the state directory cannot be written")
    for note in notes:
        print(fill(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False))


def _print_head(document: Document | TrialDocument) -> None:
    """Print the versions that the results were measured with, each combination once; for simulated results only a
    notice."""
    if document.simulated_node:
        print(f"Simulated node {document.simulated_node}: none of this is real.\n")
    found: dict[str, None] = {}
    for answer in document.probes:
        if isinstance(answer.result, Measured) and answer.backend != "simulated":
            parts = [("NCCL", answer.result.nccl_version), ("torch", answer.result.torch_version)]
            known = [f"{name} {version}" for name, version in parts if version]
            found[f"Measured with {', '.join((answer.backend, *known))}."] = None
    for line in found:
        print(line)


def _notes(answers: Sequence[Answer]) -> Iterator[str]:
    """The sentences with the names of the probes that they are about; a sentence that several share comes once."""
    about: dict[str, dict[str, None]] = {}
    for answer in answers:
        for note in notes_of(answer):
            about.setdefault(note, {})[answer.probe] = None
    for note, names in about.items():
        yield f"{', '.join(names)}: {note}"


def columns_of(answers: Sequence[Answer]) -> Cells:
    """The headings, with the unit of all rates below theirs, as nccl-tests have it."""
    unit = _unit(answers)[0]
    return ("probe", "size", "time", f"algbw\n{unit}", f"busbw\n{unit}", f"expected\n{unit}", "used", "verdict")


def table_rows(answers: Sequence[Answer], low_ratio: float) -> list[Cells]:
    """The rows of all answers, at least one for each.

    Args:
        low_ratio: a bandwidth below this share of the expected one is low.
    """
    factor = _unit(answers)[1]
    return [row for answer in answers for row in _rows_of(answer, factor, low_ratio)]


SWEEP_COLUMNS: Cells = ("size\nB", "time\nµs", "algbw\nGB/s", "busbw\nGB/s", "expected\nGB/s")


def _sweep_rows(answer: Answer) -> list[Cells]:
    """A row for each size, in the units of nccl-tests."""
    return [
        (
            str(row.size_bytes),
            f"{1e6 * row.seconds:.2f}",
            f"{(row.algorithm_bandwidth_bytes_per_second or 0.0) / 1e9:.2f}",
            f"{(row.bus_bandwidth_bytes_per_second or 0.0) / 1e9:.2f}",
            _NONE if row.expected is None else f"{row.expected.bytes_per_second / 1e9:.2f} {row.expected.source}",
        )
        for row in answer.rows
    ]


TRIAL_COLUMNS: Cells = ("probe", "size", "without", "with", "gain", "verdict")


def _trial_rows(trial: SettingTrial) -> list[Cells]:
    """A row for each step."""
    return [
        (
            f"{one.probe} ×{one.ranks}" if one.probe == one.operation else f"{one.probe}: {one.operation} ×{one.ranks}",
            format_bytes(one.size_bytes),
            format_seconds(one.without_seconds),
            format_seconds(one.with_seconds),
            f"{one.gain_percent:+.1f} %",
            one.word,
        )
        for one in trial.gains
    ]


def _unit(answers: Sequence[Answer]) -> tuple[str, float]:
    """The unit in which the largest rate reads well, for all alike."""
    rates = [row.algorithm_bandwidth_bytes_per_second or 0.0 for answer in answers for row in answer.rows]
    rates += [cell.bandwidth or 0.0 for answer in answers if answer.pairs is not None for cell in answer.pairs.cells]
    return ("MB/s", 1e6) if rates and max(rates) < 1e9 else ("GB/s", 1e9)


def _rows_of(answer: Answer, factor: float, low_ratio: float) -> Iterator[Cells]:
    if answer.pairs is not None:
        yield from _pair_rows(answer, answer.pairs, factor, low_ratio)
    elif not answer.rows:
        verdict = "exact" if answer.shares_gpus and answer.verdict == "good" else answer.verdict
        yield (f"{answer.probe} ×{answer.ranks}", *(_NONE,) * 6, verdict)
    for row in answer.rows:
        expected = row.expected
        yield (
            _what(answer, row),
            format_bytes(row.size_bytes),
            format_seconds(row.seconds),
            _rate(row.algorithm_bandwidth_bytes_per_second, factor),
            _rate(row.bus_bandwidth_bytes_per_second, factor),
            f"{figures(expected.bytes_per_second / factor)} {expected.source}" if expected else _NONE,
            _percent(row.utilization_ratio),
            _word(row.verdict),
        )


def _what(answer: Answer, row: StepRow) -> str:
    if row.operation in _COPIES:
        return f"{answer.probe}: {_COPIES[row.operation].format(answer.gpus[row.members[0]].gpu)}"
    ranks = f"×{len(row.members)}"
    return f"{answer.probe} {ranks}" if answer.probe == row.operation else f"{answer.probe}: {row.operation} {ranks}"


def _pair_rows(answer: Answer, matrix: PairMatrix, factor: float, low_ratio: float) -> Iterator[Cells]:
    """Medians and the slowest pair, which the verdict is about: the matrix below has each of them."""
    latencies = [one.latency_seconds for one in matrix.cells if one.latency_seconds is not None]
    if latencies:
        what, size = f"{answer.probe}: median of {len(latencies)}", format_bytes(matrix.latency_bytes)
        yield (what, size, format_seconds(median(latencies)), *(_NONE,) * 4, "not judged")
    bandwidths = [one.bandwidth for one in matrix.cells if one.bandwidth is not None]
    slowest = min((one for one in matrix.cells if one.bandwidth is not None), key=_order, default=None)
    if slowest is None or slowest.bandwidth is None:
        yield (f"{answer.probe} ×{answer.ranks}", *(_NONE,) * 6, "not judged")
        return
    expected = [one.expected_bandwidth for one in matrix.cells if one.expected_bandwidth is not None]
    used = [ratio for one in matrix.cells if (ratio := _ratio(one)) is not None]
    whole = "not judged" if answer.verdict == "good" and not used else answer.verdict
    usual = whole if not used or median(used) < low_ratio else "good"
    source = answer.pairs_expected_source or ""
    for what, rate, should, share, verdict in (
        (f"median of {len(bandwidths)}", median(bandwidths), median(expected) if expected else None,
         median(used) if used else None, usual),
        ("slowest", slowest.bandwidth, slowest.expected_bandwidth, _ratio(slowest), whole),
    ):  # fmt: skip
        yield (
            f"{answer.probe}: {what}",
            format_bytes(matrix.bandwidth_bytes),
            format_seconds(matrix.bandwidth_bytes / rate),
            _rate(rate, factor),
            _rate(rate, factor),
            _NONE if should is None else f"{figures(should / factor)} {source}",
            _percent(share),
            _word(verdict),
        )


def _ratio(cell: PairCell) -> float | None:
    if cell.bandwidth is None or cell.expected_bandwidth is None:
        return None
    return cell.bandwidth / cell.expected_bandwidth


def _order(cell: PairCell) -> tuple[bool, float]:
    """Those of which something is expected by their share of it, before the others by what they carry."""
    ratio = _ratio(cell)
    return (True, cell.bandwidth or 0.0) if ratio is None else (False, ratio)


def _rate(rate: float | None, factor: float) -> str:
    return _NONE if rate is None else figures(rate / factor)


def _word(verdict: str) -> str:
    """The verdict beside a share: not as if it were that much below the model."""
    return "low (model)" if verdict == "below model" else verdict


def _percent(ratio: float | None) -> str:
    return _NONE if ratio is None else f"{100 * ratio:.0f} %"
