"""One record of each kind that a daemon or a command keeps in the state directory; each makes sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import msgspec

_Record = TypeVar("_Record", bound=msgspec.Struct)

NOW = 1_767_261_600.0


def record(kind: type[_Record]) -> _Record:
    """The record of a kind, as ``state_records.json`` has it."""
    documents = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return msgspec.convert(documents[kind.__name__], kind)
