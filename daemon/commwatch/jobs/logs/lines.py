"""Messages of NCCL and torch about their own trouble: lines are parsed, warnings classified, the first culprit found.

Sources: NCCL 2.3 to 2.32 (``src/debug.cc`` for the shape of a line, the WARN calls for the texts) and torch's
ProcessGroupNCCL. Lines are searched, never anchored, since launchers put their own text before them. Each line costs a
bounded amount of work, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from commwatch.jobs.logs.categories import Category
from commwatch.jobs.logs.culprit import Finding
from commwatch.jobs.logs.kinds import Kinds
from commwatch.jobs.logs.meanings import category_of_report, refined, report_in
from commwatch.jobs.logs.messages import MESSAGES_SAID, SAID_HINTS, SIGN_SAID_HINTS, SIGNS_SAID, Message
from commwatch.jobs.logs.rules import (
    BEGINS,
    CALM,
    COMPLETIONS,
    CONTEXT,
    DOUBTS,
    ENDED_WELL,
    FAILED_CALL,
    HARMLESS,
    HINTS,
    MESSAGES,
    SIGN_HINTS,
    SIGNS,
    TORCH,
    VAGUE,
    WAITING,
    WORK,
)

ALL_HINTS = (*HINTS, *SAID_HINTS)
"""A line in which ``find_in_line`` finds something holds one of these."""
ALL_SIGN_HINTS = (*SIGN_HINTS, *SIGN_SAID_HINTS)
"""So for ``find_sign`` and ``find_doubt``."""


_LONGEST_LINE = 4096
_LONGEST_PREFIX = 512
_LONGEST_MESSAGE = 1024
_MOST_LINES = 400
_LOOKED_AT = 1024
"""Characters of a line that are searched for words of work and of trouble."""

_MARK = re.compile(r"NCCL (WARN|INFO|DIAG|TRACE|CALL) ")
_PREFIX = re.compile(
    r"(?:\[[\d:. T-]{8,32}\] )?(?!\d{1,20}:)(?P<host>[^\s:\[\]()<>,=/]{1,255})"
    r":\d{1,10}(?::(?P<tid>\d{1,10}))?"
    r"(?: \[(?P<device>-?\d{1,10})\])?(?: (?P<source>[^\s:]{1,128}:\d{1,6}))?(?: \((?P<function>[^)]{0,128})\))? $"
)
_SOURCE = re.compile(r"(?:^|\s)(?P<source>[^\s:()]{1,128}:\d{1,6})(?: \([^)]{0,128}\))? $")
_LAST_ERROR = re.compile(
    r"(?:Last error:[\s]{0,80}(?:\[[\w|]{1,40}\]:|\S{1,80}: )?\s{0,80}|"
    r"Last NCCL warning\(error\)(?: log entry \(may be unrelated\))?:? {0,8}')(.{1,1024})"
)
"""NCCL's last warning as torch and XLA write it."""
_COMPLETION = re.compile(r"(?:Got completion|CQE) .{0,200}?(?:error|status)[ =](?:\w{1,40}\(|\(\w{1,40}\))?(\d{1,3})\b")
_SETTING = re.compile(
    r"^(?:NET/\w{1,24} ?: )?(NCCL_[A-Z0-9_]{1,64}) set (?:by environment to (\S.{0,511})|to (\S{1,511}))$"
)
_CHANNEL = re.compile(
    r"(?:Channel|Ring) \d{1,4}(?:/\d{1,4})? : \S{1,40} -> \S{1,40}(?: \[(send|receive)\])?"
    r" via (\S{1,120}(?: shared memory)?)"
)


class LogLine(NamedTuple):
    """A line of NCCL's log, parsed. Fields that a version does not write are empty."""

    level: str
    """WARN, INFO, DIAG, TRACE or CALL."""
    message: str
    host: str = ""
    source: str = ""
    """File and line in NCCL, ``transport/net_ib.cc:2453``."""


def parse_line(line: str) -> LogLine | None:
    """A line of any version since 2.4; None for a line that is not NCCL's."""
    line = line[:_LONGEST_LINE]
    # Where processes share an output their lines run into each other: a warning is worth more than what is around it.
    at = line.find("NCCL WARN ")
    mark = _MARK.search(line, max(at, 0))
    if mark is None:
        return None
    message = line[mark.end() : mark.end() + _LONGEST_MESSAGE].rstrip()
    prefix = _PREFIX.search(line[max(0, mark.start() - _LONGEST_PREFIX) : mark.start()])
    if prefix is None or (mark[1] == "WARN" and prefix["tid"] is None and prefix["device"] is None):
        # Without a process before it: NCCL's file and line, or the function of a plugin.
        source = _SOURCE.search(line[max(0, mark.start() - _LONGEST_PREFIX) : mark.start()])
        return LogLine(mark[1], message, source=source["source"] if source is not None else "")
    return LogLine(mark[1], message, prefix["host"], prefix["source"] or "")


def find_in_line(line: str) -> Finding | None:
    """The category of a line of a job's log: a warning of NCCL, or a message of torch, a launcher or the kernel; else
    None.

    The line after ``Last error:`` belongs to it: it is NCCL's last warning without its prefix.
    """
    if (parsed := parse_line(line)) is None:
        line = line[:_LONGEST_LINE]
        if (report := report_in(line)) is not None:
            of_kernel = category_of_report(report)
            return None if of_kernel is None else Finding(of_kernel)
        found = _last_error(line) or _by_messages(MESSAGES_SAID, True, line) or _by_table(TORCH, line)
        if found is None or found.category != "limit" or "Evicted" in line:
            return found
        # A limit that the program itself calls no error was met and waited for.
        return None if CALM.search(line) is not None else found
    return find_in_warning(parsed) if parsed.level == "WARN" else None


def find_sign(line: str) -> Finding | None:
    """Whether a line is a sign that a job ended or never began; see ``rules.SIGNS``."""
    if parse_line(line) is not None or WAITING.search(line[:_LOOKED_AT]) is not None:
        return None
    line = line[:_LONGEST_LINE]
    return _by_messages(SIGNS_SAID, False, line) or _by_table(SIGNS, line)


def find_doubt(line: str) -> Finding | None:
    """Trouble in a line whose level does not mark it as harmless, or waiting; else None."""
    line = line[:_LOOKED_AT]
    if WAITING.search(line) is not None:
        return Finding("waiting", False)
    is_calm = CALM.search(line) is not None and FAILED_CALL.search(line) is None
    return None if is_calm or not speaks_of_trouble(line) else Finding("other", False)


def speaks_of_trouble(line: str) -> bool:
    """Whether a line has any word of failing or ending that is not known to be harmless."""
    line = line[:_LOOKED_AT]
    small = line.lower()
    found = any(stem in small and rule.search(line) for stem, rule in DOUBTS.items()) or FAILED_CALL.search(line)
    return bool(found) and HARMLESS.search(line) is None


def shows_work(line: str) -> bool:
    """Whether only a job writes such a line that is at work."""
    line = line[:_LOOKED_AT]
    return WORK.search(line) is not None and BEGINS.search(line) is None and not speaks_of_trouble(line)


def shows_good_end(line: str) -> bool:
    """Whether a line shows that the job has ended well."""
    line = line[:_LOOKED_AT]
    return ENDED_WELL.search(line) is not None and not speaks_of_trouble(line)


def _last_error(line: str) -> Finding | None:
    if "Last " not in line or (found := _LAST_ERROR.search(line)) is None or HARMLESS.search(found[1]):
        return None
    category = _category_of_message(found[1])
    # Without NCCL's file and line a failure of CUDA may be one of multicast or peer access: see ``CONTEXT``.
    return None if category is None else Finding(category, category != "cuda")


def telling_lines(data: bytes) -> list[tuple[int, bytes]]:
    """The lines of a piece of a log that ``find_in_line`` may find something in; see ``Kinds.telling``."""
    return Kinds(data).telling(ALL_HINTS)


def find_in_warning(warning: LogLine) -> Finding | None:
    """The category of a warning; ``other`` if no rule knows it, None if it is known to be harmless."""
    if HARMLESS.search(warning.message) is not None:
        return None
    # The same CUDA error means something else where NCCL was setting up multicast or peer access.
    for source, text, category in CONTEXT:
        if source in warning.source and text in warning.message:
            return Finding(category)
    return Finding(_category_of_message(warning.message) or "other", VAGUE.search(warning.message) is None)


def find_in_text(text: str) -> Iterator[Finding]:
    """The categories in the text of an error, line by line.

    An error of NCCL carries its last warning without the prefix of a log line, so every line is treated as NCCL's, and
    may hold a status and a warning.
    """
    for line in text[: _LONGEST_LINE * 16].splitlines()[:_MOST_LINES]:
        if (finding := find_in_line(line)) is not None:
            yield finding
        if parse_line(line) is None and (category := _category_of_message(line[:_LONGEST_MESSAGE])) is not None:
            yield Finding(category)


def _category_of_message(message: str) -> Category | None:
    if (completion := _COMPLETION.search(message)) is not None:
        return COMPLETIONS.get(int(completion[1]), "ib_other")
    return next((refined(category, message) for category, rule in MESSAGES if rule.search(message)), None)


def _by_messages(table: Iterable[Message], certain: bool, line: str) -> Finding | None:
    return next((Finding(one.of, certain) for one in table if one.hint in line and one.says.search(line)), None)


def _by_table(table: Iterable[tuple[Category, bool, re.Pattern[str]]], line: str) -> Finding | None:
    found = next(((category, certain) for category, certain, rule in table if rule.search(line)), None)
    return None if found is None else Finding(refined(found[0], line), found[1])


def setting_of(message: str) -> tuple[str, str] | None:
    """Name and value of an ``NCCL_*`` setting that a message says to be in force; None for all other messages.

    NCCL puts what it reads in its configuration files into the environment, so these are written in the same words.
    """
    if (found := _SETTING.match(message)) is None:
        return None
    name, value = found[1], (found[2] or found[3]).rstrip()
    # Numbers are followed by a full stop, texts are not.
    return name, value[:-1] if value.endswith(".") and value[:-1].lstrip("-").isdigit() else value


def transport_of(message: str) -> str | None:
    """Transport of a channel that a message names: ``P2P/CUMEM``, ``SHM``, ``NET/IB/GDRDMA``; else None.

    Of a connection over the network both ends write a line; that of the receiver counts for nothing.
    """
    if (found := _CHANNEL.search(message)) is None or found[1] == "receive":
        return None
    if found[2] == "direct shared memory":
        return "SHM"
    kind, _, rest = found[2].partition("/")
    if kind == "SHM" or not rest:
        return _name(kind)
    parts = rest.split("/")
    if kind == "NET" and any(part.startswith("GDRDMA") for part in parts):
        return f"NET/{_name(parts[0])}/GDRDMA"
    return f"{_name(kind)}/{_name(parts[0])}"


def _name(text: str) -> str:
    return re.sub(r"[^\w.-]", "", text)[:24]
