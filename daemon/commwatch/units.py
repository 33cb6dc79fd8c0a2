"""Quantities as users write and read them: durations, sizes and rates with their units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone

_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip
_RATE_UNITS = {
    "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8,
}  # fmt: skip
_FLOPS_UNITS = {"TFLOP/s": 1e12, "PFLOP/s": 1e15}
_COUNT_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z/]*)")
_COUNT = re.compile(r"(\d{1,18})(?:\.(\d{1,12}))? ?([KMBT]?)", re.ASCII)
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,9})?) ?(%?)", re.ASCII)
_MOST_PARAMETERS = 10**15
_LEAST_BARE_PARAMETERS = 10**6
"""A smaller number without a unit has lost it."""


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


def parse_flops(text: str) -> float:
    """Operations per second of a text such as ``125TFLOP/s``.

    Raises:
        ValueError: it is none; the message says what would be.
    """
    return _parse(text, _FLOPS_UNITS, "a rate", "125TFLOP/s")


def parse_share(text: str) -> float:
    """A ratio above 0 and at most 1 of a text such as ``40%`` or ``0.4``.

    Raises:
        ValueError: it is none; the message says what would be.
    """
    match = _SHARE.fullmatch(text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise ValueError(f"expected a share above 0 % and at most 100 %, such as 40%, got {text!r}")
    return share


def _parse_count(text: str, what: str, example: str) -> int:
    match = _COUNT.fullmatch(text.strip().upper())
    decimals = (match[2] or "") if match else ""
    count, rest = (
        divmod(int(match[1] + decimals) * _COUNT_UNITS.get(match[3], 1), 10 ** len(decimals)) if match else (0, 0)
    )
    if count < 1 or rest:
        units = ", ".join(f"{unit} = 10^{len(str(size)) - 1}" for unit, size in _COUNT_UNITS.items())
        raise ValueError(f"expected a whole number of {what} such as {example} ({units}), got {text!r}")
    return count


def parse_parameters(text: str) -> int:
    """Parameters of a text such as ``1.5B`` (1,500,000,000) or ``350M``; a bare number from a million on.

    Raises:
        ValueError: it is none; the message says what would be.
    """
    count, bare = _parse_count(text, "parameters", "1.5B"), text.strip()
    if count < _LEAST_BARE_PARAMETERS and bare[-1:].isdigit():
        raise ValueError(f"{text} has no unit: write {bare}B for {bare} × 10^9 parameters, or M for 10^6")
    if count > _MOST_PARAMETERS:
        raise ValueError(f"expected at most {format_count(_MOST_PARAMETERS)} parameters, got {text!r}")
    return count


def parse_tokens(text: str) -> int:
    """Tokens of a text such as ``4096``, ``8K`` (8,000) or ``1M``.

    Raises:
        ValueError: it is none; the message says what would be.
    """
    return _parse_count(text, "tokens", "4096 or 8K")


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
    """A time below two minutes with three significant digits, a longer one as people say it: ``3 min 30 s``."""
    if seconds < 0.99995:
        return _scaled(seconds, ((1e-6, "µs"), (1e-3, "ms")), 1000)
    if seconds < 119.5:
        return f"{_three_digits(seconds)} s"
    if seconds < 3599.5:
        return _with_rest(seconds, 60, "min", "s")
    if seconds < 2 * 86400 - 30:
        return _with_rest(seconds / 60, 60, "h", "min")
    return _with_rest(seconds / 3600, 24, "d", "h")


def _with_rest(amount: float, size: int, unit: str, smaller: str) -> str:
    """An amount of a smaller unit, in a unit of that size and a rest."""
    whole, rest = divmod(round(amount), size)
    return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"


def format_bytes(count: float) -> str:
    """A size in binary units with three significant digits."""
    return _scaled(count, ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB")), 1024)


def format_rate(bytes_per_second: float) -> str:
    """A rate in decimal units (GB/s is 10⁹ bytes per second) with three significant digits."""
    return _scaled(bytes_per_second, ((1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")), 1000)


def format_percent(ratio: float) -> str:
    """A ratio in whole percent."""
    return f"{100 * ratio:.0f} %"


def format_count(count: int) -> str:
    """A count with its unit and all of its digits: ``1.5B``; ``parse_parameters`` reads the same number back."""
    for unit, size in reversed(_COUNT_UNITS.items()):
        if count >= size:
            whole, rest = divmod(count, size)
            digits = str(rest).zfill(len(str(size)) - 1).rstrip("0")
            return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"
    return str(count)


def format_gigabytes(count: float) -> str:
    """A size in units of 10⁹ bytes (smaller ones in 10⁶), three significant digits, larger ones whole."""
    return _scaled(count, ((1e6, "MB"), (1e9, "GB")), 1000)


def format_memory(count: float) -> str:
    """A size in units of 10⁶, 10⁹ or 10¹² bytes, three significant digits."""
    return _scaled(count, ((1e6, "MB"), (1e9, "GB"), (1e12, "TB")), 1000)


def format_bits(bytes_per_second: float) -> str:
    """A rate in bits and bytes, not rounded: ``9 Gbit/s = 1.125 GB/s``."""
    return f"{bytes_per_second * 8 / 1e9:.10g} Gbit/s = {bytes_per_second / 1e9:.10g} GB/s"


def clock(seconds: float) -> str:
    """A time of day within a day that is known: ``14:03 UTC``."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%H:%M UTC")


def time_of_day(seconds: float) -> str:
    """A time of day to the second: ``14:03:22 UTC``."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%H:%M:%S UTC")


def utc(seconds: float) -> str:
    """A time of day: ``2026-11-20 14:03:22 UTC``."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
