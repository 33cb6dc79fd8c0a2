"""Rates of counters that may start again, wrap or vanish."""

from __future__ import annotations

from commwatch_exporters.snapshot import Value

DIRECTIONS = ("transmit", "receive")


def interval(earlier: float, later: float, max_gap_seconds: float) -> float | None:
    """Seconds between two readings; None where no rate may span them: time stood still, or one is missing between.

    Args:
        earlier: monotonic seconds of the earlier reading.
        later: monotonic seconds of the later reading.
        max_gap_seconds: the longest interval that a rate may span.
    """
    seconds = later - earlier
    return seconds if 0.0 < seconds <= max_gap_seconds else None


def increase(before: Value, now: Value) -> int | float | None:
    """The increase of a counter between two readings; None where either was not read, or it fell."""
    return None if before is None or now is None or now < before else now - before
