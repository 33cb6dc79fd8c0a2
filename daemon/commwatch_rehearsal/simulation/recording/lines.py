"""The lines of a recording: one JSON object each, told apart by ``is`` (docs/using/recordings.md)."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

FORMAT = 1
"""Version of the format; a file of another version is refused."""
LONGEST_SECONDS = 86_400.0

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
"""Since the recording began."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Code: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A return code of NVML (nvmlReturn_t)."""
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
Error: TypeAlias = Annotated[str, Meta(pattern=r"^(E[A-Z0-9]{1,15})?\Z")]
"""Name of an errno; empty: none."""
Root: TypeAlias = Literal["sys", "proc"]
Argument: TypeAlias = int | float | str | None
"""A number, a text behind a quotation mark, or memory of the caller: ``=SIZE``, and its content where it is not 0."""
Field: TypeAlias = tuple[Count, Count, Count, Code, int]
"""Field id, scope id, value type, return code, and the 64 bits of the value."""
Metric: TypeAlias = tuple[Count, Code, float | None]
"""Metric id, return code, value; None: NaN."""


class Line(msgspec.Struct, tag_field="is", omit_defaults=True, forbid_unknown_fields=True, frozen=True):
    """One line."""


class Timed(Line, frozen=True):
    """An answer, at its time."""

    at: Seconds
    took: Seconds = 0.0


class Head(Line, tag="recording", frozen=True):
    format: int
    commwatch: Name
    """Version that recorded."""
    keeps_names: bool = False


class Call(Timed, tag="nvml", kw_only=True, frozen=True):
    """A call of the driver's library."""

    function: Name
    arguments: tuple[Argument, ...]
    code: Code
    memory: tuple[str | None, ...] = ()
    """For each argument that is memory its content after the call, in hexadecimal without the zeros at its end; None:
    as it was. The handle of a GPU is a small number."""


class Fields(Timed, tag="fields", kw_only=True, frozen=True):
    """nvmlDeviceGetFieldValues: the entries that differ from the last answer of the same GPU."""

    gpu: Count
    code: Code = 0
    entries: tuple[Field, ...] = ()


class Metrics(Timed, tag="gpm", kw_only=True, frozen=True):
    gpu: Count
    code: Code = 0
    metrics: tuple[Metric, ...] = ()


class Event(Timed, tag="event", kw_only=True, frozen=True):
    gpu: Count
    kind: int
    data: int
    instances: tuple[int, int]


class File(Timed, tag="file", kw_only=True, frozen=True):
    """A file that was read; bytes are the characters of ISO 8859-1."""

    root: Root
    path: str
    content: str = ""
    error: Error = ""


class Folder(Timed, tag="folder", kw_only=True, frozen=True):
    """The folders and the links in a folder; None: it is gone."""

    root: Root
    path: str
    entries: dict[str, str] | None
    """By name the folder that a link leads to, from the root; empty for a folder."""
    files: tuple[str, ...] = ()
    """Names of the files, where a reader has listed the folder; not all of them were read."""


class LogLine(Timed, tag="log", kw_only=True, frozen=True):
    """A record of the kernel log that a reader uses, or why it could not be read."""

    level: Count = 0
    number: Annotated[int, Meta(ge=0, le=2**62)] = 0
    stamp: Annotated[float, Meta(ge=-1e9, le=LONGEST_SECONDS)] = 0.0
    """Its time, seconds since the recording began: what came before is negative."""
    text: str = ""
    error: Error = ""


class Statistics(Timed, tag="ethtool", kw_only=True, frozen=True):
    """An answer of SIOCETHTOOL about an interface."""

    interface: str
    command: Literal["count", "names", "numbers"]
    count: Count = 0
    names: tuple[str, ...] = ()
    numbers: tuple[tuple[Count, int], ...] = ()
    """Place and value of those that differ from the last answer."""
    error: Error = ""


class Cost(Line, tag="cost", frozen=True):
    """How often a call was made, repeated answers included, and how long it took."""

    of: str
    calls: Count
    seconds: Seconds
    longest: Seconds


class Hung(Line, tag="hung", frozen=True):
    """A reader that had not come back when the recording ended."""

    reader: Name
    device: str


class End(Line, tag="end", frozen=True):
    seconds: Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]
    lines: Count
    """Those before it."""


Answer: TypeAlias = Call | Fields | Metrics | Event | File | Folder | LogLine | Statistics
AnyLine: TypeAlias = Head | Call | Fields | Metrics | Event | File | Folder | LogLine | Statistics | Cost | Hung | End
ANSWERS = (Call, Fields, Metrics, Event, File, Folder, LogLine, Statistics)
