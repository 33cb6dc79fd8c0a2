"""Whole lines out of pieces of a log, however long its lines are."""

from __future__ import annotations

from typing import NamedTuple

LONGEST_LINE = 64 * 1024
"""Of a longer line only so many bytes are looked at, once they are there."""


class Piece(NamedTuple):
    """What a piece of a log gave."""

    body: bytes
    """Whole lines, or the beginning of one that is too long; what follows is not to be looked at yet."""
    begins: int
    """Where the body begins in the piece."""
    used: int
    """Bytes of the piece that need not be read again."""
    skips: bool
    """Whether what follows is the rest of a line that is too long, or of one that was given up."""


def whole_lines(data: bytes, skips: bool) -> Piece:
    """The whole lines at the beginning of a piece; a carriage return ends a line too, as in progress bars.

    Args:
        data: the piece.
        skips: whether it begins within a line that is not to be looked at.
    """
    begins = 0
    if skips:
        ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
        if not ends:
            return Piece(b"", len(data), len(data), True)
        begins = min(ends) + 1
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if end > begins:
        return Piece(data[begins:end], begins, end, False)
    if len(data) - begins >= LONGEST_LINE:
        return Piece(data[begins : begins + LONGEST_LINE], begins, len(data), True)
    return Piece(b"", begins, begins, False)
