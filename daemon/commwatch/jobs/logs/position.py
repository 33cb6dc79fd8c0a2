"""How far the logs of jobs were read: what a new process of the source goes on from."""

from __future__ import annotations

import msgspec

from commwatch.state.records import Count, Timestamp


class Position(msgspec.Struct, array_like=True):
    """How far a file was read."""

    offset: Count = 0
    check: Count = 0
    """Sum over the bytes before it: where it differs, the file is another one or was rewritten."""
    skips: bool = False
    """See ``tail.Piece.skips``."""


class LogsPosition(msgspec.Struct):
    """What the next process of this source goes on from."""

    names: tuple[str, ...] = ()
    """Configured names; files of others are not new because they were not known."""
    looked: Timestamp = 0.0
    """When files were looked for last, seconds since 1970."""
    files: dict[str, Position] = {}
    """By identity."""
