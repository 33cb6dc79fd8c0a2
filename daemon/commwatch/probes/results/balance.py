"""How evenly the ranks of a probe keep pace, and which one is behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Balance:
    """The ranks of one result beside each other."""

    ratio: float
    """Time of the fastest rank over that of the slowest: above 0, at most 1."""
    slowest: int | None
    """The rank that took longest, the first one of several; None where all took the same time."""


def balance_of(seconds: Sequence[float | None]) -> Balance | None:
    """How even the times of the ranks are; None for fewer than two of them.

    Args:
        seconds: by rank; None for one that was not timed.
    """
    known = [one for one in seconds if one is not None]
    if len(known) < 2 or min(known) <= 0:
        return None
    longest = max(known)
    ratio = min(known) / longest
    return Balance(ratio, seconds.index(longest) if ratio < 1 else None)
