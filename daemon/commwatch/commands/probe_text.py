"""The tables of ``commwatch probe``: one row for each step that matters, and sentences below."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import median
from textwrap import fill

from commwatch.analysis.pair_matrix import PairMatrix
from commwatch.commands.common import print_lines, print_table
from commwatch.commands.probe_answer import Answer, Document, Row, notes_of
from commwatch.heatmap.text import heatmap_lines
from commwatch.heatmap.view import view_of
from commwatch.probes.plan import Measured
from commwatch.styled import WIDTH
from commwatch.units import format_bytes, format_rate, format_seconds

COLUMNS = ("probe", "size", "time", "algbw", "busbw", "expected", "used", "verdict")
_NONE = "-"

_WHAT = {"host_to_device": "host to GPU{}", "device_to_host": "GPU{} to host"}


def print_answers(document: Document, low_ratio: float) -> None:
    """Print the table of all probes, their sentences, and the matrix of those over pairs.

    Args:
        document: the answers.
        low_ratio: a bandwidth below this share of the expected one is marked.
    """
    if document.simulated_node:
        print(f"Simulated node {document.simulated_node}: none of this is real.\n")
    for line in _versions(document.probes):
        print(line)
    print_table("Probes", COLUMNS, [row for answer in document.probes for row in rows_of(answer)])
    for answer in document.probes:
        for note in notes_of(answer):
            print(fill(f"{answer.probe}: {note}", WIDTH, subsequent_indent="  "))
    for answer in document.probes:
        if answer.pairs is not None:
            print()
            view = view_of(answer.pairs, "bandwidth", relative=False, low_ratio=low_ratio)
            lines = list(heatmap_lines(view, coloured=sys.stdout.isatty()))
            # What is simulated has been said above.
            print_lines(lines[2:] if view.simulated else lines)


def _versions(answers: Sequence[Answer]) -> list[str]:
    """What the results were measured with, each combination once."""
    found: dict[str, None] = {}
    for answer in answers:
        if isinstance(answer.result, Measured):
            parts = [("NCCL", answer.result.nccl_version), ("torch", answer.result.torch_version)]
            known = [f"{name} {version}" for name, version in parts if version and answer.backend != "simulated"]
            found[f"Measured with {', '.join((answer.backend, *known))}."] = None
    return list(found)


def rows_of(answer: Answer) -> Iterator[tuple[str, ...]]:
    """The rows of one answer, at least one."""
    if answer.pairs is not None:
        yield _pairs_row(answer, answer.pairs)
    elif not answer.rows:
        verdict = "exact" if answer.shares_gpus and answer.verdict == "good" else answer.verdict
        yield (f"{answer.probe} ×{answer.ranks}", *(_NONE,) * 6, verdict)
    for row in answer.rows:
        expected = row.expected
        yield (
            _what(answer, row),
            format_bytes(row.size_bytes),
            format_seconds(row.seconds),
            _rate(row.algorithm_bandwidth_bytes_per_second),
            _rate(row.bus_bandwidth_bytes_per_second),
            f"{format_rate(expected.bytes_per_second)} {expected.source}" if expected else _NONE,
            _percent(row.utilization_ratio),
            row.verdict,
        )


def _what(answer: Answer, row: Row) -> str:
    if row.operation in _WHAT:
        return f"{answer.probe}: {_WHAT[row.operation].format(answer.gpus[row.members[0]].gpu)}"
    ranks = f"×{len(row.members)}"
    return f"{answer.probe} {ranks}" if answer.probe == row.operation else f"{answer.probe}: {row.operation} {ranks}"


def _pairs_row(answer: Answer, matrix: PairMatrix) -> tuple[str, ...]:
    """All pairs in one row: medians, since the matrix below has each of them."""
    bandwidths = [one.bandwidth for one in matrix.cells if one.bandwidth is not None]
    expected = [one.expected_bandwidth for one in matrix.cells if one.expected_bandwidth is not None]
    used = [
        one.bandwidth / one.expected_bandwidth
        for one in matrix.cells
        if one.bandwidth is not None and one.expected_bandwidth is not None
    ]
    middle = format_rate(median(bandwidths)) if bandwidths else _NONE
    return (
        f"{answer.probe}: median of {len(bandwidths)}",
        format_bytes(matrix.bandwidth_bytes),
        format_seconds(matrix.bandwidth_bytes / median(bandwidths)) if bandwidths else _NONE,
        middle,
        middle,
        format_rate(median(expected)) if expected else _NONE,
        _percent(median(used) if used else None),
        "not judged" if answer.verdict == "good" and not expected else answer.verdict,
    )


def _rate(rate: float | None) -> str:
    return _NONE if rate is None else format_rate(rate)


def _percent(ratio: float | None) -> str:
    return _NONE if ratio is None else f"{100 * ratio:.0f} %"
