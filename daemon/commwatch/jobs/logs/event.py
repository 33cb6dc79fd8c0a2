"""A line of a job's log that reports trouble, with its time, place and duration."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from dataclasses import dataclass

from commwatch.jobs.logs.categories import Category
from commwatch.jobs.logs.culprit import Finding
from commwatch.jobs.logs.lines import find_in_line, parse_line
from commwatch.jobs.logs.meanings import shortened

LONGEST_TEXT = 300
_LOOKED_AT = 1024
"""Characters of a line that are searched for time and rank."""

_ISO = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_GLOG = re.compile(r"\[[EWIF](\d{1,2}?)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9}) ")
"""Of torch: month and day without a mark between them, and no year."""
_RANKS = (
    re.compile(r"\[rank(\d{1,6})\]"),
    re.compile(r"\b[Rr]ank[ :]{1,8}(\d{1,6})\b"),
    re.compile(r"^(\d{1,6}): "),
)
_OF_GROUP = re.compile(r"\[PG (?:(?:ID \d{1,6} PG )?GUID |(?!ID|GUID))(?!0[ (])")
"""In lines in which torch counts a rank within a process group other than the one of all ranks, as in ``what():``."""
_NAMED = tuple(
    re.compile(rule, re.MULTILINE)
    for rule in (
        r"(?:from|remote|NET/Socket : )\s?peer ([\w.:%-]{1,255})<\d",
        r"[Cc]onnect(?:ing)? to ([\w.:%-]{1,255})<\d|\brecv from ([\w.:%-]{1,255})<\d",
        r"gloo/transport/.{0,200}?\[(\d[\d.]{6,15}|[\da-f:]{2,39})\]:\d",
        r"remote=\[(?:::ffff:)?([\w.:-]{1,255})\]:\d|connect to \[(?:::ffff:)?([\w.:-]{1,255})\]:\d",
        r"connect to \(([\w.:-]{1,255}), \d|to host ([\w.-]{1,255}):\d",
        r"failed to connect to ([\w.-]{1,255}):\d{1,5} \(errno",
        r"^\s{0,8}(?:host|ip) {0,8}: (\S{1,255})$|on node (\S{1,255}) exited on signal",
        r"srun: error: ([\w.-]{1,255}): tasks? |\*\*\* (?:JOB|STEP) \S{1,40} ON ([\w.-]{1,255}) ",
        r"and address: ([\w.:-]{1,255}) and node name|Node IP: ([\w.:-]{1,255}),",
        r"\(ID: \w{1,64}, IP: ([\w.:-]{1,255})\)",
        r"host=([\w.-]{1,255}) was not reachable via ssh|Command 'ssh .{0,100} ([\w.-]{1,255}) hostname'",
        r"\bipv4:([\d.]{7,15}):\d{1,5}: Failed to connect",
        r"^([\w.-]{1,255}): Test (?:CUDA|NCCL) failure |ssh: connect to host ([\w.:-]{1,255}) port \d",
        r"Remote (?:daemon|host) {0,8}:.{0,80}?([\w.-]{1,255})$|[Ff]ail(?:ed|ure) on (?:node )?([\w.-]{1,255})(?::|$)",
    )
)
"""The other end of a connection, or the place where a process ended, as named in a text."""
_HERE = frozenset({"localhost", "0.0.0.0", "127.0.0.1", "::1"})  # noqa: S104 - not bound to
_WORK = re.compile(
    r"(?:\[PG (?:ID \d{1,6} PG )?GUID ([^\s(\]]{1,64}).{0,160}?)?WorkNCCL\(SeqNum=(\d{1,12}), OpType=(\w{1,40})"
)
_HCA = re.compile(r"\bhca (\w{1,32})(?!\S)", re.ASCII)
"""Of completions with an error: the RDMA device of the writer."""
_WAITED = re.compile(r"ran for (\d{1,12}) milliseconds|wait timeout after (\d{1,12}) ?ms")


@dataclass(frozen=True, slots=True)
class LogEvent:
    category: Category
    certain: bool
    """False where the line only gives a status, which names no cause."""
    text: str
    """The line without the text before NCCL's message, shortened."""
    host: str = ""
    rank: str = ""
    time: float | None = None
    """Seconds since 1970 by the clock and zone of the writer; None where the line has no time."""
    waited: float | None = None
    """Seconds for which a call had been waiting, if a time-out names them."""
    hca: str = ""
    """RDMA device of the writer; empty where none is named."""
    named: str = ""
    """Host or address of the other end, or of the process that ended, where the text names it."""
    work: tuple[str, str, str] | None = None
    """Of a call that gave up: process group (empty where none is named), its number in it, and what was called. The
    group is that of the job (``PG GUID``): each process counts its own (``PG ID``)."""


_OWN = re.compile(r"""logger\\?": \\?"commwatch\.|\[commwatch\.""")
"""In lines of our own log, which quotes jobs: in a folder with those of jobs, each quotation would count as new."""


_OF_CONTAINER = re.compile(
    r"^(?:\[pod/\S{1,300}\] ?)?"
    r"(?:20\d\d-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) (?:std(?:err|out) [FP] )?)?",
    re.MULTILINE,
)
"""Text before each line in the log of a pod, and by ``kubectl logs --prefix --timestamps``: many rules are about how a
line begins."""


def event_in_line(line: str, year: int, find: Callable[[str], Finding | None] = find_in_line) -> LogEvent | None:
    """The event in a line of a job's log; None for a line without trouble.

    Args:
        line: of the log, without its end; see ``rules.GOES_ON``.
        year: of lines that name none.
    """
    written, line = line, _OF_CONTAINER.sub("", line)
    if (found := find(line)) is None:
        return None
    head = line[:_LOOKED_AT]
    if _OWN.search(head) is not None:
        return None
    rank = next((match[1] for rule in _RANKS if (match := rule.search(head)) is not None), "")
    if f"[rank{rank}]" not in head and _OF_GROUP.search(head) is not None:
        rank = ""
    time, waited = time_of(written[:_LOOKED_AT], year), _waited(head)
    named = next((one for rule in _NAMED for one in _groups(rule.search(head)) if one not in _HERE), "")
    if (parsed := parse_line(line)) is None:
        text = shortened(found.category, " ".join(head.split()), LONGEST_TEXT)
        work = _WORK.search(head)
        called = (work[1] or "", work[2], work[3]) if work is not None else None
        return LogEvent(found.category, found.certain, text, "", rank, time, waited, named=named, work=called)
    source = f"{parsed.source} " if parsed.source else ""
    text = f"{source}NCCL {parsed.level} {parsed.message}"[:LONGEST_TEXT]
    hca = _HCA.search(head)
    return LogEvent(
        found.category, found.certain, text, parsed.host, rank, time, waited, hca[1] if hca else "", named
    )  # fmt: skip


def time_of(line: str, year: int) -> float | None:
    """The time of a line: the first time in it, taken as if it were UTC; None without any.

    Args:
        year: of times that name none.
    """
    if (match := _ISO.search(line)) is not None:
        fields, fraction = [int(part) for part in match.groups()[:6]], match[7]
    elif (match := _GLOG.search(line)) is not None:
        fields, fraction = [year, *(int(part) for part in match.groups()[:5])], match[6]
    else:
        return None
    _, month, day, hour, minute, second = fields
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    return calendar.timegm((*fields, 0, 0, 0)) + float(f"0.{fraction or 0}")


def _waited(line: str) -> float | None:
    match = _WAITED.search(line)
    return None if match is None else int(match[1] or match[2]) / 1000


def _groups(match: re.Match[str] | None) -> tuple[str, ...]:
    return () if match is None else tuple(group for group in match.groups() if group)
