"""commwatch diagnose --log: the first event in the logs of a job, in plain words."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from commwatch.errors import ExitCode, UsageError
from commwatch.lines import printable
from commwatch.units import format_rate
from commwatch.views.terminal import progress, show

if TYPE_CHECKING:
    from commwatch.jobs.logs.reading import ReadLog
    from commwatch.jobs.logs.story import Chapter
    from commwatch.jobs.logs.transport import Slow
    from commwatch.lines import Line

SCHEMA = "commwatch-log/1"
_SHOWN = 10
"""Incidents that are shown; JSON has all."""
_STILL_SECONDS = 600.0
"""A log that was written so recently may be of a job that goes on; torch gives up a call after as long."""
_STYLES = {"network": "red", "gpu": "red", "nvlink": "red", "host": "red"}


class LogRead(msgspec.Struct, frozen=True):
    name: str
    lines: int
    told: int
    """Lines that report trouble."""
    is_cut: bool
    """Whether the rest was not read: too many lines report trouble, or the time was over."""


class LogPlace(msgspec.Struct, frozen=True):
    """A line of a log."""

    file: str
    line: int
    text: str
    """Shortened."""


class LogIncident(msgspec.Struct, frozen=True):
    """Trouble that belongs together."""

    category: str
    """Of the likeliest cause; ``docs/using/nccl-logs.md`` has the list."""
    side: str
    """The place to search for the cause."""
    certain: bool
    """False where the line only gives the status of a call that failed, or general words of a reason."""
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
    followed_by: tuple[str, ...] = ()
    """Events of the kernel log that came after the likeliest cause: ``Xid 74 of 0000:1b:00.0``."""
    beside: tuple[LogPlace, ...] = ()
    """Where the line names no cause: lines that may say more, such as the first of trouble and the last exception."""


class LogAnswer(msgspec.Struct, frozen=True):
    schema: str
    logs: tuple[LogRead, ...]
    of_nccl: bool
    """Whether any line is NCCL's own."""
    versions: tuple[str, ...]
    """Of NCCL, as it writes them itself."""
    incidents: tuple[LogIncident, ...]
    """The first one first."""
    verdict: Literal["trouble", "slow", "clear", "unknown"]
    """``clear`` where a line shows that the job works, in a log that is still being written, or has ended well, and
    nothing after it speaks of trouble; ``slow`` where it works, or did when an old log ends, and a line says why it is
    slower than it could be."""
    works: str
    """That line, as FILE:LINE; empty for none."""
    notes: tuple[str, ...] = ()
    """Facts about the transport beside the verdict, as sentences."""


def run_log(names: Sequence[str], *, as_json: bool) -> int:
    """Read logs and print what they say.

    Args:
        names: files, folders, patterns, or ``-`` for the standard input.

    Returns:
        The exit code: 0 where the job is at work or has ended well, 1 where something reports trouble or says why the
        job is slow, 3 where nothing shows either.

    Raises:
        UsageError: a name cannot be read.
    """
    with progress("reading the logs"):
        answer = answer_from(names)
    show(answer, log_lines(answer), as_json=as_json)
    codes = {
        "clear": ExitCode.OK, "slow": ExitCode.FOUND, "trouble": ExitCode.FOUND, "unknown": ExitCode.NOT_KNOWN,
    }  # fmt: skip
    return codes[answer.verdict]


def answer_from(names: Sequence[str]) -> LogAnswer:
    """Read logs and find what happened.

    Raises:
        UsageError: a name cannot be read.
    """
    from commwatch.jobs.logs.conditions import GEFORCE, conditioned, facts_of
    from commwatch.jobs.logs.reading import read_logs
    from commwatch.jobs.logs.story import chapters_of
    from commwatch.jobs.logs.transport import OVER_TCP

    try:
        logs = read_logs(names)
    except OSError as error:
        raise UsageError(f"{error.filename or 'the log'}: {error.strerror}; name logs that can be read") from error
    if not any(log.trouble for log in logs):
        is_signed = any(log.signs for log in logs)
        for log in logs:
            log.trouble = log.signs if is_signed else log.doubts
    read = tuple(LogRead(printable(log.name), log.lines, len(log.trouble), log.is_cut) for log in logs)
    of_amd = any(log.of_amd for log in logs)
    versions = tuple(sorted({version for log in logs for version in log.versions}))
    chapters = chapters_of(log.trouble for log in logs)
    incidents = [_incident(chapter, of_amd) for chapter in chapters]
    if incidents and (reason := _why_not_reached(incidents[0], logs)) is not None:
        incidents[0] = reason
    if incidents and len(versions) > 1 and incidents[0].side in {"symptom", "unknown"}:
        incidents[0] = _of_versions(incidents[0], len(versions))
    if incidents and incidents[0].side in {"symptom", "unknown"}:
        incidents[0] = _with_reason(incidents[0], logs) or _with_lines(incidents[0], chapters[0], logs)
    working = [log for log in logs if log.works]
    works = f"{printable(working[0].name)}:{working[0].works}" if working else ""
    is_whole = not any(log.is_cut for log in logs)
    is_clear = is_whole and any(log.has_ended or log.silent < _STILL_SECONDS for log in working)
    verdict: Literal["trouble", "slow", "clear", "unknown"]
    verdict = "trouble" if incidents else "clear" if is_clear else "unknown"
    facts = facts_of(versions, {name for log in logs for name in log.gpus})
    slow, notes = _slow(logs, bool(working), facts.gpu == GEFORCE)
    if (damaged := _damaged(logs)) is not None:
        verdict, incidents = "trouble", _with_damage([one for one in incidents if one.certain], damaged)
    elif slow is not None and working and all(set(one.counts) <= _OF_SET_UP for one in incidents):
        verdict, incidents = "slow", [slow]
        if is_whole and not is_clear:
            notes = (f"{works} shows work, but is old, and no line says how it ended.", *notes)
    elif slow is not None:
        notes = (*notes, f"{slow.happened} {slow.next_step}")
    elif verdict == "clear" and OVER_TCP in notes:
        verdict = "unknown"
    incidents = [
        msgspec.structs.replace(
            one, next_step=conditioned(one.next_step, one.category, f"{one.text} {one.happened}", facts)
        )
        for one in incidents
    ]  # fmt: skip
    of_nccl = any(log.of_nccl for log in logs)
    return LogAnswer(SCHEMA, read, of_nccl, versions, tuple(incidents), verdict, works, notes)


def _why_not_reached(incident: LogIncident, logs: Sequence[ReadLog]) -> LogIncident | None:
    """An incident that failed while it connected, with the reason that another line gives; None without one."""
    from commwatch.jobs.logs.meanings import GLOO_LOOPBACK, about_line, calls_loopback

    if incident.category in {"timeout", "socket"} and calls_loopback(incident.text):
        for log in logs:
            if (found := log.transport.seen.get("loopback")) is not None:
                return msgspec.structs.replace(
                    incident, category="socket", side=GLOO_LOOPBACK.side, certain=True,
                    happened=GLOO_LOOPBACK.happened, next_step=GLOO_LOOPBACK.next_step, file=printable(log.name),
                    line=found.number, text=found.text.strip(), counts={"socket": 1} | incident.counts,
                )  # fmt: skip
    if incident.category != "timeout" or " connect" not in incident.text:
        return None
    for log in logs:
        for sign in log.signs:
            is_before = printable(sign.file) != incident.file or sign.line < incident.line
            about = about_line("socket", sign.event.text) if sign.event.category == "socket" and is_before else None
            if about is not None:
                return msgspec.structs.replace(
                    incident, category="socket", side=about.side, happened=about.happened, next_step=about.next_step,
                    file=printable(sign.file), line=sign.line, text=sign.event.text,
                    named=incident.named or ((sign.event.named,) if sign.event.named else ()),
                    counts={"socket": 1} | incident.counts,
                )  # fmt: skip
    return None


def _with_reason(incident: LogIncident, logs: Sequence[ReadLog]) -> LogIncident | None:
    """An end without a cause, with the general words of one that a line near it has; None without any."""
    from commwatch.jobs.logs.categories import EXCEPTION, UNKNOWN_END
    from commwatch.jobs.logs.meanings import FULL, PORT_TAKEN
    from commwatch.jobs.logs.reasons import reason_in

    if incident.happened not in {EXCEPTION.happened, UNKNOWN_END.happened}:
        return None
    near = range(incident.line - _NEAR_LINES, incident.line + _NEAR_LINES)
    every = (one for log in logs for one in (*log.trouble, *log.signs, *log.doubts))
    of_file = [one for one in every if one.line in near and printable(one.file) == incident.file]
    for one in sorted(of_file, key=lambda one: one.line):
        if (about := reason_in(one.event.text)) is not None:
            return msgspec.structs.replace(
                incident, side=about.side, happened=about.happened, next_step=about.next_step,
                certain=about in (PORT_TAKEN, FULL), line=one.line, text=one.event.text,
            )  # fmt: skip
    return None


_NEAR_LINES = 50
"""Lines around an end without a cause that are searched for general words of one."""


def _with_lines(incident: LogIncident, chapter: Chapter, logs: Sequence[ReadLog]) -> LogIncident:
    """An incident without a cause, with the lines that may say more, and the way to NCCL's own words."""
    from commwatch.jobs.logs.story import first_rank, lines_beside

    lines = [[*log.trouble, *log.signs, *log.doubts] for log in logs]
    beside = tuple(
        LogPlace(printable(one.file), one.line, one.event.text) for one in lines_beside(chapter.culprit, lines)
    )
    is_silent = not any("NCCL WARN" in one.event.text for log in lines for one in log)
    of_job = any(log.of_nccl for log in logs) or any(
        _OF_JOB.search(text) for text in (incident.text, *(one.text for one in beside))
    )
    step = incident.next_step
    if incident.side == "unknown" and (rank := first_rank(lines)):
        step += f" Rank {rank} wrote the first line of trouble."
    if incident.side == "unknown" and is_silent and of_job and "NCCL_DEBUG" not in step:
        step += " NCCL wrote no warning here: NCCL_DEBUG=WARN makes it name what fails in it."
    return msgspec.structs.replace(incident, next_step=step, beside=beside)


_OF_JOB = re.compile(r"(?i)nccl|torch|c10d|\brank|jax|xla|vllm|sglang|deepspeed|horovod|collective")
"""Words of processes that use NCCL."""


def _with_damage(incidents: list[LogIncident], damaged: LogIncident) -> list[LogIncident]:
    """Wrong values in their place: what the hardware reported in the same log before them may be why."""
    before = [
        one for one in incidents if one.file == damaged.file and one.line < damaged.line and one.side in _HARDWARE
    ]
    return [*before, damaged, *(one for one in incidents if one not in before)]


_HARDWARE = frozenset({"gpu", "nvlink", "host"})
_OF_SET_UP = frozenset({"ib_setup"})
"""Warnings that a job survives which goes on over another transport."""


def _slow(logs: Sequence[ReadLog], works: bool, has_geforce: bool) -> tuple[LogIncident | None, tuple[str, ...]]:
    """Why a job that works is slow, None where nothing says so; and notes on its transport."""
    from commwatch.jobs.logs.differing import differing_notes
    from commwatch.jobs.logs.transport import Transport

    transport = Transport([log.transport for log in logs], has_geforce)
    notes = tuple(_torn(log) for log in logs if log.tables.torn_at is not None and log.silent >= _STILL_SECONDS)
    if not works:
        notes = (*notes, *differing_notes([log.ranks for log in logs]))
    if not works and not transport.is_set_up:
        return None, notes if any(log.trouble for log in logs) else (*notes, *transport.notes())
    if (found := transport.slow()) is not None:
        return _of_lines(logs[found[0]], found[1]), notes
    for log in logs:
        falling = log.tables.falling(transport.is_over_rdma, transport.is_between_nodes)
        low = falling or _below_published(log) or log.tables.low_between_nodes()
        if low is not None:
            return _of_lines(log, low), notes
    return None, (*notes, *transport.notes())


def _below_published(log: ReadLog) -> Slow | None:
    """An all_reduce on one node of SXM boards that gives less than published of such nodes; None for every other."""
    from commwatch.jobs.logs.categories import About
    from commwatch.jobs.logs.transport import Slow
    from commwatch.probes.results.published import published

    table = log.tables.all_reduce_on_one_node
    if table is None or any(word in table.gpu for word in _NO_SXM):
        return None
    known = published(table.gpu, table.ranks, table.size_bytes)
    if known is None or table.bus_bandwidth >= _LOW_SHARE * known[0]:
        return None
    happened = (
        f"The bus bandwidth is {format_rate(table.bus_bandwidth)} at {table.size_bytes:,} bytes, where "
        f"{format_rate(known[0])} were published for {table.ranks} GPUs of this name ({known[1]})."
    )
    return Slow("other", About("unknown", happened, _FIND_SLOW), table.line)


_LOW_SHARE = 0.85
"""Of a published bandwidth, below which a node is slow; as for probes of the daemon."""
_NO_SXM = ("PCIe", "PCIE", "NVL")
"""In names of GPUs that are not joined by NVSwitches; what is published is of those that are."""
_FIND_SLOW = (
    "Run commwatch diagnose on the node, which names GPUs and links with faults, and commwatch probe --pairs on free "
    "GPUs, which finds a slow one. On Hopper and newer see that NCCL uses NVLS (NVLS multicast support is available)."
)


def _torn(log: ReadLog) -> str:
    return (
        f"{printable(log.name)}: the table of nccl-tests breaks off after the row of {log.tables.torn_at:,} bytes; "
        "what stopped it is not in this log."
    )


def _damaged(logs: Sequence[ReadLog]) -> LogIncident | None:
    """Wrong results of nccl-tests, or a test that measured nothing; None without any."""
    found = ((log, log.tables.damaged() or log.tables.alone()) for log in logs)
    return next((_of_lines(log, one) for log, one in found if one is not None), None)


def _of_lines(log: ReadLog, found: Slow) -> LogIncident:
    from commwatch.jobs.logs.event import LONGEST_TEXT

    return LogIncident(
        category=found.category,
        side=found.about.side,
        certain=True,
        happened=found.about.happened,
        next_step=found.about.next_step,
        file=printable(log.name),
        line=found.line.number,
        text=found.line.text.strip()[:LONGEST_TEXT],
        began=None,
        hosts=(),
        ranks=(),
        named=(),
        silent_ranks=(),
        counts={found.category: 1},
    )


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


_OF_NVIDIA = ("CUDA error", "Cuda failure")
"""In errors of torch and NCCL on NVIDIA's GPUs; on AMD's they say HIP."""


def _incident(chapter: Chapter, of_amd: bool) -> LogIncident:
    from commwatch.jobs.logs.categories import AMD, CATEGORIES, EXCEPTION, UNKNOWN_END, About
    from commwatch.jobs.logs.meanings import about_line, report_in
    from commwatch.jobs.logs.story import EXCEPTION_LINE

    culprit = chapter.culprit
    event = culprit.event
    # A CPU with graphics writes lines of amdgpu, and programs for both name ROCm: what a line itself says comes first.
    of_amd = of_amd and report_in(event.text) is None and not any(word in event.text for word in _OF_NVIDIA)
    said = about_line(event.category, event.text, of_amd and event.category == "cuda")
    if said is not None:
        about = said
    elif event.category in {"crash", "other"} and not event.certain:
        about = EXCEPTION if EXCEPTION_LINE.search(event.text) else UNKNOWN_END
    elif event.category == "cuda" and of_amd:
        about = AMD
    else:
        about = CATEGORIES[event.category]
    if about is CATEGORIES["crash"] and (raised := _RAISED.search(event.text)) is not None:
        about = About("program", f"The program ended with {raised[0].strip().rstrip('.')}.", _READ_TRACEBACK)
    ranks = chapter.ranks(event.category)
    return LogIncident(
        category=event.category,
        side=about.side,
        certain=event.certain or said is not None,
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
        followed_by=chapter.kernel_events_after(culprit),
    )


_RAISED = re.compile(r"\b[A-Z]\w{2,40}Error(?:: .{1,160})?")
_READ_TRACEBACK = (
    "Read the traceback above this line: its last entry in code of the job is the place, and the words of the error "
    "show whether program, data or node is why. Other processes lost this one."
)


def _silent(ranks: Sequence[str]) -> tuple[str, ...]:
    """The ranks that did not report, where most did."""
    told = {int(rank) for rank in ranks}
    silent = sorted(set(range(max(told, default=0) + 1)) - told) if len(told) > 1 and max(told) < 65536 else []
    return tuple(map(str, silent)) if 0 < len(silent) < len(told) else ()


def log_lines(answer: LogAnswer) -> Iterator[Line]:
    from commwatch.jobs.logs.reading import MOST_EVENTS

    told = sum(log.told for log in answer.logs)
    lines = sum(log.lines for log in answer.logs)
    yield [(f"{_number(len(answer.logs), 'log')}, {_number(lines, 'line')}, {told:,} of them of trouble", "bold")]
    cut = [log for log in answer.logs if log.is_cut]
    for log in cut[:_SHOWN]:
        why = "so much of it is trouble" if log.told >= MOST_EVENTS else "the time for reading was over"
        yield [(f"{log.name}: read up to line {log.lines:,} only; {why}", "")]
    if len(cut) > _SHOWN:
        yield [(f"{_number(len(cut) - _SHOWN, 'more log')} not read to the end", "")]
    if len(answer.versions) > 1:
        yield [
            (f"versions of NCCL that wrote here: {', '.join(answer.versions)}; all ranks need the same one", "yellow")
        ]
    if answer.verdict == "clear":
        yield [
            ("No errors found.", "green"),
            (f" {answer.works} shows work; nothing after it speaks of trouble.", ""),
        ]
    elif answer.verdict == "slow":
        yield [("The job shows work, but is slow.", "yellow")]
    elif answer.verdict == "unknown":
        yield [("Unknown: ", "yellow"), (f"no line reports trouble; {_what_works(answer)}.", "")]
    for note in answer.notes:
        yield [(note, "")]
    if not answer.incidents:
        if not answer.of_nccl:
            yield [
                ("NCCL itself wrote nothing here: without NCCL_DEBUG=WARN it keeps even its warnings to itself.", "")
            ]
        return
    for number, incident in enumerate(answer.incidents[:_SHOWN], start=1):
        yield []
        yield from _incident_lines(number, incident, "Why" if answer.verdict == "slow" else "What happened first")
    if len(answer.incidents) > _SHOWN:
        yield []
        yield [(f"{len(answer.incidents) - _SHOWN:,} more incidents came later; --json has them all", "")]


def _what_works(answer: LogAnswer) -> str:
    """The known facts about the job's work, for an unknown answer."""
    from commwatch.jobs.logs.transport import OVER_TCP

    if not answer.works:
        return "none shows work"
    if OVER_TCP in answer.notes:
        return f"{answer.works} shows work, and no line says whether it is slow"
    if any(log.is_cut for log in answer.logs):
        return f"{answer.works} shows work, but not all was read"
    return f"{answer.works} shows work, but is old, and no line says how it ended"


def _incident_lines(number: int, incident: LogIncident, first: str) -> Iterator[Line]:
    heading = first if number == 1 else f"Later ({number})"
    when = "" if incident.began is None else f", {_when(incident.began)}"
    yield [(f"{heading}{when}: ", "bold"), (incident.happened, _STYLES.get(incident.side, ""))]
    yield [(f"  {_where(incident)}", "")]
    yield [(f"    {printable(incident.text)}", "dim")]
    for one in incident.beside:
        yield [(f"  see also {one.file}:{one.line}", "")]
        yield [(f"    {printable(one.text)}", "dim")]
    if incident.followed_by:
        yield [(f"  followed by: {', '.join(incident.followed_by)}", "")]
    if incident.silent_ranks:
        yield [(f"  ranks that do not report it: {', '.join(incident.silent_ranks)}", "")]
    others = [f"{name} {count:,}" for name, count in incident.counts.items() if name != incident.category]
    if others:
        yield [
            (f"  lines beside {incident.category} ({incident.counts[incident.category]:,}): {', '.join(others)}", "")
        ]
    if not incident.certain:
        yield [("  No line names the cause for certain.", "")]
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
