"""The settings that kinds of fault take: how they are written, and which values are possible."""

from __future__ import annotations

import re
from dataclasses import replace

from commwatch.units import parse_duration
from commwatch_rehearsal.simulation.faults.fault import Setting

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RATE_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def whole(text: str, low: int, high: int) -> int:
    """A whole number within limits, or a ValueError that names them."""
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"expected a whole number from {low} to {high}, got {text!r}")
    return int(text)


def number(low: float, high: float) -> Setting:
    def parse(text: str) -> float:
        if not _NUMBER.fullmatch(text) or not low <= float(text) <= high:
            raise ValueError(f"expected a number from {low:g} to {high:g}, got {text!r}")
        return float(text)

    return Setting(parse, f"{low:g} to {high:g}")


def whole_number(low: int, high: int) -> Setting:
    return Setting(lambda text: float(whole(text, low, high)), f"{low} to {high}")


def one_of(*choices: str) -> Setting:
    """One of these words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected {', '.join(choices[:-1])} or {choices[-1]}, got {text!r}")
        return text

    return Setting(parse, ", ".join(choices))


def optional(setting: Setting, default: float | str) -> Setting:
    """The same, with what holds where the key is absent."""
    return replace(setting, default=default)


def _event_rate(text: str) -> float:
    number, slash, unit = text.partition("/")
    if not _NUMBER.fullmatch(number) or float(number) == 0 or (slash and unit not in _RATE_UNITS):
        choice = ", ".join(f"/{name}" for name in _RATE_UNITS)
        raise ValueError(f"expected a rate such as 100/s ({choice}; a bare number is per second), got {text!r}")
    return float(number) / _RATE_UNITS.get(unit, 1.0)


def _lanes(text: str) -> float:
    lanes = whole(text, 1, 16)
    if lanes not in {1, 2, 4, 8, 16}:
        raise ValueError(f"expected 1, 2, 4, 8 or 16 lanes, got {text!r}")
    return lanes


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise ValueError(f"expected the name of an environment variable, such as NCCL_ALGO, got {text!r}")
    return text


def _value(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise ValueError("expected printable ASCII")
    return text


RATE = Setting(_event_rate, "events: 200/s, 30/min, 3/h or 2/d")
SHARE = number(0, 1)
RATIO = Setting(SHARE.parse, "0 to 1, such as 2e-11")
FACTOR = number(0.001, 1000)
GENERATION = whole_number(1, 6)
LANES = Setting(_lanes, "1, 2, 4, 8 or 16")
DURATION = Setting(parse_duration, "a time, such as 90s or 5m")
TEXT = Setting(str, "any text")
VARIABLE = Setting(_variable, "the name of an environment variable")
VALUE = Setting(_value, "printable ASCII")
