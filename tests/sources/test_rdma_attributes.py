"""What the attributes of RDMA ports say, and what is none of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.sources.rdma import attributes
from commwatch.sources.rdma.attributes import Rate
from support.passes import in_one_pass

NAMES = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (b"400 Gb/sec (4X NDR)\n", Rate(50e9, 4, "NDR")),
        (b"800 Gb/sec (4X XDR)\n", Rate(100e9, 4, "XDR")),
        (b"100 Gb/sec (2X HDR)\n", Rate(12.5e9, 2, "HDR")),
        (b"2.5 Gb/sec (1X SDR)\n", Rate(312_500_000.0, 1, "SDR")),
        (b"56 Gb/sec (4X FDR)\n", Rate(7e9, 4, "FDR")),
        (b"10 Gb/sec (4X)\n", Rate(1.25e9, 4, "SDR")),
        (b"600 Gb/sec (12X HDR)", Rate(75e9, 12, "HDR")),
    ],
)
def test_rates_are_those_of_the_kernel(text: bytes, rate: Rate) -> None:
    """Gbit per second becomes bytes per second in one direction; lanes and name are taken apart."""
    assert attributes.parse_rate(text) == rate


@given(st.sampled_from(sorted(NAMES)), st.sampled_from([1, 2, 4, 8, 12]))
def test_every_name_and_width_is_taken(name: str, lanes: int) -> None:
    """Lane speed times width, with a decimal point where the kernel writes one."""
    total = NAMES[name] * lanes
    rate = attributes.parse_rate(f"{total:g} Gb/sec ({lanes}X {name})\n".encode())

    assert rate == Rate(total * 1e9 / 8, lanes, name)


@in_one_pass(
    "text",
    [b"", b"0 Gb/sec (4X NDR)", b"-1 Gb/sec (4X NDR)", b"400 Mb/sec (4X NDR)", b"400 Gb/sec", b"400 Gb/sec (3X NDR)",
     b"400 Gb/sec (X NDR)", b"4e2 Gb/sec (4X NDR)", b"nan Gb/sec (4X NDR)", b". Gb/sec (4X NDR)", b"1_0 Gb/sec (4X)",
     b"400 Gb/sec 4X NDR", b"1. Gb/sec (4X NDR)"],
)  # fmt: skip
def test_other_texts_are_no_rate(text: bytes) -> None:
    """A text that is not of the form is no rate, and never 0."""
    assert attributes.parse_rate(text) is None


@given(st.binary(max_size=64) | st.from_regex(rb"[0-9.]{0,9} Gb/sec \([0-9]{0,3}X? ?[A-Z]{0,4}\)?\n?", fullmatch=True))
def test_any_bytes_are_taken(data: bytes) -> None:
    """No parser raises, whatever a file holds, and what it gives is within its bounds."""
    rate, count, code = attributes.parse_rate(data), attributes.parse_count(data), attributes.parse_code(data)

    assert rate is None or (rate.bytes_per_second > 0 and math.isfinite(rate.bytes_per_second))
    assert count is None or 0 <= count < 2**64
    assert code is None or 0 <= code <= 99
    assert len(attributes.parse_label(data)) <= 64
    assert attributes.is_unsupported(data) in (True, False)


@given(st.integers(0, 2**64 - 1))
def test_counters_of_64_bits_are_exact(number: int) -> None:
    """Each number that fits is read as it is."""
    assert attributes.parse_count(b"%d\n" % number) == number


@pytest.mark.parametrize(
    "text", [b"18446744073709551616\n", b"-1\n", b"1.5\n", b"0x10\n", b"1_000\n", b"N/A (no PMA)\n"]
)
def test_other_texts_are_no_count(text: bytes) -> None:
    """A number beyond 64 bits, or with anything but digits, is none."""
    assert attributes.parse_count(text) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [(b"4: ACTIVE\n", 4), (b"1: DOWN\n", 1), (b"5:\n", 5), (b"ACTIVE\n", None), (b"4\n", None), (b"\n", None),
     (b"444: X\n", None), (b"-1: X\n", None)],
)  # fmt: skip
def test_states_are_numbers_with_a_name(text: bytes, code: int | None) -> None:
    """The number before the colon; a text without one is no state."""
    assert attributes.parse_code(text) == code


@in_one_pass(
    "state, physical, is_up",
    [(4, 5, True), (2, 5, True), (3, 5, True), (4, 6, True), (1, 2, False), (1, 3, False), (1, None, False),
     (4, None, True), (None, None, False), (4, 4, False)],
)  # fmt: skip
def test_a_link_has_a_speed_while_it_is_physically_up(state: int | None, physical: int | None, is_up: bool) -> None:
    """Waiting for the subnet manager is up, polling for a partner is not; without it the logical state tells."""
    assert attributes.is_link_up(state, physical) is is_up
