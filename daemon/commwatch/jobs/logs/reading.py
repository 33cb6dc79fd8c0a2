"""Logs of jobs read as a whole, once, for a person: everything that reports trouble, with file and line."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import re
import shlex
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, BinaryIO, cast

from commwatch.jobs.logs.conditions import GPU_NAME
from commwatch.jobs.logs.differing import RankFacts
from commwatch.jobs.logs.event import event_in_line, time_of
from commwatch.jobs.logs.files import ANY_HOST, LogFile, find_logs, stat_log
from commwatch.jobs.logs.kinds import IDENTIFIER, Kinds
from commwatch.jobs.logs.lines import (
    ALL_HINTS,
    ALL_SIGN_HINTS,
    find_doubt,
    find_in_line,
    find_sign,
    shows_good_end,
    shows_work,
    speaks_of_trouble,
)
from commwatch.jobs.logs.nccl_tests import Tables
from commwatch.jobs.logs.rules import GOES_ON
from commwatch.jobs.logs.story import LoggedEvent
from commwatch.jobs.logs.tail import LONGEST_LINE, whole_lines
from commwatch.jobs.logs.transport import TransportLines
from commwatch.regular_file import open_regular

MOST_NAMES = 65_536
"""Names that are read of one folder or pattern, at most: a large job has a log for each rank."""
MOST_SECONDS = 600.0
"""For all logs together: what is left then is not read. A small file that is packed may hold any number of bytes."""
ZSTD_PROGRAMS = ("/usr/bin/zstd", "/bin/zstd")
"""Where root alone can put a program."""
MOST_EVENTS = 5000
"""Lines of trouble that are taken of one log; what happened first is among them."""
_LOOKED_BACK = 20
"""Lines before one without a time of its own that are searched for theirs."""
_WORK_LINES = 1000
"""Lines at the end of a piece that are asked whether they show work."""
_HEAD_LINES = 20_000
"""Lines at the beginning that are searched for a year and names of GPUs."""
_DATE = re.compile(rb"\b(20\d\d)-\d\d-\d\d[T _]\d\d:\d\d:")
_VERSION = re.compile(rb"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})\+")
_AMD = (b"HIP ", b"hipify", b"hipIpc", b"amdgpu", b"AMD Instinct", b"RCCL", b"rccl", b"ROCm")
_NUMBER = re.compile(rb"(?<!\d)0*[1-9]\d*")
_DECIDES = re.compile(rb"Xid|rrno|xit|ignal|tatus|code|event|SIG")
"""Lines whose numbers identify the event."""
_MOST_KINDS = 4096
"""Kinds of lines that are remembered for saying nothing."""
_COLOURS = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_NO_LOG = "no log of this name"
_PACKED = (".gz", ".zst")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
"""How packed files begin."""
_PIECE_BYTES = 16 * LONGEST_LINE
STANDARD_INPUT = "-"


@dataclass(slots=True)
class ReadLog:
    name: str
    trouble: list[LoggedEvent] = field(default_factory=list)
    lines: int = 0
    is_cut: bool = False
    """Whether the rest was not read: too many lines report trouble, or the time was over."""
    of_nccl: bool = False
    """Whether any line is NCCL's."""
    of_amd: bool = False
    """Whether a line is of AMD's driver or libraries."""
    signs: list[LoggedEvent] = field(default_factory=list)
    """Signs of an end, which are used if no log has an event; see ``rules.SIGNS``."""
    doubts: list[LoggedEvent] = field(default_factory=list)
    """Lines after the last one of work that speak of failing, which no level calls calm; see ``rules.DOUBT``."""
    works: int = 0
    """The last line that shows work or a good end, with no word of failing after it; 0 for none."""
    has_ended: bool = False
    """Whether that line shows that the job has ended well."""
    silent: float = 0.0
    """Seconds since it was written last, as far as is known."""
    silent_kinds: set[int] = field(default_factory=set)
    """Kinds of lines that report nothing and are no sign; see ``_kind_of``."""
    year: int | None = None
    """Of the first date near its beginning; None for none."""
    versions: set[str] = field(default_factory=set)
    """Of NCCL, as it writes them itself."""
    gpus: set[str] = field(default_factory=set)
    """Names of GPUs near the beginning: ``H100``."""
    transport: TransportLines = field(default_factory=TransportLines)
    tables: Tables = field(default_factory=Tables)
    ranks: RankFacts = field(default_factory=RankFacts)


def read_logs(names: Iterable[str]) -> list[ReadLog]:
    """Read logs.

    Args:
        names: of files and folders, patterns, or ``-`` for the standard input.

    Raises:
        OSError: one cannot be read; ``FileNotFoundError`` also if a name matches no log.
    """
    until = time.monotonic() + MOST_SECONDS
    return [read_log(*log, until) for log in _opened(names)]


def _opened(names: Iterable[str]) -> Iterator[tuple[str, BinaryIO, float]]:
    """Each log with its name and the time at which it was written last."""
    found: dict[str, LogFile] = {}
    names = list(dict.fromkeys(names))
    for name in names:
        if name == STANDARD_INPUT:
            yield "standard input", sys.stdin.buffer, time.time()
            continue
        logs, failed = find_logs(name, ANY_HOST, MOST_NAMES)
        if not logs and failed is None and name.endswith(_PACKED) and (packed := stat_log(name, name)) is not None:
            logs = [packed]
        if failed is not None:
            raise failed
        if not logs:
            is_there = os.path.exists(name)
            why = "neither a file nor a folder with files; what a pipe brings is read as -" if is_there else _NO_LOG
            raise FileNotFoundError(2, why, name)
        found |= {one.identity: one for one in logs}
    for log in found.values():
        # Whoever writes there may have put a pipe in its place since.
        with open(open_regular(os.path.realpath(log.path)), "rb", buffering=0) as stream:
            head = stream.read(len(_ZSTD))
            stream.seek(0)
            # In a folder anybody may leave what cannot be read.
            if head == _ZSTD and log.path in names:
                with _unpacked_by_zstd(stream, log.path) as unpacked:
                    yield log.path, unpacked, log.changed
            elif head.startswith(_GZIP):
                yield log.path, _unpacked(stream), log.changed
            else:
                yield log.path, stream, log.changed


@contextlib.contextmanager
def _unpacked_by_zstd(stream: BinaryIO, path: str) -> Iterator[BinaryIO]:
    """A log as it was before it was packed with zstd, for which Python has no reader before 3.14.

    Raises:
        OSError: the program zstd is not installed.
    """
    from commwatch.children import PIPE, start

    program = next((one for one in ZSTD_PROGRAMS if os.access(one, os.X_OK)), None)
    if program is None:
        command = f"zstd -dc {shlex.quote(path)} | commwatch diagnose --log -"
        raise OSError(errno.EINVAL, f"packed with zstd, which is not installed here; where it is: {command}", path)
    child = start([program, "-dcq"], {"LC_ALL": "C"}, stdin=cast("IO[bytes]", stream), stdout=PIPE)
    # A pipe gives 64 KiB at a time.
    unpacked = io.BufferedReader(cast("io.RawIOBase", child.stdout), _PIECE_BYTES)
    try:
        yield unpacked
    finally:
        child.kill()
        child.wait()
        unpacked.close()


def _unpacked(stream: BinaryIO) -> BinaryIO:
    """A log as it was before it was packed with gzip. A file that only begins like one is read as it is."""
    packed = gzip.GzipFile(fileobj=stream)
    try:
        packed.peek(1)
    except (OSError, EOFError, zlib.error):
        stream.seek(0)
        return stream
    return cast("BinaryIO", packed)


def read_log(name: str, stream: BinaryIO, changed: float, until: float = float("inf")) -> ReadLog:
    """Read one log.

    Args:
        stream: at its beginning.
        changed: when it was written last, seconds since 1970; gives the year to times that have none, unless
            another line names one.
        until: monotonic seconds at which reading ends.

    Raises:
        OSError: as the kernel gave it.
    """
    # Lines from a pipe may be of any age.
    log = ReadLog(name, silent=float("inf") if stream is sys.stdin.buffer else time.time() - changed)
    rest, skips = b"", False
    default_year = time.gmtime(changed).tm_year
    while len(log.trouble) < MOST_EVENTS and time.monotonic() < until:
        data = _read(stream)
        if not data:
            _take(log, rest, default_year)
            log.lines += bool(rest)
            return log
        rest += data
        while True:
            piece = whole_lines(rest, skips)
            if not piece.used:
                break
            log.lines += rest.count(b"\n", 0, piece.begins)
            if log.year is None and log.lines < _HEAD_LINES:
                log.year = _year_in(rest)
            _take(log, piece.body, default_year)
            log.lines += rest.count(b"\n", piece.begins, piece.used)
            rest, skips = rest[piece.used :], piece.skips
    log.is_cut = True
    del log.trouble[MOST_EVENTS:]
    return log


def _read(stream: BinaryIO) -> bytes:
    """The next piece; empty at the end of the log, and where a packed one was cut or is damaged."""
    if not isinstance(stream, gzip.GzipFile):
        return stream.read(_PIECE_BYTES)
    try:
        # What comes before the damage is read, and so no more than it has at a time.
        return stream.read1(_PIECE_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b""


def _take(log: ReadLog, body: bytes, default_year: int) -> None:
    """Add the events of some lines; ``log.lines`` lines precede them."""
    if b"\x1b" in body:
        body = _COLOURS.sub(b"", body)
    kinds = Kinds(body)
    year = log.year or default_year
    _take_facts(log, body, kinds)
    flat = body.replace(b"\r", b"\n")
    worked, has_ended = _last_work(flat)
    if worked >= 0:
        log.has_ended = has_ended
        log.works = log.lines + 1 + body.count(b"\n", 0, worked)
        log.doubts.clear()
        log.signs = [one for one in log.signs if one.event.category != "timeout"]
    log.transport.take(body, log.lines + 1, kinds)
    log.tables.take(body, log.lines + 1, kinds)
    log.ranks.take(body, kinds)
    number, counted = log.lines + 1, 0
    telling = dict(kinds.telling((*ALL_HINTS, *GOES_ON)))
    # Signs are asked only where nothing is reported.
    signs = {} if log.trouble else dict(kinds.telling(ALL_SIGN_HINTS))
    for start, line in sorted((telling | signs).items()):
        number, counted = number + body.count(b"\n", counted, start), start
        kind = _kind_of(line)
        asked = [(find_in_line, log.trouble), (find_sign, log.signs)] if start in telling else [(find_sign, log.signs)]
        if kind in log.silent_kinds:
            asked = []
        if start >= worked:
            asked.append((find_doubt, log.doubts))
        text = line.decode(errors="replace") if asked else ""
        is_silent = True
        for find, into in asked:
            if len(into) <= MOST_EVENTS and (event := event_in_line(text, year, find)) is not None:
                is_silent = find is find_doubt
                # A time-out that the job survived was tried again.
                if start >= worked or event.category != "timeout" or find is not find_sign:
                    before = _time_before(flat, start, year) if event.time is None else None
                    into.append(LoggedEvent(event, log.name, number, before))
                break
        if is_silent and kind and len(log.silent_kinds) < _MOST_KINDS:
            log.silent_kinds.add(kind)
        if log.works and start > worked and speaks_of_trouble(text):
            log.works = 0
        if len(log.trouble) > MOST_EVENTS:
            return


def _take_facts(log: ReadLog, body: bytes, kinds: Kinds) -> None:
    """Add the facts about libraries and GPUs in some lines."""
    log.of_nccl = log.of_nccl or kinds.may_hold(b" NCCL INFO ", b" NCCL WARN ", b"NCCL version")
    log.of_amd = log.of_amd or kinds.may_hold(*_AMD)
    if kinds.may_hold(b"NCCL version"):
        log.versions |= {version.decode() for version in _VERSION.findall(body)}
    if log.lines < _HEAD_LINES:
        log.gpus |= {name.decode() for name in GPU_NAME.findall(body)}


def _kind_of(line: bytes) -> int:
    """A number that lines share which differ in identifiers and in numbers other than 0; 0 where numbers decide."""
    return 0 if _DECIDES.search(line) is not None else hash(_NUMBER.sub(b"1", IDENTIFIER.sub(b"", line)))


def _last_work(flat: bytes) -> tuple[int, bool]:
    """Where the last of some lines that shows work or a good end begins, -1 for none, and whether it is an end."""
    end = len(flat)
    for _ in range(_WORK_LINES):
        start = flat.rfind(b"\n", 0, max(end - 1, 0)) + 1
        text = flat[start : min(end, start + LONGEST_LINE)].decode(errors="replace")
        if (has_ended := shows_good_end(text)) or shows_work(text):
            return start, has_ended
        if (end := start) == 0:
            break
    return -1, False


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
