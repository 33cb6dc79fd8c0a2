"""What a state file may hold: types with a range, and one way to decode them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from commwatch.errors import StateError

Timestamp: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
"""Seconds since 1970, until the end of the year 9999: later ones cannot be shown as a date."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""How many events, or bytes into a file."""

LARGEST_NUMBER: Final = 2**64
"""No counter of 64 bits, rate or duration of ours is larger; what is would overflow in a computation far from here."""

MOST_BYTES: Final = 64 * 2**20
"""Of a record, several times what the longest may hold. A damaged one may be larger than the memory."""

_Record = TypeVar("_Record")


def decode(content: bytes, kind: type[_Record]) -> _Record:
    """A record from the JSON of a state file.

    Raises:
        ValueError: it is not JSON, not of this kind, or a number is out of range.
        RecursionError: it is nested without end.
    """
    record = msgspec.json.decode(content, type=kind)
    _check_range(msgspec.json.decode(content))
    return record


def read_file(file: Path, kind: type[_Record]) -> _Record:
    """The record of a state file.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds no such record, or is too large.
        RecursionError: it is nested without end.
    """
    with file.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    return decode(content, kind)


def read_record(file: Path, kind: type[_Record]) -> _Record | None:
    """What a daemon keeps in a file, for everybody else: nothing is set aside; None where there is no such file.

    Raises:
        StateError: it cannot be read, or holds no such record.
    """
    try:
        return read_file(file, kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _check_range(document: Any) -> None:
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, (int, float)) and abs(value) > LARGEST_NUMBER:
            raise ValueError("a number is out of range")
