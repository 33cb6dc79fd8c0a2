"""Attributes of an RDMA port: state, speed and identity; parsing alone."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

BYTES_PER_SECOND_PER_GBIT: Final = 125_000_000
LINK_STATES: Final = frozenset({2, 3, 4, 5})
"""``state`` of a port whose link is up: initialising and armed ones wait for the subnet manager, not for a cable."""
LINK_PHYS_STATES: Final = frozenset({5, 6})
"""``phys_state`` of a link that is up, or recovers from an error without having gone down."""

_WIDTHS = frozenset({1, 2, 4, 8, 12})
_LARGEST_COUNT = 2**64 - 1
_LONGEST_LABEL = 64


class Rate(NamedTuple):
    """Speed of a port."""

    bytes_per_second: float
    """One direction: the figure of the kernel, Gbit/s times 1e9 over 8."""
    lanes: int
    name: str
    """``SDR`` to ``XDR``."""


def parse_count(data: bytes) -> int | None:
    """A counter, from 0 to 2⁶⁴ - 1; None for any other text."""
    text = data.strip()
    if len(text) > 20 or not text.isdigit():
        return None
    number = int(text)
    return number if number <= _LARGEST_COUNT else None


def is_unsupported(data: bytes) -> bool:
    """Whether a counter's text shows that the port lacks it: ``N/A (no PMA)``."""
    return data.lstrip()[:3].upper() == b"N/A"


def parse_code(data: bytes) -> int | None:
    """The number of a state such as ``4: ACTIVE``; None for any other text."""
    number, colon, _ = data.partition(b":")
    number = number.strip()
    return int(number) if colon and len(number) <= 2 and number.isdigit() else None


def parse_rate(data: bytes) -> Rate | None:
    """A rate such as ``400 Gb/sec (4X NDR)`` or ``2.5 Gb/sec (1X SDR)``; None for any other text.

    Very old kernels give SDR no name: ``10 Gb/sec (4X)``.
    """
    words = data.split()
    if len(words) not in (3, 4) or words[1] != b"Gb/sec" or words[2][:1] != b"(" or words[-1][-1:] != b")":
        return None
    speed = _decimal(words[0])
    width = words[2].strip(b"()")
    if speed is None or width[-1:] != b"X" or not width[:-1].isdigit() or len(width) > 3:
        return None
    lanes = int(width[:-1])
    if lanes not in _WIDTHS:
        return None
    name = words[3][:-1].decode("utf-8", "backslashreplace") if len(words) == 4 else "SDR"
    return Rate(speed * BYTES_PER_SECOND_PER_GBIT, lanes, name)


def _decimal(text: bytes) -> int | float | None:
    """A positive decimal number of at most eight characters, an integer where it is one."""
    whole, point, fraction = text.partition(b".")
    if len(text) > 8 or not whole.isdigit() or (point and not fraction.isdigit()):
        return None
    number = float(text)
    if not math.isfinite(number) or number <= 0:
        return None
    return int(number) if number.is_integer() else number


def is_believed(rate: Rate, driver: str) -> bool:
    """Whether a rate can be what the link runs at.

    Kernels that do not know NDR or XDR report SDR for them, and mlx5 adapters have no SDR link: it is an unknown speed.
    """
    return not (rate.name == "SDR" and driver == "mlx5_core")


def is_link_up(state: int | None, phys_state: int | None) -> bool:
    """Whether the link has a speed: by the physical state where it was read, else by the logical one.

    A port that is down shows a rate as well, the slowest there is.
    """
    return phys_state in LINK_PHYS_STATES if phys_state is not None else state in LINK_STATES


def parse_label(data: bytes | None) -> str:
    """The first word of an attribute as a label of at most 64 characters; empty where there is none."""
    words = (data or b"").split(maxsplit=1)
    return words[0].decode("utf-8", "backslashreplace")[:_LONGEST_LABEL] if words else ""
