"""Lines of NCCL Inspector's JSON files, formats v4.0 to v4.3.

Source: ``plugins/profiler/inspector/inspector_json.cc`` of NCCL 2.28.3 to 2.32. In v4.0 to v4.2 each line has header
and metadata; in v4.3 they stand in the line of a dump, and the next lines, as many as it announces, belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

LAST_MINOR: Final = 3
"""Of the formats that are known; of a later minor version the known fields are read."""
MAJOR: Final = 4
_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,3})")

Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Microseconds: TypeAlias = Annotated[float, Meta(ge=0, le=86_400e6)]
"""Of one operation: a day at most."""
Timestamp: TypeAlias = Annotated[int, Meta(ge=0, le=253_402_300_799_000_000)]
"""Microseconds since 1970."""
Rate: TypeAlias = Annotated[float, Meta(ge=0, le=1e7)]
"""GB/s of 1e9 bytes."""
_Name: TypeAlias = Annotated[str, Meta(max_length=256)]


class Header(msgspec.Struct):
    """The communicator, and the rank of the process in it."""

    id: _Name = ""
    rank: int = -1
    n_ranks: int = 0
    nnodes: int = 1


class Metadata(msgspec.Struct):
    """The process, and when it wrote the line."""

    inspector_output_format_version: _Name = ""
    dump_timestamp_us: Timestamp = 0
    hostname: _Name = ""
    pid: Number = 0


class Kernel(msgspec.Struct):
    """One channel of a verbose record."""

    kernel_start_ts: Timestamp = 0


class Trace(msgspec.Struct):
    """The times of a verbose record; CPU time of the node."""

    kernel_events: Annotated[list[Kernel], Meta(max_length=256)] = []


class Collective(msgspec.Struct, rename={
    "operation": "coll", "number": "coll_sn", "size": "coll_msg_size_bytes", "exec_us": "coll_exec_time_us",
    "timing": "coll_timing_source", "bus_gbs": "coll_busbw_gbs", "trace": "event_trace_ts",
}):  # fmt: skip
    operation: _Name
    number: Number
    """Counts the collectives of this operation on this communicator."""
    size: Number
    exec_us: Microseconds
    timing: _Name = ""
    """``kernel_gpu``, ``kernel_cpu`` or ``collective_cpu``."""
    bus_gbs: Rate = 0.0
    trace: Trace | None = None


class PointToPoint(msgspec.Struct, rename={
    "operation": "p2p", "number": "p2p_sn", "size": "p2p_msg_size_bytes", "exec_us": "p2p_exec_time_us",
    "bus_gbs": "p2p_busbw_gbs",
}):  # fmt: skip
    """A finished send or receive of one rank."""

    operation: _Name
    number: Number
    size: Number
    exec_us: Microseconds
    bus_gbs: Rate = 0.0


class Proxy(msgspec.Struct):
    """A step of the network proxy (v4.3); its times are CPU time of the node, and one that has not happened is absent
    or 0."""

    record_type: _Name = ""
    direction: _Name = ""
    event_trace_ts: dict[str, Timestamp] = {}


class DumpStats(msgspec.Struct):
    """Records in a dump of one communicator, and records lost since the dump before it (from v4.1 on)."""

    coll_records: Number = 0
    p2p_records: Number = 0
    proxy_records: Number = 0
    coll_dropped_since_last_dump: Number = 0
    p2p_dropped_since_last_dump: Number = 0
    proxy_dropped_since_last_dump: Number = 0


class Line(msgspec.Struct):
    """One line; exactly one of the last four is there."""

    header: Header | None = None
    metadata: Metadata | None = None
    coll_perf: Collective | None = None
    p2p_perf: PointToPoint | None = None
    proxy_trace: Proxy | None = None
    dump_stats: DumpStats | None = None


_DECODER: Final = msgspec.json.Decoder(Line)
_ANY: Final = msgspec.json.Decoder()


def decode_lines(body: bytes) -> Sequence[Line | str]:
    """The lines of a piece; in place of a line that cannot be taken, why.

    Returns:
        For each the line, or ``value`` (a number out of range, a field of another type) or ``form`` (no JSON object).
    """
    try:
        return _DECODER.decode_lines(body)
    except (ValueError, RecursionError):  # one of them is bad: each by itself
        return [_decoded(one) for one in body.split(b"\n") if one.strip()]


def _decoded(line: bytes) -> Line | str:
    try:
        return _DECODER.decode(line)
    except msgspec.ValidationError:
        return "value"
    except (ValueError, RecursionError):
        return "form"


def version_of(text: str) -> tuple[int, int] | None:
    """A version such as ``v4.1``; None for what is none."""
    found = _VERSION.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


_NOT_READ: Final = """
comm_name git_rev rec_mechanism coll_algo coll_proto coll_algobw_gbs p2p_peer p2p_timing_source p2p_algobw_gbs
event_trace_sn event_trace_ts coll_dropped_total p2p_dropped_total proxy_dropped_total proxy_ops_dropped_total
proxy_ops_dropped_since_last_dump proxy_pxn_skipped_process_total proxy_steps_enabled record_sn parent_type parent_sn
proxy_op_sn channel_id peer proxy_step_sn step trans_size_bytes n_steps chunk_size_bytes n_steps_started
n_steps_completed n_steps_dropped
"""
_KNOWN: Final = frozenset(_NOT_READ.split()) | {
    field.encode_name
    for kind in (Line, Header, Metadata, Collective, PointToPoint, Proxy, DumpStats)
    for field in msgspec.structs.fields(kind)
}
"""The fields of v4.0 to v4.3, read or not."""


def unknown_fields(body: bytes) -> int:
    """How many fields of some lines no known format has; lines that are no JSON have none."""
    count = 0
    for one in body.split(b"\n"):
        try:
            line: Any = _ANY.decode(one) if one else {}
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            count += len(line.keys() - _KNOWN)
            count += sum(len(value.keys() - _KNOWN) for value in line.values() if isinstance(value, dict))
    return count
