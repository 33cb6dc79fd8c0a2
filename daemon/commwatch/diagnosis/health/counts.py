"""Number of unknown answers of healthcheck, by reason: a file in the state directory, exported by the daemon."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from commwatch.errors import StateError
from commwatch.findings.verdict import Because
from commwatch.regular_file import lock_within, open_folder
from commwatch.state.directory import write_atomically
from commwatch.state.records import encode, read_file

FILE_NAME = "healthcheck.json"
_LOCK_SECONDS = 0.3
_MOST_BYTES = 65_536
_MOST_REASONS = 32
_LONGEST_REASON = 32


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
        directory = open_folder(state)
        try:
            lock_within(directory, _LOCK_SECONDS)
            counts = read_counts(state)
            counts[because] = counts.get(because, 0) + 1
            write_atomically(state / FILE_NAME, encode(HealthCounts(counts)))
        finally:
            os.close(directory)
    except OSError as error:
        raise StateError(f"{state / FILE_NAME}: {error.strerror or error}") from error


def read_counts(state: Path) -> dict[str, int]:
    """Totals by reason; empty where there are none or the file makes no sense.

    Raises:
        OSError: there is a file that cannot be read.
    """
    try:
        return _sensible(read_file(state / FILE_NAME, HealthCounts, _MOST_BYTES).unknown)
    except (FileNotFoundError, ValueError, RecursionError):
        return {}


def _sensible(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that are valid as label values and totals."""
    kept = {
        reason: count
        for reason, count in counts.items()
        if reason.isidentifier() and len(reason) <= _LONGEST_REASON and 0 <= count < 2**63
    }
    return dict(list(kept.items())[:_MOST_REASONS])
