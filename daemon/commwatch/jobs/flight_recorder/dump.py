"""A Flight Recorder dump in types, from its two forms: the pickle of torch's time-out, and JSON.

Forms: ``torch/csrc/distributed/c10d/FlightRecorderDetail.hpp``, versions 2.x, and ``comms/torchcomms/hooks/fr`` of
torchcomms. In JSON the numbers of ``pg_status`` are text, unknown times are 0, and there are no frames.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from commwatch.jobs.flight_recorder.pickle_walk import LONGEST_TEXT, NoDump, walk

MOST_BYTES: Final = 64 * 2**20
MOST_CALLS: Final = 50_000
"""Of one dump; torch keeps 2,000 by default."""
_MOST_TENSORS: Final = 1024

_Text: TypeAlias = Annotated[str, Meta(max_length=64 * 1024)]
_RankList: TypeAlias = Annotated[str, Meta(max_length=LONGEST_TEXT)]
"""Of 144,960 ranks at most."""
_Word: TypeAlias = Annotated[str, Meta(max_length=512)]
_Sequence: TypeAlias = Annotated[int, Meta(ge=-1, lt=2**62)]
_Nanoseconds: TypeAlias = Annotated[int, Meta(ge=0, lt=2**62)]
_Shape: TypeAlias = Annotated[list[Annotated[int, Meta(ge=0, lt=2**62)]], Meta(max_length=64)]
_Shapes: TypeAlias = Annotated[list[_Shape], Meta(max_length=_MOST_TENSORS)]
_Types: TypeAlias = Annotated[list[_Word], Meta(max_length=_MOST_TENSORS)]


class Frame(msgspec.Struct, frozen=True):
    """A place in the program of the job."""

    name: _Text = ""
    filename: _Text = ""
    line: int = 0


class Call(msgspec.Struct, frozen=True):
    """An entry of the recorder: one operation of a rank."""

    process_group: tuple[_Word, _Word]
    """Name and description: ``("0", "default_pg")``."""
    profiling_name: _Word
    """Backend and operation: ``nccl:all_reduce``, ``nccl:send 1->2``."""
    collective_seq_id: _Sequence
    record_id: _Sequence
    """Counts the calls of the recorder; the ring drops the oldest."""
    time_created_ns: _Nanoseconds
    """Since 1970, by the clock of the rank's node."""
    state: _Word = "scheduled"
    """``scheduled``, ``started`` or ``completed``; recorders without device events leave it at ``scheduled``."""
    retired: bool = False
    is_p2p: bool = False
    p2p_seq_id: _Sequence = 0
    op_id: _Sequence = 0
    pg_id: _Sequence = 0
    input_sizes: _Shapes = []
    input_dtypes: _Types = []
    output_sizes: _Shapes = []
    output_dtypes: _Types = []
    time_discovered_started_ns: _Nanoseconds | None = None
    time_discovered_completed_ns: _Nanoseconds | None = None
    duration_ms: float | None = None
    timeout_ms: _Nanoseconds = 0
    thread_name: _Word = ""
    thread_id: _Word = ""
    frames: Annotated[list[Frame], Meta(max_length=512)] = []
    """The innermost first; empty in JSON."""


class GroupConfig(msgspec.Struct, frozen=True):
    """A process group, as its recorder knows it."""

    name: _Word = ""
    desc: _Word = ""
    ranks: _RankList = "[]"
    """``[0, 1, 2, 3]`` as text; of gloo often empty."""


class Dump(msgspec.Struct, frozen=True):
    version: Annotated[str, Meta(max_length=32)]
    entries: Annotated[list[Call], Meta(max_length=MOST_CALLS)] = []
    pg_config: Annotated[dict[_Word, GroupConfig], Meta(max_length=16_384)] = {}
    pg_status: Annotated[dict[_Word, dict[_Word, int]], Meta(max_length=16_384)] = {}
    """By ``pg_id``; torchcomms writes none. The numbers count sends and receives too, and are not compared."""
    comm_lib_version: _Word = ""
    nccl_comm_state: Annotated[dict[_Word, dict[_Word, _Text]], Meta(max_length=16_384)] = {}
    rank: Annotated[int, Meta(ge=0, lt=2**20)] | None = None
    """Written by ``commwatch flight-recorder convert`` where the name of the file had it; torch writes none."""


def parse(data: bytes) -> Dump:
    """A dump in either form.

    Raises:
        NoDump: it is none, is cut off, or is of another major version.
    """
    try:
        if data[:1] == b"\x80":
            # A pickle has numbers where JSON has text.
            dump = msgspec.convert(walk(data), Dump, strict=False)
        else:
            dump = msgspec.json.decode(data, type=Dump, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoDump(_reason(data, error)) from None
    if dump.version.partition(".")[0] != "2":
        raise NoDump(f"version {dump.version[:16]!r}; versions 2.x can be read")
    return dump


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "it is empty"
    if data[:1] not in (b"\x80", b"{"):
        return "neither a pickle of torch nor JSON"
    return f"not of the form of a dump: {str(error)[:200]}"
