"""Records of state files: their form and check sum, types with a range, and one way to read them."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from commwatch.errors import StateError
from commwatch.regular_file import read_regular

Timestamp: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
"""Seconds since 1970, until the end of the year 9999: later ones cannot be shown as a date. It may lie in the future:
a machine without a clock of its own starts in the past."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""How many events, or bytes into a file."""
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""A duration."""
Rate: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
"""Bytes per second."""
PositiveRate: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
"""The same, to divide by."""
Ratio: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e6)]

LONGEST_LABEL: Final = 256
"""Characters of a label value; the longest of ours has 44."""
LARGEST_NUMBER: Final = 2**64
"""No counter of 64 bits, rate or duration of ours is larger; what is would overflow in a computation far from here."""

MOST_BYTES: Final = 64 * 2**20
"""Of a record, several times what the longest may hold. A damaged one may be larger than the memory."""

_NO_RECORD: Final = (errno.EINVAL, errno.ELOOP, errno.EFBIG, errno.ENXIO)
"""Of a pipe, a device or a folder; of a link; of a file that is too large; of a socket."""
_SEALED: Final = re.compile(rb'\{\s*"sha256": *"([^"]*)",')
"""The beginning of a file with a check sum, which is over all that follows. It can be read as any JSON object."""

_Record = TypeVar("_Record")


def encode(record: msgspec.Struct) -> bytes:
    """A record as its state file holds it: an object in JSON, for people to read, that begins with its check sum."""
    content = msgspec.json.format(msgspec.json.encode(record))
    rest = content[1:] + b"\n"
    return b'{\n  "sha256": "%b",' % hashlib.sha256(rest).hexdigest().encode() + rest


def decode(content: bytes, kind: type[_Record]) -> _Record:
    """A record from JSON.

    Raises:
        ValueError: it is not JSON, not of this kind, or a number is out of range.
        RecursionError: it is nested without end.
    """
    record = msgspec.json.decode(content, type=kind)
    _check_range(msgspec.json.decode(content))
    return record


def read_file(file: Path, kind: type[_Record], most_bytes: int = MOST_BYTES) -> _Record:
    """The record of a state file.

    One without a check sum was written by version 0.1.0 or by another hand: what it says is checked as of any other.

    Args:
        file: to be read; a file that is not regular holds no record and is never waited for.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds no such record, is too large, or is not what was written.
        RecursionError: it is nested without end.
    """
    try:
        content = read_regular(file, most_bytes)
    except OSError as error:
        if error.errno in _NO_RECORD:
            raise ValueError(error.strerror) from error
        raise
    if (sealed := _SEALED.match(content)) and hashlib.sha256(content[sealed.end() :]).hexdigest().encode() != sealed[1]:
        raise ValueError("its check sum does not fit: it is not what was written")
    return decode(content, kind)


def read_record(file: Path, kind: type[_Record]) -> _Record | None:
    """The record of another daemon's state file, read without setting anything aside; None if there is no such file.

    Raises:
        StateError: it cannot be read, or holds no such record.
    """
    try:
        return read_file(file, kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def check_unique(keys: Iterable[Hashable], what: str) -> None:
    """Check the keys of a list whose entries become series or are looked up by key.

    Raises:
        ValueError: a key is there twice.
    """
    seen = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"{what} {key!a} is there twice")
        seen.add(key)


def check_labels(texts: Iterable[str]) -> None:
    """Texts that become values of labels: what a worker reports is no longer, and in one printable line.

    Raises:
        ValueError: one is not so.
    """
    for text in texts:
        if len(text) > LONGEST_LABEL or not text.isprintable():
            raise ValueError(f"{text[:LONGEST_LABEL]!a} cannot be the value of a label")


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
