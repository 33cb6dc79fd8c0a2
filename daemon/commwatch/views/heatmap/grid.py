"""The content of a heat map in any format: numbers in one unit, the ends of the colour scale, and marks; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from commwatch.probes.rounds import Pair

NO_REFERENCE = "?"
"""A cell that was measured, and of which is not known what it should be."""
LOW = "!"
"""Mark of a cell below the threshold that no suspect explains."""

TICKS = 6
"""Steps of a linear scale, at most."""
_END_TICK_GAP = 0.1
"""A round number nearer to an end of the scale than this share of it would be written over the end's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One picture, whatever draws it."""

    heading: str
    """Title with the quantity; defines 100 % if the unit is percent."""
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
    """Explanations of the marks: each mark, two blanks, and a sentence."""
    extremes: tuple[str, str] = ("Slowest", "fastest")
    """Names for the darkest and the brightest cell."""
    simulated: str = ""
    """Name of the simulated node; empty for a real one."""

    @property
    def title(self) -> str:
        """The heading with the unit."""
        return self.heading if self.unit == "%" else f"{self.heading} ({self.unit})"

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

    def with_unit(self, number: float) -> str:
        """A number as it is written in a sentence."""
        return f"{self.figures(number)} {self.unit}"


def figures(number: float) -> str:
    """Three significant digits; larger numbers whole."""
    return f"{number:.0f}" if number >= 99.95 or not number else f"{number:#.3g}"


def summary(view: View) -> str:
    """The slowest, the fastest and the median pair in a sentence, or why there is none."""
    if len(view.names) < 2:
        return "One GPU alone has no pair."
    if not view.numbers:
        return "Nothing to hold the values against." if view.without_reference else "Nothing was measured."
    order = sorted(view.numbers, key=lambda pair: (view.numbers[pair], pair), reverse=view.slow_is_high)
    slowest, fastest = (
        f"{view.names[pair[0]]} to {view.names[pair[1]]} {view.with_unit(view.numbers[pair])}"
        for pair in (order[0], order[-1])
    )
    worst, best = view.extremes
    return f"{worst}: {slowest}; {best}: {fastest}; median {view.with_unit(median(view.numbers.values()))}."


def legend(view: View) -> Iterator[str]:
    """Explanations of the signs that replace numbers, in the form of the notes."""
    places = range(len(view.names))
    if any(view.text((row, column)) == "-" for row in places for column in places):
        yield "-  not measured"
    if view.without_reference:
        yield f"{NO_REFERENCE}  measured, but nothing is known to hold it against"


def scale_steps(view: View, count: int) -> tuple[float, ...]:
    """Numbers spread evenly over the colour scale, from the low end to the high one."""
    shares = [place / (count - 1) for place in range(count)]
    if view.logarithmic:
        return tuple(view.low * (view.high / view.low) ** share for share in shares)
    return tuple(view.low + (view.high - view.low) * share for share in shares)


def scale_ticks(view: View) -> tuple[tuple[float, float], ...]:
    """Round numbers on the colour scale, each with its place from 0 for the low end to 1 for the high one.

    The ends of a logarithmic scale are shown too, whatever they are: nothing else says where it begins.
    """
    if view.logarithmic:
        span = math.log(view.high / view.low)
        decades = range(math.floor(math.log10(view.low)), math.ceil(math.log10(view.high)) + 1)
        steps = (1, 1.5, 2, 3, 5, 7) if span < math.log(30) else (1, 3) if span < math.log(3000) else (1,)
        numbers = [step * 10.0**decade for decade in decades for step in steps]
        places = [(one, math.log(one / view.low) / span) for one in numbers]
        inner = [(one, place) for one, place in places if _END_TICK_GAP <= place <= 1 - _END_TICK_GAP]
        return (view.low, 0.0), *inner, (view.high, 1.0)
    span = view.high - view.low
    step = round_step(span / TICKS)
    count = math.floor(view.high / step + 1e-9)
    return tuple((one * step, (one * step - view.low) / span) for one in range(count + 1) if one * step >= view.low)


def round_step(wanted: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no smaller than wanted."""
    power: float = 10.0 ** math.floor(math.log10(wanted))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= wanted * (1 - 1e-9))
