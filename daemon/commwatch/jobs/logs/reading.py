"""Logs of jobs read as a whole, once, for a person: everything that tells of trouble, with file and line."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from commwatch.jobs.logs.event import event_in_line, time_of
from commwatch.jobs.logs.files import LogFile, find_logs
from commwatch.jobs.logs.lines import find_sign, telling_lines
from commwatch.jobs.logs.lines_of_file import LONGEST_LINE, whole_lines
from commwatch.jobs.logs.rules import HINTS, SIGN_HINTS
from commwatch.jobs.logs.story import Told

MOST_LOGS = 512
MOST_TOLD = 5000
"""Lines of trouble that are taken of one log; what happened first is among them."""
_LOOKED_BACK = 20
"""Lines before one without a time of its own that are asked for theirs."""
_DATE = re.compile(rb"\b(20\d\d)-\d\d-\d\d[T _]\d\d:\d\d:")
_VERSION = re.compile(rb"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})\+")
_AMD = re.compile(rb"HIP failure|HIP error|hipify|hipIpc|amdgpu|AMD Instinct|RCCL|rccl|ROCm|rocm")
_PIECE_BYTES = 16 * LONGEST_LINE
STANDARD_INPUT = "-"


@dataclass(slots=True)
class ReadLog:
    """What one log tells."""

    name: str
    told: list[Told] = field(default_factory=list)
    lines: int = 0
    """Lines that were read."""
    is_cut: bool = False
    """Whether the rest was not read, because so many lines tell of trouble."""
    of_nccl: bool = False
    """Whether any line is NCCL's."""
    of_amd: bool = False
    """Whether a line is of AMD's driver or libraries."""
    signs: list[Told] = field(default_factory=list)
    """Signs of an end, which are asked where no log tells anything; see ``rules.SIGNS``."""
    versions: set[str] = field(default_factory=set)
    """Of NCCL, as it writes them itself."""


def read_logs(names: Iterable[str]) -> list[ReadLog]:
    """Read logs.

    Args:
        names: of files and folders, patterns, or ``-`` for the standard input.

    Raises:
        OSError: one cannot be read; ``FileNotFoundError`` also where a name stands for no log.
    """
    return [read_log(*log) for log in _opened(names)]


def _opened(names: Iterable[str]) -> Iterator[tuple[str, BinaryIO, float]]:
    """Each log with its name and the time at which it was written last."""
    found: dict[str, LogFile] = {}
    for name in dict.fromkeys(names):
        if name == STANDARD_INPUT:
            yield "standard input", sys.stdin.buffer, time.time()
            continue
        logs, failed = find_logs(name, host="*")
        if failed is not None:
            raise failed
        if not logs:
            raise FileNotFoundError(2, "no log of this name", name)
        found |= {one.identity: one for one in logs}
    for log in list(found.values())[:MOST_LOGS]:
        with open(log.path, "rb", buffering=0) as stream:
            yield log.path, stream, log.changed


def read_log(name: str, stream: BinaryIO, changed: float) -> ReadLog:
    """Read one log.

    Args:
        name: of the log.
        stream: at its beginning.
        changed: when it was written last, seconds since 1970; gives the year to times that have none, unless
            another line names one.

    Raises:
        OSError: as the kernel gave it.
    """
    log = ReadLog(name)
    rest, skips = b"", False
    year: int | None = None
    while len(log.told) < MOST_TOLD:
        data = stream.read(_PIECE_BYTES)
        if not data:
            _take(log, rest, year or time.gmtime(changed).tm_year)
            log.lines += bool(rest)
            return log
        rest += data
        while True:
            piece = whole_lines(rest, skips)
            if not piece.used:
                break
            log.lines += rest.count(b"\n", 0, piece.begins)
            year = year or _year_in(rest)
            _take(log, piece.body, year or time.gmtime(changed).tm_year)
            log.lines += rest.count(b"\n", piece.begins, piece.used)
            rest, skips = rest[piece.used :], piece.skips
    log.is_cut = True
    del log.told[MOST_TOLD:]
    return log


def _take(log: ReadLog, body: bytes, year: int) -> None:
    """Add what some lines tell; ``log.lines`` stand before them."""
    log.of_nccl = log.of_nccl or b" NCCL INFO " in body or b" NCCL WARN " in body or b"NCCL version" in body
    log.of_amd = log.of_amd or _AMD.search(body) is not None
    log.versions |= {version.decode() for version in _VERSION.findall(body)}
    flat = body.replace(b"\r", b"\n")
    number, counted = log.lines + 1, 0
    for start, line in telling_lines(body, HINTS + SIGN_HINTS):
        number, counted = number + body.count(b"\n", counted, start), start
        text, into = line.decode(errors="replace"), log.told
        event = event_in_line(text, year)
        if event is None and len(log.signs) < MOST_TOLD:
            event, into = event_in_line(text, year, find_sign), log.signs
        if event is not None:
            before = _time_before(flat, start, year) if event.time is None else None
            into.append(Told(event, log.name, number, before))
            if len(log.told) > MOST_TOLD:
                return


def _year_in(body: bytes) -> int | None:
    """The year of the first date in some lines."""
    found = _DATE.search(body)
    return None if found is None else int(found[1])


def _time_before(body: bytes, end: int, year: int) -> float | None:
    """The last time that one of the lines before names."""
    for _ in range(_LOOKED_BACK):
        if end <= 0:
            return None
        begin = body.rfind(b"\n", 0, end - 1) + 1
        time = time_of(body[begin : min(end, begin + 256)].decode(errors="replace"), year)
        if time is not None:
            return time
        end = begin
    return None
