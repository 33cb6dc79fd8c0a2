"""commwatch diagnose --log: what the logs of a job say happened first, in plain words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from commwatch.errors import ExitCode, UsageError
from commwatch.lines import printable
from commwatch.views.terminal import print_json, print_lines

if TYPE_CHECKING:
    from commwatch.jobs.logs.story import Chapter
    from commwatch.lines import Line

SCHEMA = "commwatch-log/1"
_SHOWN = 10
"""Incidents that are shown; JSON has all."""
_STILL_SECONDS = 600.0
"""A log that was written so recently may be of a job that goes on; torch gives up a call after as long."""
_STYLES = {"network": "red", "gpu": "red", "nvlink": "red", "host": "red"}


class LogRead(msgspec.Struct, frozen=True):
    """One log that was read."""

    name: str
    lines: int
    told: int
    """Lines that report trouble."""
    is_cut: bool
    """Whether the rest was not read, because so many lines report trouble."""


class LogIncident(msgspec.Struct, frozen=True):
    """Trouble that belongs together."""

    category: str
    """Of the likeliest cause; ``docs/using/nccl-logs.md`` has the list."""
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
    """The line with the likeliest cause, shortened."""
    began: float | None
    """When that began, seconds since 1970 if the log's times are of UTC; None where it has no time."""
    hosts: tuple[str, ...]
    """Hosts that reported the likeliest cause; empty where the lines name none."""
    ranks: tuple[str, ...]
    """So for ranks."""
    named: tuple[str, ...]
    """Hosts or addresses that these lines name as the other end, or as where a process ended."""
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
    versions: tuple[str, ...]
    """Of NCCL, as it writes them itself."""
    incidents: tuple[LogIncident, ...]
    """The first one first."""
    verdict: Literal["trouble", "clear", "unknown"]
    """``clear`` where a line shows that the job works, in a log that is still being written, or has ended well, and
    nothing after it speaks of trouble."""
    works: str
    """That line, as FILE:LINE; empty for none."""


def run_log(names: Sequence[str], *, as_json: bool) -> int:
    """Read logs and print what they say.

    Args:
        names: files, folders, patterns, or ``-`` for the standard input.
        as_json: print JSON.

    Returns:
        The exit code: 0 where the job is at work or has ended well, 1 where something reports trouble, 3 where
        nothing shows either.

    Raises:
        UsageError: a name cannot be read.
    """
    answer = answer_from(names)
    if as_json:
        print_json(answer)
    else:
        print_lines(log_lines(answer))
    return {"clear": ExitCode.OK, "trouble": ExitCode.FOUND, "unknown": ExitCode.NOT_KNOWN}[answer.verdict]


def answer_from(names: Sequence[str]) -> LogAnswer:
    """Read logs and find what happened.

    Raises:
        UsageError: a name cannot be read.
    """
    from commwatch.jobs.logs.reading import read_logs
    from commwatch.jobs.logs.story import tell

    try:
        logs = read_logs(names)
    except OSError as error:
        raise UsageError(f"{error.filename or 'the log'}: {error.strerror}; name logs that can be read") from error
    if not any(log.told for log in logs):
        is_signed = any(log.signs for log in logs)
        for log in logs:
            log.told = log.signs if is_signed else log.doubts
    read = tuple(LogRead(printable(log.name), log.lines, len(log.told), log.is_cut) for log in logs)
    of_amd = any(log.of_amd for log in logs)
    versions = tuple(sorted({version for log in logs for version in log.versions}))
    incidents = [_incident(chapter, of_amd) for chapter in tell(log.told for log in logs)]
    if incidents and len(versions) > 1 and incidents[0].side in {"symptom", "unknown"}:
        incidents[0] = _of_versions(incidents[0], len(versions))
    working = [log for log in logs if log.works]
    works = f"{printable(working[0].name)}:{working[0].works}" if working else ""
    is_clear = any(log.has_ended or log.silent < _STILL_SECONDS for log in working)
    verdict: Literal["trouble", "clear", "unknown"] = "trouble" if incidents else "clear" if is_clear else "unknown"
    return LogAnswer(SCHEMA, read, any(log.of_nccl for log in logs), versions, tuple(incidents), verdict, works)


def _of_versions(incident: LogIncident, number: int) -> LogIncident:
    """Trouble without a cause, in logs that several versions of NCCL wrote."""
    from commwatch.jobs.logs.categories import CATEGORIES

    version = CATEGORIES["version"]
    return msgspec.structs.replace(
        incident,
        category="version",
        side=version.side,
        certain=False,
        happened=version.happened,
        next_step=version.next_step,
        counts={"version": number} | incident.counts,
    )


def _incident(chapter: Chapter, of_amd: bool) -> LogIncident:
    from commwatch.jobs.logs.categories import AMD, CATEGORIES, UNKNOWN_END

    culprit = chapter.culprit
    event, about = culprit.event, CATEGORIES[culprit.event.category]
    if event.category in {"crash", "other"} and not event.certain:
        about = UNKNOWN_END
    elif event.category == "cuda" and of_amd:
        about = AMD
    ranks = chapter.ranks(event.category)
    return LogIncident(
        category=event.category,
        side=about.side,
        certain=event.certain,
        happened=about.happened,
        next_step=about.next_step,
        file=printable(culprit.file),
        line=culprit.line,
        text=event.text,
        began=culprit.since if event.time is not None else None,
        hosts=chapter.hosts(event.category),
        ranks=ranks,
        named=chapter.named(event.category),
        silent_ranks=_silent(ranks) if event.category == "timeout" else (),
        counts={str(category): number for category, number in chapter.counts.items()},
    )


def _silent(ranks: Sequence[str]) -> tuple[str, ...]:
    """The ranks that did not report, where most did."""
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
    if len(answer.versions) > 1:
        yield [
            (f"versions of NCCL that wrote here: {', '.join(answer.versions)}; all ranks need the same one", "yellow")
        ]
    if answer.verdict == "clear":
        yield [
            ("No errors found.", "green"),
            (f" {answer.works} shows work; nothing after it speaks of trouble.", ""),
        ]
    elif answer.verdict == "unknown":
        last = (
            f"{answer.works} shows work, but is old, and no line says how it ended"
            if answer.works
            else "none shows work"
        )
        yield [("Unknown: ", "yellow"), (f"no line reports trouble; {last}.", "")]
    if not answer.incidents:
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
        yield [(f"  ranks that do not report it: {', '.join(incident.silent_ranks)}", "")]
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
    if incident.named:
        parts.append(printable(f"names {_few(incident.named)}"))
    return ", ".join(parts)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:16])
    return shown if len(names) <= 16 else f"{shown} and {len(names) - 16} more"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
