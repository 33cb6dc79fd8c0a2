"""Options that several commands have, and values as users write them; what cannot be used is refused."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

from commwatch.commands.command import option
from commwatch.errors import UsageError
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


PROFILE_NAMES = ("7b", "30b", "70b", "235b")
"""Those of diagnosis/marks/profiles.py, which the command line itself does not load."""
PROFILES_HELP = f"{', '.join(PROFILE_NAMES)} or a file with your own (docs/using/diagnose.md)"

STEP_TIME = option(
    "--step-time", metavar="TIME", type=positive_duration,
    help="time of a step of your job on one GPU alone, such as 100ms (default: that of the profile)",
)  # fmt: skip
PURPOSE = option(
    "--for", metavar="WORK", choices=("training", "inference", "lora"),
    help="what the job does with the profile's model: training (default), inference or lora",
)  # fmt: skip
IGNORE_SCHEDULER = option(
    "--ignore-scheduler", action="store_true",
    help="for use inside your own job: do not ask the scheduler; GPUs in use still stop it",
)  # fmt: skip


def parse_gpus(text: str) -> tuple[int, ...]:
    """The indexes of ``--gpus 0,1,5``; empty for an empty text.

    Raises:
        UsageError: it is no such list.
    """
    if not text:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        raise UsageError(f"--gpus {text}: expected indexes with commas between, such as 0,1")
    numbers = tuple(map(int, parts))
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"--gpus {text}: names a GPU twice")
    return numbers
