"""How often healthcheck had to say unknown, by reason: a file in the state directory, exported by the daemon."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from commwatch.errors import StateError
from commwatch.findings.verdict import Because
from commwatch.state.directory import write_atomically
from commwatch.state.records import decode

FILE_NAME = "healthcheck.json"
_LOCK_SECONDS = 0.3
_LOCK_PAUSE = 0.01
_MOST_BYTES = 65_536
_MOST_REASONS = 32


class HealthCounts(msgspec.Struct):
    """Totals since the state directory was made."""

    unknown: dict[str, int] = {}
    """By reason."""


def count_unknown(state: Path, because: Because) -> None:
    """Add one; several checks may do so at once.

    The directory is never made here: root would make it, and the daemon could not use it.

    Raises:
        StateError: it could not be counted; the message says why.
    """
    try:
        directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock(directory)
            counts = read_counts(state)
            counts[because] = counts.get(because, 0) + 1
            write_atomically(state / FILE_NAME, msgspec.json.encode(HealthCounts(counts)))
        finally:
            os.close(directory)
    except OSError as error:
        raise StateError(f"{state / FILE_NAME}: {error.strerror or error}") from error


def _lock(directory: int) -> None:
    """Keep other checks out until the descriptor is closed.

    Raises:
        BlockingIOError: another one holds the lock for too long.
    """
    give_up = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise
            time.sleep(_LOCK_PAUSE)
        else:
            return


def read_counts(state: Path) -> dict[str, int]:
    """Totals by reason; empty where there are none or the file makes no sense.

    Raises:
        OSError: there is a file that cannot be read.
    """
    try:
        # Root reads what the daemon's user may have written: neither a link nor a pipe may lead it astray.
        descriptor = os.open(state / FILE_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    try:
        content = os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
    try:
        counts = decode(content, HealthCounts).unknown
    except (ValueError, RecursionError):
        return {}
    return _sensible(counts)


def _sensible(counts: Mapping[str, int]) -> dict[str, int]:
    """What can be label values and totals."""
    kept = {reason: count for reason, count in counts.items() if reason.isidentifier() and count >= 0}
    return dict(list(kept.items())[:_MOST_REASONS])
