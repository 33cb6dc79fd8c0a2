"""The heat map of a pair matrix: the reference of each cell, and the marks; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from commwatch.node.topology.pair_matrix import PairMatrix, Quantity, Suspect
from commwatch.probes.results.slow_cells import low_cells, names_of, slow_cells
from commwatch.probes.rounds import Pair
from commwatch.units import format_bytes, utc
from commwatch.views.heatmap.grid import LOW, TICKS, View, round_step

QUANTITIES: Mapping[Quantity, str] = {
    "latency": "Latency",
    "bandwidth": "Bandwidth, one way",
    "both_ways": "Bandwidth each way, both ways at once",
}

_LISTED = 6
"""Low cells written out."""


def view_of(matrix: PairMatrix, quantity: Quantity, *, relative: bool, low_ratio: float) -> View:
    """The picture of one matrix.

    Args:
        relative: in percent of what should be there, not in absolute units.
        low_ratio: a bandwidth below this share of the expected one is marked.
    """
    measured = matrix.values(quantity)
    heading = QUANTITIES[quantity]
    if relative:
        reference = _references(matrix, quantity)
        numbers = {pair: 100 * value / reference[pair] for pair, value in measured.items() if pair in reference}
        unit = "%"
        heading += _basis(quantity)
    else:
        reference = {}
        unit, factor = unit_of(measured.values(), quantity)
        numbers = {pair: value / factor for pair, value in measured.items()}
    low, high = scale_of(list(numbers.values()), quantity, relative)
    marks = _marks(matrix, quantity, low_ratio)
    return View(
        heading=heading,
        facts=facts_of(matrix, quantity),
        unit=unit,
        names=names_of(matrix.endpoints),
        numbers=numbers,
        without_reference=frozenset(pair for pair in measured if relative and pair not in reference),
        low=low,
        high=high,
        logarithmic=quantity == "latency",
        slow_is_high=quantity == "latency",
        marks=marks,
        notes=(*suspect_notes(matrix.suspects), *_low_notes(matrix, quantity, marks, low_ratio)),
        simulated=matrix.simulated_node,
    )


def facts_of(matrix: PairMatrix, quantity: Quantity) -> tuple[str, ...]:
    """How and when a matrix was measured."""
    size = format_bytes(matrix.latency_bytes if quantity == "latency" else matrix.bandwidth_bytes)
    version = f", NCCL {matrix.nccl_version}" if matrix.nccl_version and matrix.backend == "nccl" else ""
    settings = f", NCCL settings {matrix.settings_digest}" if matrix.settings_digest else ""
    models = sorted({one.name for one in matrix.endpoints if one.name})
    how = f"{size} a message, backend {matrix.backend}{version}{settings}"
    return (*((" and ".join(models),) if models else ()), how, f"measured {utc(matrix.taken_at)}")


def suspect_letter(place: int) -> str:
    """The mark of the suspect at a place in the list; those after Z share one."""
    return chr(ord("A") + min(place, 25))


def suspect_notes(suspects: Sequence[Suspect]) -> tuple[str, ...]:
    """The sentence about each suspect, after its letter."""
    return tuple(
        f"{suspect_letter(place)}  {one.words.rstrip('.')} (confidence {_sure(one.confidence)})"
        for place, one in enumerate(suspects)
    )


def _sure(confidence: float) -> str:
    """In percent; never 100."""
    return "above 99 %" if confidence > 0.99 else f"{100 * confidence:.0f} %"


# --- what a cell is compared with ---


def _basis(quantity: Quantity) -> str:
    if quantity == "latency":
        return ", in percent of the median over pairs of the same path class"
    return ", in percent of what is expected" + (" one way" if quantity == "both_ways" else "")


def _references(matrix: PairMatrix, quantity: Quantity) -> dict[Pair, float]:
    """The reference of each cell: the expected bandwidth; for latency the median of its path class, from 3 cells on."""
    if quantity != "latency":
        return {
            (cell.source, cell.destination): cell.expected_bandwidth
            for cell in matrix.cells
            if cell.expected_bandwidth is not None
        }
    by_class: dict[str, list[float]] = {}
    for cell in matrix.cells:
        if cell.latency_seconds is not None:
            by_class.setdefault(cell.path, []).append(cell.latency_seconds)
    return {
        (cell.source, cell.destination): median(by_class[cell.path])
        for cell in matrix.cells
        if len(by_class.get(cell.path, ())) >= 3
    }


def unit_of(values: Iterable[float], quantity: Quantity) -> tuple[str, float]:
    """The unit in which the largest value reads well, for all cells alike."""
    largest = max(values, default=0.0)
    if quantity == "latency":
        return ("µs", 1e-6) if largest < 10e-3 else ("ms", 1e-3)
    return ("GB/s", 1e9) if largest >= 1e9 else ("MB/s", 1e6)


def scale_of(numbers: Sequence[float], quantity: Quantity, relative: bool) -> tuple[float, float]:
    """Bandwidth from 0 to its largest, rounded up, or to 100 %; latency from its smallest to four times that, at least.

    A healthy matrix therefore has an even colour despite noise.
    """
    if quantity == "latency":
        smallest = min(numbers, default=1.0)
        return smallest, max(4 * smallest, max(numbers, default=0.0))
    largest = max(100.0 if relative else 0.0, max(numbers, default=0.0)) or 1.0
    fine = round_step(largest / TICKS) / 5
    return 0.0, fine * math.ceil(largest / fine - 1e-9)


# --- marks ---


def _marks(matrix: PairMatrix, quantity: Quantity, low_ratio: float) -> dict[Pair, str]:
    marks = dict.fromkeys(low_cells(matrix, quantity, low_ratio), LOW)
    for place in reversed(range(len(matrix.suspects))):
        marks.update(dict.fromkeys(matrix.suspects[place].cells, suspect_letter(place)))
    return marks


def _low_notes(matrix: PairMatrix, quantity: Quantity, marks: Mapping[Pair, str], low_ratio: float) -> tuple[str, ...]:
    low = [pair for pair, mark in marks.items() if mark == LOW]
    if not low:
        return ()
    pairs = "pair is" if len(low) == 1 else "pairs are"
    way = "" if quantity == "bandwidth" else " one way"
    text = f"{LOW}  {len(low)} {pairs} below {100 * low_ratio:.0f} % of what the path should carry{way}"
    slow = [one for one in slow_cells(matrix, low_ratio) if one.pair in low]
    # Where nearly all are low the numbers say more than a list.
    if quantity != "bandwidth" or 2 * len(slow) > len(matrix.cells):
        return (text,)
    more = "; and others" if len(slow) > _LISTED else ""
    return (f"{text}: {'; '.join(one.text for one in slow[:_LISTED])}{more}",)
