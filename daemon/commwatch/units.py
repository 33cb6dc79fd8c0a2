"""Quantities as users write and read them: durations, sizes and rates with their units."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip
_RATE_UNITS = {
    "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8,
}  # fmt: skip
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z/]*)")


def _parse(text: object, units: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    choice = ", ".join(units)
    if not isinstance(text, str):
        raise ValueError(f"expected {what} with a unit ({choice}) such as {example}, got {text!r}")
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"expected {what} with a unit ({choice}) such as {example}, got {text!r}")
    return float(match[1]) * units[match[2]]


def parse_duration(text: object) -> float:
    """Seconds of a text such as ``500ms``, ``15s``, ``10m``, ``1h``, ``1d``, or of several such as ``1h30m``.

    Raises:
        ValueError: it is no duration; the message says what would be.
    """
    parts = re.findall(r"\d+(?:\.\d+)?[a-z]+", text) if isinstance(text, str) else []
    if isinstance(text, str) and len(parts) > 1 and "".join(parts) == text.strip():
        return sum(_parse(part, _DURATION_UNITS, "a duration", "1h30m") for part in parts)
    return _parse(text, _DURATION_UNITS, "a duration", "15s")


def parse_size(text: object) -> int:
    """Bytes of a text such as ``8B``, ``64MiB`` or ``1GB`` (10⁹ bytes).

    Raises:
        ValueError: it is no size; the message says what would be.
    """
    size = _parse(text, _SIZE_UNITS, "a size", "64MiB")
    if not size.is_integer():
        raise ValueError(f"expected a whole number of bytes, got {text!r}")
    return int(size)


def parse_rate(text: object) -> float:
    """Bytes per second of a text such as ``48GB/s`` (10⁹ bytes) or ``9Gbit/s`` (10⁹ bits).

    Raises:
        ValueError: it is no rate; the message says what would be.
    """
    return _parse(text, _RATE_UNITS, "a rate", "48GB/s")


def _three_digits(value: float) -> str:
    """Three significant digits; larger numbers whole, never with an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def _scaled(value: float, units: Sequence[tuple[float, str]], limit: float) -> str:
    """A value in the first unit in which it prints below a limit, or in the last."""
    for factor, unit in units[:-1]:
        text = _three_digits(value / factor)
        if float(text) < limit:
            return f"{text} {unit}"
    factor, unit = units[-1]
    return f"{_three_digits(value / factor)} {unit}"


def format_seconds(seconds: float) -> str:
    """A time with three significant digits and the unit that suits it."""
    if seconds < 0.99995:
        return _scaled(seconds, ((1e-6, "µs"), (1e-3, "ms")), 1000)
    return _scaled(seconds, ((1.0, "s"), (60.0, "min"), (3600.0, "h")), 120)


def format_bytes(count: float) -> str:
    """A size in binary units with three significant digits."""
    return _scaled(count, ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB")), 1024)


def format_rate(bytes_per_second: float) -> str:
    """A rate in decimal units (GB/s is 10⁹ bytes per second) with three significant digits."""
    return _scaled(bytes_per_second, ((1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")), 1000)


def format_percent(ratio: float) -> str:
    """A ratio in whole percent."""
    return f"{100 * ratio:.0f} %"
