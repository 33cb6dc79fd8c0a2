"""What was measured between the GPUs, as text beside the path classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap

from commwatch.lines import HEADING, WIDTH, Line, Segment, columns
from commwatch.node.topology.measured import Measured, classes_measured
from commwatch.node.topology.model import Topology
from commwatch.units import format_bytes, format_rate, format_seconds

STYLES = {
    "X": "dim",
    "NV": "green",
    "PIX": "cyan",
    "PXB": "cyan",
    "PHB": "yellow",
    "NODE": "yellow",
    "SYS": "red",
    "?": "magenta",
}
"""Of the path classes, as rich names styles."""


def measured_lines(topology: Topology, measured: Measured) -> Iterator[Line]:
    """One line for each path label: what was expected, what was measured, and when."""
    matrix = measured.matrix
    yield []
    yield [("Measured, one direction", HEADING)]
    version = f", NCCL {matrix.nccl_version}" if matrix.nccl_version and matrix.backend == "nccl" else ""
    size = format_bytes(matrix.bandwidth_bytes)
    how = f"{format_seconds(max(0.0, measured.age_seconds))} ago, backend {matrix.backend}{version}, {size} a message"
    yield from ([(f"  {text}", "")] for text in wrap(f"{how}; each pair in both directions, not at once", WIDTH - 2))
    rows: list[list[Segment]] = [[("  path", ""), ("pairs", ""), ("expected", ""), ("bandwidth", ""), ("latency", "")]]
    for one in classes_measured(topology, measured):
        cells = (
            str(one.count),
            _range(one.expected, format_rate) or "not known",
            _range(one.bandwidths, format_rate) or "-",
            _range(one.latencies, format_seconds) or "-",
        )
        rows.append([(f"  {one.label}", STYLES.get(one.kind, "")), *((cell, "") for cell in cells)])
    yield from columns(rows)


def _range(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """``3.1 GB/s to 9.8 GB/s``; one value where all print alike; empty without any."""
    if not values:
        return ""
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} to {high}"


def unmeasured_lines(reason: str) -> Iterator[Line]:
    """Why nothing measured is shown, and how to get it."""
    yield []
    yield [("Measured, one direction", HEADING)]
    how = (
        "To measure: commwatch probe --pairs --json > pairs.json, then commwatch topology --pairs pairs.json; a daemon "
        "that runs measures once a day."
    )
    reason = reason or "nothing is known"
    text = f"{reason[:1].upper()}{reason[1:].rstrip('.')}. {how}"
    yield from ([(f"  {line}", "")] for line in wrap(text, WIDTH - 2))
