"""How far the logs of jobs were read, as one process of their reader hands it to the next."""

from __future__ import annotations

import msgspec

from commwatch.state.records import Count, Timestamp


class Position(msgspec.Struct, array_like=True):
    """How far a file was read."""

    offset: Count = 0
    check: Count = 0
    """Sum over the bytes before it: where it differs, the file is another one or was rewritten."""
    skips: bool = False
    """See ``Piece.skips``."""
    told: bool = False
    """Whether the fallback of the job that writes it was reported."""


class LogsPosition(msgspec.Struct):
    """State from which the next process of this source resumes."""

    names: tuple[str, ...] = ()
    """Configured names; files of others are not new because they were not known."""
    looked: Timestamp = 0.0
    """Time of the last search for files, seconds since 1970."""
    files: dict[str, Position] = {}
    """By identity."""
