"""Counts and units of a training run: exact, with a billion of 10⁹, and the same when read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.units import format_bits, format_count, format_gigabytes, parse_parameters, parse_rate, parse_tokens
from support.passes import in_one_pass


@in_one_pass(
    "text, count",
    [
        ("1.5B", 1_500_000_000),
        ("1.5 b", 1_500_000_000),
        ("7b", 7_000_000_000),
        ("350M", 350_000_000),
        ("0.1K", 100),
        ("1.2T", 1_200_000_000_000),
        ("1543714304", 1_543_714_304),
        ("1.543714304B", 1_543_714_304),
    ],
)
def test_a_billion_is_ten_to_the_nine(text: str, count: int) -> None:
    """Exact whole numbers, never by way of a binary fraction; 10⁸ is 100M and nothing else."""
    assert parse_parameters(text) == count


@in_one_pass("text", ["", "B", "-1B", "1.5G", "1,5B", "1e9", "0B", "1.23456K5", "0.0000000001B", "١B", "1B B"])
def test_what_is_no_count_is_refused(text: str) -> None:
    """With what would be right, and what each unit stands for."""
    with pytest.raises(ValueError, match=r"such as 1\.5B \(K = 10\^3, M = 10\^6, B = 10\^9, T = 10\^12\), got"):
        parse_parameters(text)


@in_one_pass("text", ["7", "1500", "999999"])
def test_a_small_bare_number_has_lost_its_unit(text: str) -> None:
    """Nobody means seven parameters."""
    with pytest.raises(ValueError, match=rf"{text} has no unit: write {text}B for {text} × 10\^9"):
        parse_parameters(text)


def test_no_model_has_a_thousand_trillion_parameters() -> None:
    """A number beyond that is a mistake."""
    with pytest.raises(ValueError, match="expected at most 1000T parameters, got '1001T'"):
        parse_parameters("1001T")


def test_tokens_may_be_a_bare_number() -> None:
    """A K is 1,000 here too."""
    assert (parse_tokens("4096"), parse_tokens("8K")) == (4096, 8000)


@given(st.integers(min_value=10**6, max_value=10**15))
def test_a_count_is_read_back_as_it_was(count: int) -> None:
    """Every digit of it."""
    assert parse_parameters(format_count(count)) == count


@given(st.integers(min_value=1, max_value=10**7))
def test_a_rate_is_the_same_in_bits_and_bytes(megabits: int) -> None:
    """What is printed on either side of the equals sign is the rate that was read."""
    rate = parse_rate(f"{megabits}Mbit/s")

    bits, size = format_bits(rate).split(" = ")

    assert parse_rate(bits) == pytest.approx(rate, rel=1e-9)
    assert parse_rate(size) == pytest.approx(rate, rel=1e-9)


def test_units_as_they_are_printed() -> None:
    """Bits are eight to the byte, a GB is 10⁹ bytes."""
    assert format_bits(parse_rate("9Gbit/s")) == "9 Gbit/s = 1.125 GB/s"
    assert format_gigabytes(3_000_000_000) == "3 GB"
    assert format_gigabytes(1_120_000_000_000) == "1120 GB"
    assert format_gigabytes(25_000_000) == "25 MB"
