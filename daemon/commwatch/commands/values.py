"""Values of options as users write them; what cannot be used is refused with what would be right."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

from commwatch.units import parse_duration

_Number = TypeVar("_Number", int, float)


def quantity(parse: Callable[[str], _Number], least: str = "") -> Callable[[str], _Number]:
    """Reads an option for argparse, which shows the message of an ``ArgumentTypeError`` and hides that of a ValueError.

    Args:
        parse: reads the text; a ValueError says what would be right.
        least: the smallest value that is taken, as it is written; empty: any.
    """
    lowest = parse(least) if least else 0

    def read(text: str) -> _Number:
        try:
            found = parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        if found < lowest:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {text!r}")
        if found == math.inf:
            raise argparse.ArgumentTypeError("the number is too large")
        return found

    return read


def whole_number(most: int, least: int = 1) -> Callable[[str], int]:
    """Reads a whole number from least to most."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, got {text!r}")
        return int(text)

    return read


def positive_duration(text: str) -> float:
    """Seconds of a text such as ``15m``, above 0.

    Raises:
        ArgumentTypeError: it is none; the message says what would be.
    """
    seconds = quantity(parse_duration)(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
    return seconds
