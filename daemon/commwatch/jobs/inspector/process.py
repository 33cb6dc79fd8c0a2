"""The JSON file of one process, from its lines to sums."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from commwatch.jobs.inspector.aggregate import Cell, Window, key_of
from commwatch.jobs.inspector.arrivals import EACH, Arrivals
from commwatch.jobs.inspector.records import (
    LAST_MINOR,
    MAJOR,
    Collective,
    DumpStats,
    Header,
    Line,
    Metadata,
    PointToPoint,
    Proxy,
    decode_lines,
    unknown_fields,
    version_of,
)
from commwatch.jobs.logs.tail import LogTail

Refusal: TypeAlias = Literal["form", "value", "version", "context"]
"""Why a line is not taken: no JSON of this form; a number out of range; another major version; a record behind no line
that says whose it is."""
REFUSALS: Final[tuple[Refusal, ...]] = ("form", "value", "version", "context")
KINDS: Final = ("collective", "p2p", "proxy")
_NAME: Final = re.compile(r"(.{1,255})-pid(\d{1,10})\.log")
_MOST_COMMUNICATORS: Final = 128
"""Of one process that are remembered, with as many operations each."""
_STEPS: Final = {
    "send": (("send_gpu_wait_ts", "gpu"), ("send_peer_wait_ts", "peer"), ("send_wait_ts", "network"),
             ("proxy_step_stop_ts", "")),
    "recv": (("recv_wait_ts", "network"), ("recv_flush_wait_ts", "flush"), ("recv_gpu_wait_ts", "gpu"),
             ("proxy_step_stop_ts", "")),
}  # fmt: skip
"""By direction the times of a step in their order, and what it waits for from each to the next one: the own GPU, the
buffers of the peer, the network (a receiver: until the data is there, which the sender can delay too)."""
PHASES: Final = tuple((way, phase) for way, steps in _STEPS.items() for _, phase in steps if phase)


@dataclass
class Counts:
    """Totals over all files since the source began."""

    refused: Counter[str] = field(default_factory=Counter)
    """Lines by ``Refusal``."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Records that Inspector lost before it wrote them, by ``KINDS``."""
    proxy_seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    """By direction and phase."""
    unknown_fields: int = 0
    """Fields of later minor versions."""


class _Communicator:
    def __init__(self, header: Header) -> None:
        self.id = header.id
        self.nodes = header.nnodes
        self.numbers: dict[str, int] = {}
        """The last number by operation."""


class ProcessFile:
    """The records that one process wrote so far.

    Args:
        newest: monotonic seconds of the record that was newest when the file was found; None where it was empty.
    """

    def __init__(self, tail: LogTail, newest: float | None) -> None:
        self.tail = tail
        self.newest = newest
        self.window = Window()
        named = _NAME.fullmatch(os.path.basename(tail.path))
        self.host, self.pid = (named[1], int(named[2])) if named is not None else ("", 0)
        self.foreign = ""
        """The version that is not read; empty where it is."""
        self._version: str | None = None
        self._counts_drops = self._is_later = False
        self._communicators: dict[str, _Communicator] = {}
        self._current: _Communicator | None = None
        self._left: dict[str, int] | None = None
        """Of v4.3 the records that still belong to the last dump, by ``KINDS``; None: each line has its own context."""

    def take(self, body: bytes, now: float, counts: Counts, arrivals: Arrivals) -> None:
        """Take some whole lines, read at monotonic seconds."""
        found = False
        for line in decode_lines(body):
            if isinstance(line, str):
                self._refuse(line, counts)
                continue
            if line.metadata is not None and line.header is not None:
                self._enter(line.header, line.metadata, now)
            elif self._left is None:
                self._current = None
            if self.foreign or self._current is None:
                self._refuse("version" if self.foreign else "context", counts)
            elif line.coll_perf is not None:
                found |= self._take_collective(line.coll_perf, self._current, counts, arrivals)
            elif line.p2p_perf is not None:
                found |= self._take_operation(line.p2p_perf, "p2p", self._current, counts)
            elif line.proxy_trace is not None:
                self._take_proxy(line.proxy_trace, counts)
            else:
                self._take_other(line, counts)
        if self._is_later:
            counts.unknown_fields += unknown_fields(body)
        if found:
            self.newest = now

    def lose(self) -> None:
        """Something was passed over: what follows up to the next dump has no context, and no length is known across."""
        self.window.forget()
        self._current, self._left = None, None
        for one in self._communicators.values():
            one.numbers.clear()

    def _refuse(self, why: str, counts: Counts) -> None:
        counts.refused[why] += 1
        self.window.is_whole = False

    def _enter(self, header: Header, metadata: Metadata, now: float) -> None:
        if metadata.inspector_output_format_version != self._version:
            self._version = metadata.inspector_output_format_version
            version = version_of(self._version or "")
            is_known = version is not None and version[0] == MAJOR
            self.foreign = "" if is_known else self._version or "none"
            minor = version[1] if version is not None else 0
            self._counts_drops, self._is_later = minor >= 1, is_known and minor > LAST_MINOR
        self.pid, self.host = metadata.pid, metadata.hostname
        self._current = self._communicators.get(header.id)
        if self._current is None:
            if len(self._communicators) >= _MOST_COMMUNICATORS:
                del self._communicators[next(iter(self._communicators))]
            self._current = self._communicators[header.id] = _Communicator(header)
        self._left = None
        self.window.move(metadata.dump_timestamp_us / 1e6, now)

    def _take_collective(self, one: Collective, of: _Communicator, counts: Counts, arrivals: Arrivals) -> bool:
        if not self._take_operation(one, "collective", of, counts):
            return False
        if one.number % EACH == 0 and one.timing != "collective_cpu":
            starts = [kernel.kernel_start_ts for kernel in one.trace.kernel_events] if one.trace is not None else []
            collective = (self.tail.owner, of.id), one.operation, one.number
            arrivals.take(collective, (self.tail.owner, self.pid), one.exec_us, min(starts, default=0))
        return True

    def _take_operation(self, one: Collective | PointToPoint, kind: str, of: _Communicator, counts: Counts) -> bool:
        if (self._left is not None and not self._belongs(kind, counts)) or not one.exec_us:
            return False  # an operation without a time was not measured
        key = key_of(one.operation, one.size, of.nodes)
        window = self.window
        cell = window.cells.get(key)
        if cell is None:
            cell = window.cells[key] = Cell()
        cell.count += 1
        cell.exec_us += one.exec_us
        cell.bus_gbs += one.bus_gbs
        window.add(one.exec_us)
        if not self._counts_drops:
            # v4.0 does not say what was lost, but its numbers have a gap then.
            before = of.numbers.get(one.operation)
            window.is_whole &= before is None or one.number == before + 1
            if before is not None or len(of.numbers) < _MOST_COMMUNICATORS:
                of.numbers[one.operation] = one.number
        return True

    def _belongs(self, kind: str, counts: Counts) -> bool:
        """Whether a record is one of those that the last dump announced."""
        left = self._left or {}
        if left.get(kind, 0) > 0:
            left[kind] -= 1
            return True
        self._refuse("context", counts)
        return False

    def _take_proxy(self, one: Proxy, counts: Counts) -> None:
        if (self._left is not None and not self._belongs("proxy", counts)) or one.record_type != "proxy_step":
            return
        for (begin, phase), (end, _) in pairwise(_STEPS.get(one.direction, ())):
            first, last = one.event_trace_ts.get(begin, 0), one.event_trace_ts.get(end, 0)
            if 0 < first <= last < first + 86_400_000_000:
                step = one.direction, phase
                counts.proxy_seconds[step] = counts.proxy_seconds.get(step, 0.0) + (last - first) / 1e6

    def _take_other(self, line: Line, counts: Counts) -> None:
        stats = line.dump_stats
        if stats is None:
            if not self._is_later:
                self._refuse("form", counts)
            return
        self._take_stats(stats, counts)

    def _take_stats(self, stats: DumpStats, counts: Counts) -> None:
        for kind, lost in zip(KINDS, (
            stats.coll_dropped_since_last_dump, stats.p2p_dropped_since_last_dump, stats.proxy_dropped_since_last_dump,
        ), strict=True):  # fmt: skip
            counts.dropped[kind] += lost
        if stats.coll_dropped_since_last_dump or stats.p2p_dropped_since_last_dump:
            self.window.is_whole = False
        version = version_of(self._version or "")
        if version is not None and version[1] >= 3:
            self._left = dict(zip(KINDS, (stats.coll_records, stats.p2p_records, stats.proxy_records), strict=True))
