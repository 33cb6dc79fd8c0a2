"""commwatch diagnose --log: what the logs of a job say happened first, in plain words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from commwatch.errors import CommwatchError
from commwatch.lines import printable
from commwatch.views.terminal import print_json, print_lines

if TYPE_CHECKING:
    from commwatch.jobs.logs.reading import ReadLog
    from commwatch.jobs.logs.story import Chapter
    from commwatch.lines import Line

SCHEMA = "commwatch-log/1"
_SHOWN = 10
"""Incidents that are shown; JSON has all."""
_STYLES = {"network": "red", "gpu": "red", "nvlink": "red", "host": "red"}


class LogUnreadable(CommwatchError):
    """A log that was named cannot be read."""

    exit_code = 2


class LogRead(msgspec.Struct, frozen=True):
    """One log that was read."""

    name: str
    lines: int
    told: int
    """Lines that tell of trouble."""
    is_cut: bool
    """Whether the rest was not read, because so many lines tell of trouble."""


class LogIncident(msgspec.Struct, frozen=True):
    """Trouble that belongs together."""

    category: str
    """Of the likeliest cause; ``docs/nccl-logs.md`` has the list."""
    side: str
    """Where the cause is to be looked for."""
    certain: bool
    """False where the line only gives the status of a call that failed."""
    happened: str
    """As a sentence."""
    next_step: str
    file: str
    line: int
    text: str
    """The line that tells of the likeliest cause, shortened."""
    began: float | None
    """When that began, seconds since 1970 if the log's times are of UTC; None where it has no time."""
    hosts: tuple[str, ...]
    """Hosts that told of the likeliest cause; empty where the lines name none."""
    ranks: tuple[str, ...]
    """So for ranks."""
    silent_ranks: tuple[str, ...]
    """Where ranks gave up waiting: the few others up to the highest rank that did."""
    counts: dict[str, int]
    """Lines by category, the likeliest cause first."""


class LogAnswer(msgspec.Struct, frozen=True):
    """What the logs say."""

    schema: str
    logs: tuple[LogRead, ...]
    of_nccl: bool
    """Whether any line is NCCL's own."""
    incidents: tuple[LogIncident, ...]
    """The first one first."""


def run_log(names: Sequence[str], *, as_json: bool) -> int:
    """Read logs and print what they say.

    Args:
        names: files, folders, patterns, or ``-`` for the standard input.
        as_json: print JSON.

    Returns:
        The exit code: 0 where nothing tells of trouble, 1 where something does.

    Raises:
        LogUnreadable: a name cannot be read.
    """
    answer = answer_from(names)
    if as_json:
        print_json(answer)
    else:
        print_lines(log_lines(answer))
    return 1 if answer.incidents else 0


def answer_from(names: Sequence[str]) -> LogAnswer:
    """Read logs and find what happened.

    Raises:
        LogUnreadable: a name cannot be read.
    """
    from commwatch.jobs.logs.reading import read_logs
    from commwatch.jobs.logs.story import tell

    try:
        logs = read_logs(names)
    except OSError as error:
        raise LogUnreadable(f"{error.filename or 'the log'}: {error.strerror}; name logs that can be read") from error
    read = tuple(LogRead(printable(log.name), log.lines, len(log.told), log.is_cut) for log in logs)
    chapters = tell(log.told for log in logs)
    return LogAnswer(SCHEMA, read, _has_nccl(logs), tuple(_incident(chapter) for chapter in chapters))


def _has_nccl(logs: Iterable[ReadLog]) -> bool:
    return any(log.of_nccl for log in logs)


def _incident(chapter: Chapter) -> LogIncident:
    from commwatch.jobs.logs.rules import SIDES
    from commwatch.jobs.logs.words import WORDS

    culprit = chapter.culprit
    event, words = culprit.event, WORDS[culprit.event.category]
    ranks = chapter.ranks(event.category)
    return LogIncident(
        category=event.category,
        side=SIDES[event.category],
        certain=event.certain,
        happened=words.happened,
        next_step=words.next_step,
        file=printable(culprit.file),
        line=culprit.line,
        text=event.text,
        began=culprit.since if event.time is not None else None,
        hosts=chapter.hosts(event.category),
        ranks=ranks,
        silent_ranks=_silent(ranks) if event.category == "timeout" else (),
        counts={str(category): number for category, number in chapter.counts.items()},
    )


def _silent(ranks: Sequence[str]) -> tuple[str, ...]:
    """The ranks that did not tell, where most did."""
    told = {int(rank) for rank in ranks}
    silent = sorted(set(range(max(told, default=0) + 1)) - told) if len(told) > 1 and max(told) < 65536 else []
    return tuple(map(str, silent)) if 0 < len(silent) < len(told) else ()


def log_lines(answer: LogAnswer) -> Iterator[Line]:
    """The answer as text."""
    told = sum(log.told for log in answer.logs)
    lines = sum(log.lines for log in answer.logs)
    yield [(f"{_number(len(answer.logs), 'log')}, {_number(lines, 'line')}, {told:,} of them of trouble", "bold")]
    for log in answer.logs:
        if log.is_cut:
            yield [(f"{log.name}: read up to line {log.lines:,} only; so much of it is trouble", "")]
    if not answer.incidents:
        yield [("No errors found.", "green")]
        if not answer.of_nccl:
            yield [
                ("NCCL itself wrote nothing here: without NCCL_DEBUG=WARN it keeps even its warnings to itself.", "")
            ]
        return
    for number, incident in enumerate(answer.incidents[:_SHOWN], start=1):
        yield []
        yield from _incident_lines(number, incident)
    if len(answer.incidents) > _SHOWN:
        yield []
        yield [(f"{len(answer.incidents) - _SHOWN:,} more incidents came later; --json has them all", "")]


def _incident_lines(number: int, incident: LogIncident) -> Iterator[Line]:
    heading = "What happened first" if number == 1 else f"Later ({number})"
    when = "" if incident.began is None else f", {_when(incident.began)}"
    yield [(f"{heading}{when}: ", "bold"), (incident.happened, _STYLES.get(incident.side, ""))]
    yield [(f"  {_where(incident)}", "")]
    yield [(f"    {printable(incident.text)}", "dim")]
    if incident.silent_ranks:
        yield [(f"  ranks that do not tell of it: {', '.join(incident.silent_ranks)}", "")]
    others = [f"{name} {count:,}" for name, count in incident.counts.items() if name != incident.category]
    if others:
        yield [
            (f"  lines beside {incident.category} ({incident.counts[incident.category]:,}): {', '.join(others)}", "")
        ]
    if not incident.certain:
        yield [("  This line names no cause, and no other one does.", "")]
    yield [("  side: ", ""), (incident.side, _STYLES.get(incident.side, ""))]
    yield [(f"  next: {incident.next_step}", "")]


def _where(incident: LogIncident) -> str:
    parts = [f"{incident.file}:{incident.line}"]
    if incident.hosts:
        parts.append(printable(f"host {_few(incident.hosts)}"))
    if incident.ranks:
        parts.append(f"{'ranks' if len(incident.ranks) > 1 else 'rank'} {_few(incident.ranks)}")
    return ", ".join(parts)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:16])
    return shown if len(names) <= 16 else f"{shown} and {len(names) - 16} more"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
