"""Exact counts and ranges of a training run: a billion is 10⁹, a GB is 10⁹ bytes, a Gbit/s is 10⁹ bits per second."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

_COUNT_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
"""The only place where a unit of parameters or tokens has a value."""
_COUNT = re.compile(r"(\d{1,18}(?:\.\d{1,12})?) ?([KMBT]?)", re.ASCII)
_MOST_PARAMETERS = 10**15
_LEAST_BARE = 1_000_000
"""Of parameters: a smaller number without a unit has lost it."""


@dataclass(frozen=True, slots=True)
class Span:
    """A quantity that lies between two values, of the same unit; infinity as the high end: no limit is known."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Hold the ends in order.

        Raises:
            ValueError: they are not, or one is negative or no number.
        """
        if not 0 <= self.low <= self.high:
            raise ValueError(f"{self.low:g} to {self.high:g} is no span")

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Span:
        """Both ends times a factor that is not negative."""
        return Span(self.low * factor, self.high * factor)

    def over(self, other: Span) -> Span:
        """The least and the most that the ratio of two independent spans, both above 0, can be."""
        return Span(self.low / other.high, self.high / other.low)

    def holds(self, value: float) -> bool:
        """Whether a value lies within."""
        return self.low <= value <= self.high

    def words(self, shown: Callable[[float], str]) -> str:
        """``3.88 s to 6.18 s``; one value where both are shown alike."""
        low, high = shown(self.low), shown(self.high)
        return low if low == high else f"{low} to {high}"


def exactly(value: float) -> Span:
    """A span of one value."""
    return Span(value, value)


def _parse_count(text: str, what: str, example: str) -> tuple[int, bool]:
    """The count, and whether it had a unit."""
    match = _COUNT.fullmatch(text.strip().upper())
    count = Fraction(match[1]) * _COUNT_UNITS.get(match[2], 1) if match else Fraction(0)
    if match is None or count < 1 or count.denominator != 1:
        units = ", ".join(f"{unit} = 10^{len(str(size)) - 1}" for unit, size in _COUNT_UNITS.items())
        raise ValueError(f"expected a whole number of {what} such as {example} ({units}), got {text!r}")
    return int(count), bool(match[2])


def parse_parameters(text: str) -> int:
    """Parameters of a text such as ``1.5B`` (1,500,000,000) or ``350M``; a bare number from a million on.

    Raises:
        ValueError: it is none; the message says what would be.
    """
    count, has_unit = _parse_count(text, "parameters", "1.5B")
    if not has_unit and count < _LEAST_BARE:
        raise ValueError(
            f"{text} has no unit: write {text.strip()}B for {text.strip()} × 10^9 parameters, or M for 10^6"
        )
    if count > _MOST_PARAMETERS:
        raise ValueError(f"expected at most {format_count(_MOST_PARAMETERS)} parameters, got {text!r}")
    return count


def parse_tokens(text: str) -> int:
    """Tokens of a text such as ``4096``, ``8K`` (8,000) or ``1M``.

    Raises:
        ValueError: it is none; the message says what would be.
    """
    return _parse_count(text, "tokens", "4096 or 8K")[0]


def format_count(count: int) -> str:
    """A count with its unit and all of its digits: ``1.5B``; ``parse_parameters`` reads the same number back."""
    for unit, size in reversed(_COUNT_UNITS.items()):
        if count >= size:
            whole, rest = divmod(count, size)
            digits = str(rest).zfill(len(str(size)) - 1).rstrip("0")
            return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"
    return str(count)


def format_exact_bytes(count: int) -> str:
    """All digits, and the same in decimal units: ``3,000,000,000 bytes = 3 GB``."""
    return f"{count:,} bytes = {format_gigabytes(count)}"


def format_gigabytes(count: float) -> str:
    """A size in units of 10⁹ bytes (smaller ones in 10⁶), three significant digits, larger ones whole."""
    value, unit = (count / 1e9, "GB") if count >= 1e9 else (count / 1e6, "MB")
    return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"


def format_bits(bytes_per_second: float) -> str:
    """A rate in bits and bytes, not rounded: ``9 Gbit/s = 1.125 GB/s``."""
    return f"{bytes_per_second * 8 / 1e9:.10g} Gbit/s = {bytes_per_second / 1e9:.10g} GB/s"
