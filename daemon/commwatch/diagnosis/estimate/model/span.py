"""A range that holds an estimated quantity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
