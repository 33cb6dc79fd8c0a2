"""A daemon's answer as a command takes it: it may come from another user, or from whoever has taken the daemon over."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from commwatch.errors import CommwatchError
from commwatch.lines import printable

MOST_BYTES = 2**24
"""Of one answer, 35 times the snapshot of a node with 8 GPUs and 144 NVLinks."""
_MOST_VALUES = 2**19
"""In one answer, 14 times those of that snapshot. Empty objects take twenty times their text in memory."""
_LONGEST_TEXT = 2**14
"""Characters; the longest of ours, a finding's next step, has some hundred."""
_LARGEST_NUMBER = 1e30
"""As of the values of a reader."""

_Document = TypeVar("_Document", bound=msgspec.Struct)


def decode_answer(content: bytes) -> dict[str, Any]:
    """The JSON object of an answer, its texts in one printable line each, so that they do no harm wherever they go.

    Raises:
        ValueError: it is no JSON object, holds too much, or a number that is out of range.
        RecursionError: it is nested without end.
    """
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"it has more than {_MOST_VALUES} values")
    answer = msgspec.json.decode(content, type=dict[str, Any])
    return {_harmless(name): _harmless(value) for name, value in answer.items()}


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}…")
    if isinstance(value, dict):
        return {_harmless(name): _harmless(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_harmless(one) for one in value]
    if isinstance(value, (int, float)) and abs(value) > _LARGEST_NUMBER:
        raise ValueError("a number is out of range")
    return value


def document_of(answer: dict[str, Any], kind: type[_Document]) -> _Document:
    """An answer as the document that it is meant to be.

    Raises:
        CommwatchError: it is none: the daemon is of another version.
    """
    try:
        return msgspec.convert(answer, kind)
    except (ValueError, RecursionError) as error:
        raise CommwatchError(f"the daemon is of another version than this command: {error}") from error
