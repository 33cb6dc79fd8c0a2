"""Quantities with units: what is read, what is refused with which words, and how numbers are shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import Duration, Rate, Size, decode_quantity, encode_quantity
from commwatch.units import format_bytes, format_rate, format_seconds, parse_duration, parse_rate, parse_size
from support.passes import in_one_pass

NUMBERS = st.integers(0, 10**9) | st.decimals(0, 10**6, places=3)
DURATIONS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
RATES = {"B/s": 1, "kB/s": 10**3, "MB/s": 10**6, "GB/s": 10**9, "Mbit/s": 125_000, "Gbit/s": 125_000_000}


@given(NUMBERS, st.sampled_from(sorted(DURATIONS)), st.sampled_from(["", " "]))
def test_a_duration_is_its_number_times_its_unit(number: object, unit: str, space: str) -> None:
    """Every unit of time, whole or with a fraction, with or without a space."""
    assert parse_duration(f"{number}{space}{unit}") == pytest.approx(float(str(number)) * DURATIONS[unit])


@given(st.integers(0, 2**53 // 10**9), st.sampled_from(sorted(SIZES)))
def test_a_size_is_exact(number: int, unit: str) -> None:
    """Bytes are whole numbers: no byte is lost to the floating point."""
    size = parse_size(f"{number}{unit}")
    assert (size, type(size)) == (number * SIZES[unit], int)


@given(NUMBERS, st.sampled_from(sorted(RATES)))
def test_a_rate_is_its_number_times_its_unit(number: object, unit: str) -> None:
    """GB/s is 10⁹ bytes a second, and eight bits are one byte."""
    assert parse_rate(f"{number}{unit}") == pytest.approx(float(str(number)) * RATES[unit])


@in_one_pass("text, seconds", [("1h30m", 5400.0), ("1d12h", 129_600.0), ("1m0.5s", 60.5), ("1s500ms", 1.5)])
def test_a_duration_of_several_parts_is_their_sum(text: str, seconds: float) -> None:
    """As systemd and Prometheus write durations."""
    assert parse_duration(text) == pytest.approx(seconds)


@given(st.sampled_from([Size, Rate, Duration]), st.integers(0, 10**12))
def test_a_quantity_survives_its_text(kind: type[Size | Rate | Duration], count: int) -> None:
    """Another process reads the same value; a duration to the microsecond."""
    known = kind(count / 1e6 if kind is Duration else count)
    again = decode_quantity(kind, encode_quantity(known))
    assert type(again) is kind
    assert again == (pytest.approx(known, abs=1e-9, rel=1e-12) if kind is Duration else known)


@in_one_pass(
    "value", ["", "s", "15", "15 parsecs", "-1s", "1,5s", "15S", "1h30", "h1", "1h x 3m", "1s\n2s", 15, None, True]
)
def test_what_is_no_duration_is_refused_with_an_example(value: object) -> None:
    """The message shows what was written, the units that exist, and one that is right."""
    with pytest.raises(ValueError, match=r"a duration with a unit \(us, ms, s, m, h, d\) such as 15s, got ") as caught:
        parse_duration(value)
    assert repr(value) in str(caught.value)


@in_one_pass(
    "parse, value, words",
    [
        (parse_size, "64mib", "a size with a unit (B, kB, MB, GB, KiB, MiB, GiB) such as 64MiB, got '64mib'"),
        (parse_size, "64", "such as 64MiB, got '64'"),
        (parse_size, "1GB/s", "such as 64MiB, got '1GB/s'"),
        (parse_rate, "48GB", "(B/s, kB/s, MB/s, GB/s, Mbit/s, Gbit/s) such as 48GB/s, got '48GB'"),
        (parse_rate, "1Gb/s", "such as 48GB/s, got '1Gb/s'"),
        (parse_rate, 48, "such as 48GB/s, got 48"),
    ],
)
def test_what_has_the_wrong_unit_is_refused(parse: Callable[[object], float], value: object, words: str) -> None:
    """Bits are not taken for bytes, nor a size for a rate."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared below
        parse(value)
    assert words in str(caught.value)


@in_one_pass(
    "seconds, text",
    [
        (0.0, "0 µs"),
        (1.234e-5, "12.3 µs"),
        (0.001, "1 ms"),
        (0.0157, "15.7 ms"),
        (1.0, "1 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (211.0, "3 min 31 s"),
        (3600.0, "1 h"),
        (5400.0, "1 h 30 min"),
        (7200.0, "2 h"),
        (90_000.0, "25 h"),
        (190_800.0, "2 d 5 h"),
    ],
)
def test_times_are_shown_in_the_unit_that_suits_them(seconds: float, text: str) -> None:
    """The unit changes at its edge."""
    assert format_seconds(seconds) == text


@in_one_pass(
    "count, text", [(8, "8 B"), (1023, "1023 B"), (1024, "1 KiB"), (2**20, "1 MiB"), (64 * 2**20, "64 MiB"),
                        (2**30, "1 GiB"), (80 * 2**30, "80 GiB"), (1.5 * 2**30, "1.5 GiB")],
)  # fmt: skip
def test_sizes_are_shown_in_binary_units(count: float, text: str) -> None:
    """MiB is 2²⁰ bytes."""
    assert format_bytes(count) == text


@in_one_pass(
    "rate, text", [(500.0, "0.5 kB/s"), (1e6, "1 MB/s"), (123.4e6, "123 MB/s"), (1e9, "1 GB/s"),
                       (48e9, "48 GB/s"), (99.9e9, "99.9 GB/s"), (450e9, "450 GB/s"), (1800e9, "1800 GB/s")],
)  # fmt: skip
def test_rates_are_shown_in_decimal_units(rate: float, text: str) -> None:
    """GB/s is 10⁹ bytes a second; a large rate is not written with an exponent."""
    assert format_rate(rate) == text
