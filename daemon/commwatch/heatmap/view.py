"""What is drawn of a pair matrix: numbers in one unit, the ends of the colour scale, and marks; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median
from typing import NamedTuple

from commwatch.analysis.pair_matrix import PairEndpoint, PairMatrix, Quantity, Suspect
from commwatch.units import format_bytes, format_rate

QUANTITIES: Mapping[Quantity, str] = {
    "latency": "Latency",
    "bandwidth": "Bandwidth, one way",
    "both_ways": "Bandwidth each way, both ways at once",
}
NO_REFERENCE = "?"
"""A cell that was measured, and of which is not known what it should be."""
LOW = "!"
"""Mark of a cell below the threshold that no suspect explains."""

_LISTED = 6
"""Low cells written out."""
_TICKS = 6
"""Steps of a linear scale, at most."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One picture, whatever draws it."""

    heading: str
    facts: tuple[str, ...]
    """Sizes, versions, time."""
    unit: str
    names: tuple[str, ...]
    """Of the rows, which send, and of the columns, which receive."""
    numbers: Mapping[Pair, float]
    """In the unit; what was not measured is missing."""
    without_reference: frozenset[Pair] = frozenset()
    """Measured, and nothing is known to hold it against."""
    low: float
    high: float
    """Ends of the colour scale, in the unit."""
    logarithmic: bool = False
    slow_is_high: bool = False
    """Of times; else more is better."""
    marks: Mapping[Pair, str]
    """A letter for each suspect, by the cells that it explains; ``LOW`` for other cells that are low."""
    notes: tuple[str, ...] = ()
    """What the marks mean, in sentences."""
    extremes: tuple[str, str] = ("Slowest", "fastest")
    """What the darkest and the brightest cell are called."""
    simulated: str = ""
    """Name of the simulated node; empty for a real one."""

    def brightness(self, number: float) -> float:
        """Place of a number on the colour scale: 0 for the slow end, 1 for the fast one."""
        if self.logarithmic:
            place = math.log(number / self.low) / math.log(self.high / self.low)
        else:
            place = (number - self.low) / (self.high - self.low)
        place = min(1.0, max(0.0, place))
        return 1 - place if self.slow_is_high else place

    def text(self, pair: Pair) -> str:
        """The number of a cell as it is written; ``-`` where nothing was measured, empty for an end with itself."""
        if pair[0] == pair[1]:
            return ""
        if pair in self.without_reference:
            return NO_REFERENCE
        number = self.numbers.get(pair)
        return "-" if number is None else self.figures(number)

    def figures(self, number: float) -> str:
        """A number as it is written: percent whole, other units with three digits."""
        return f"{number:.0f}" if self.unit == "%" and number >= 1 else figures(number)


def name_of(endpoint: PairEndpoint) -> str:
    """``GPU3``, or ``rank3`` where there is no GPU."""
    return f"{'GPU' if endpoint.device or endpoint.pci_address else 'rank'}{endpoint.label}"


def names_of(endpoints: Iterable[PairEndpoint]) -> tuple[str, ...]:
    """The names of all ends."""
    return tuple(map(name_of, endpoints))


def figures(number: float) -> str:
    """Three significant digits; larger numbers whole."""
    return f"{number:.0f}" if number >= 99.95 or not number else f"{number:#.3g}"


def view_of(matrix: PairMatrix, quantity: Quantity, *, relative: bool, low_ratio: float) -> View:
    """The picture of one matrix.

    Args:
        matrix: what was measured.
        quantity: which part of it.
        relative: in percent of what should be there, not in absolute units.
        low_ratio: a bandwidth below this share of the expected one is marked.
    """
    measured = {
        (cell.source, cell.destination): value
        for cell in matrix.cells
        if (value := matrix.value(cell, quantity)) is not None
    }
    heading = QUANTITIES[quantity]
    if relative:
        reference = _references(matrix, quantity)
        numbers = {pair: 100 * value / reference[pair] for pair, value in measured.items() if pair in reference}
        unit = "%"
        heading += _basis(quantity)
    else:
        reference = {}
        unit, factor = _unit(measured.values(), quantity)
        numbers = {pair: value / factor for pair, value in measured.items()}
    low, high = _scale(list(numbers.values()), quantity, relative)
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


def utc(seconds: float) -> str:
    """A time of day: ``2026-11-20 14:03:22 UTC``."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def suspect_letter(place: int) -> str:
    """The mark of the suspect at a place in the list; those after Z share one."""
    return chr(ord("A") + min(place, 25))


def suspect_notes(suspects: Sequence[Suspect]) -> tuple[str, ...]:
    """What is said of each suspect, behind its letter."""
    return tuple(
        f"{suspect_letter(place)}  {one.words.rstrip('.')} (confidence {_sure(one.confidence)})"
        for place, one in enumerate(suspects)
    )


def _sure(confidence: float) -> str:
    """In percent; never 100."""
    return "above 99 %" if confidence > 0.99 else f"{100 * confidence:.0f} %"


# --- what a cell is held against ---


def _basis(quantity: Quantity) -> str:
    if quantity == "latency":
        return ", in percent of the median over pairs of the same path class"
    return ", in percent of what the path should carry one way"


def _references(matrix: PairMatrix, quantity: Quantity) -> dict[Pair, float]:
    """What each cell should be: the expected bandwidth; of latency the median of its path class, from 3 cells on."""
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


def _unit(values: Iterable[float], quantity: Quantity) -> tuple[str, float]:
    """The unit in which the largest value reads well, for all cells alike."""
    largest = max(values, default=0.0)
    if quantity == "latency":
        return ("µs", 1e-6) if largest < 10e-3 else ("ms", 1e-3)
    return ("GB/s", 1e9) if largest >= 1e9 else ("MB/s", 1e6)


def _scale(numbers: Sequence[float], quantity: Quantity, relative: bool) -> tuple[float, float]:
    """Bandwidth from 0 to its largest, rounded up, or to 100 %; latency from its smallest to four times that, at least.

    So a healthy matrix looks even, whatever its noise.
    """
    if quantity == "latency":
        smallest = min(numbers, default=1.0)
        return smallest, max(4 * smallest, max(numbers, default=0.0))
    largest = max(100.0 if relative else 0.0, max(numbers, default=0.0)) or 1.0
    fine = _round_step(largest / _TICKS) / 5
    return 0.0, fine * math.ceil(largest / fine - 1e-9)


# --- marks ---


def _marks(matrix: PairMatrix, quantity: Quantity, low_ratio: float) -> dict[Pair, str]:
    marks = dict.fromkeys(_low_cells(matrix, quantity, low_ratio), LOW)
    for place in reversed(range(len(matrix.suspects))):
        marks.update(dict.fromkeys(matrix.suspects[place].cells, suspect_letter(place)))
    return marks


class SlowCell(NamedTuple):
    """A pair that carries too little."""

    ratio: float
    """Of what its path should carry."""
    pair: Pair
    text: str
    """The same for an operator."""


def slow_cells(matrix: PairMatrix, low_ratio: float) -> tuple[SlowCell, ...]:
    """The pairs whose bandwidth one way is below a share of the expected one, the slowest first."""
    names = names_of(matrix.endpoints)
    low = set(_low_cells(matrix, "bandwidth", low_ratio))
    found = []
    for cell in matrix.cells:
        if (cell.source, cell.destination) in low and cell.bandwidth and cell.expected_bandwidth:
            ratio = cell.bandwidth / cell.expected_bandwidth
            way = f" over {cell.path}" if cell.path else ""
            text = (
                f"{names[cell.source]} to {names[cell.destination]}{way} {format_rate(cell.bandwidth)}, "
                f"{100 * ratio:.0f} % of {format_rate(cell.expected_bandwidth)}"
            )
            found.append(SlowCell(ratio, (cell.source, cell.destination), text))
    return tuple(sorted(found))


def _low_cells(matrix: PairMatrix, quantity: Quantity, low_ratio: float) -> list[Pair]:
    found = []
    for cell in matrix.cells:
        value = matrix.value(cell, quantity)
        expected = cell.expected_bandwidth
        if quantity != "latency" and value is not None and expected is not None and value < low_ratio * expected:
            found.append((cell.source, cell.destination))
    return found


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


def scale_steps(view: View, count: int) -> tuple[float, ...]:
    """Numbers spread evenly over the colour scale, from the low end to the high one."""
    shares = [place / (count - 1) for place in range(count)]
    if view.logarithmic:
        return tuple(view.low * (view.high / view.low) ** share for share in shares)
    return tuple(view.low + (view.high - view.low) * share for share in shares)


def scale_ticks(view: View) -> tuple[tuple[float, float], ...]:
    """Round numbers on the colour scale, each with its place from 0 for the low end to 1 for the high one."""
    if view.logarithmic:
        span = math.log(view.high / view.low)
        decades = range(math.floor(math.log10(view.low)), math.ceil(math.log10(view.high)) + 1)
        steps = (1, 1.5, 2, 3, 5, 7) if span < math.log(30) else (1, 3) if span < math.log(3000) else (1,)
        numbers = [step * 10.0**decade for decade in decades for step in steps]
        return tuple((one, math.log(one / view.low) / span) for one in numbers if view.low <= one <= view.high)
    span = view.high - view.low
    step = _round_step(span / _TICKS)
    count = math.floor(view.high / step + 1e-9)
    return tuple((one * step, (one * step - view.low) / span) for one in range(count + 1) if one * step >= view.low)


def _round_step(wanted: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no smaller than wanted."""
    power: float = 10.0 ** math.floor(math.log10(wanted))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= wanted * (1 - 1e-9))
