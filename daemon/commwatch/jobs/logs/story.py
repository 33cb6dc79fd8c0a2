"""The order of events in the logs of a job: its trouble by the minute, with the likeliest cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from commwatch.jobs.logs.categories import SEVERED, SIDES, Category
from commwatch.jobs.logs.culprit import INCIDENT_SECONDS, Finding, first_culprit
from commwatch.jobs.logs.event import LogEvent
from commwatch.jobs.logs.meanings import name_of_report, report_in

_MOST_EVENTS = 5
"""Events of the kernel log that are named after a cause."""


_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_CHAINED = re.compile(r"During handling of the above exception|the direct cause of the following exception")
EXCEPTION_LINE = re.compile(r"(?:^|[\s.\]:])\w{0,60}(?:Error|Exception|Interrupt|Exit)(?::|$)")
"""A line that names the exception that ends a traceback."""


_HEADING = re.compile(
    r"Traceback \(most recent|Process received signal|Signal(?: code)?: |\bframe #|Root Cause|ChildFailedError: ?$|"
    r"During handling of the above|the direct cause of|^nccl[A-Z]\w{1,40}: "
)
"""Lines of an error that only introduce others."""

_EXCHANGES = frozenset({"SEND", "RECV"})
"""As torch names a send and a receive."""
_REMOVAL = "45"
"""The Xid by which the driver takes work off a GPU after another error, or since its program ended."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event of a log, and its place."""

    event: LogEvent
    file: str
    line: int
    """Number of the line, from 1."""
    before: float | None = None
    """Time of a line before it, for one that has no time of its own."""

    @property
    def time(self) -> float | None:
        """Time of writing, or a time shortly before; seconds since 1970 by the writer's clock."""
        return self.event.time if self.event.time is not None else self.before

    @property
    def since(self) -> float | None:
        """When it began: a call that gave up began to wait long before."""
        return None if self.time is None else self.time - (self.event.waited or 0.0)

    @property
    def is_symptom(self) -> bool:
        """Whether it follows from something else."""
        return SIDES[self.event.category] == "symptom"


class Chapter:
    """Trouble that belongs together."""

    def __init__(self) -> None:
        self.events: list[LoggedEvent] = []
        """In the order in which it began."""
        self._began: float | None = None
        self._ended: float | None = None
        self._gave_up: float | None = None
        """When the first call gave up that had waited."""
        self._only_symptoms = True

    def add(self, one: LoggedEvent) -> None:
        """Take in a report; see ``takes``."""
        self.events.append(one)
        self._only_symptoms = self._only_symptoms and one.is_symptom
        since, time = one.since, one.time
        if since is not None and time is not None:
            self._began = since if self._began is None else min(since, self._began)
            self._ended = time if self._ended is None else max(time, self._ended)
            if one.event.waited:
                self._gave_up = time if self._gave_up is None else min(time, self._gave_up)

    def takes(self, one: LoggedEvent) -> bool:
        """Whether a report belongs to this chapter."""
        since = one.since
        if since is None or self._began is None or self._ended is None:
            return True
        if abs(since - self._began) < INCIDENT_SECONDS:
            return True
        if self._follows(one):
            return since - self._ended < INCIDENT_SECONDS
        # What came while calls were waiting may be why; and where calls give up one after another, it goes on.
        return (one.is_symptom or self._only_symptoms) and 0 <= since - self._began < self._length + INCIDENT_SECONDS

    @property
    def _length(self) -> float:
        """Seconds from the first beginning to the last line."""
        return (self._ended or 0.0) - (self._began or 0.0)

    @property
    def culprit(self) -> LoggedEvent:
        """The first line with the likeliest cause.

        Raises:
            ValueError: nothing is reported.
        """
        causes = [one for one in self.events if not self._follows(one)]
        causes = [one for one in causes if not _is_removal(one)] or causes
        category = first_culprit(Finding(one.event.category, one.event.certain) for one in causes)
        if category is None:
            raise ValueError("a chapter without a line")
        of_it = [one for one in causes if one.event.category == category]
        found = next((one for one in of_it if one.event.certain), self._end_of_chain(of_it[0]))
        if category != "cuda":
            return found
        # The kernel names the fault of which a call of CUDA then fails.
        return next((one for one in causes[: causes.index(found)] if report_in(one.event.text) is not None), found)

    def _end_of_chain(self, first: LoggedEvent) -> LoggedEvent:
        """The last exception of the chain that a traceback begins: Python prints the error that ends it last."""
        if _TRACEBACK.search(first.event.text) is None:
            return first
        last, is_open = first, True
        for one in self.events[self.events.index(first) + 1 :]:
            text = one.event.text
            if (one.file, one.event.rank) != (first.file, first.event.rank):
                continue
            if _CHAINED.search(text) is not None:
                is_open = True
            elif _TRACEBACK.search(text) is not None:
                if not is_open:
                    break
            elif is_open and EXCEPTION_LINE.search(text) is not None:
                last, is_open = one, False
        return last

    def _follows(self, one: LoggedEvent) -> bool:
        """Whether a connection broke because processes that had waited in vain were being ended."""
        if self._gave_up is None or one.since is None or one.event.category not in SEVERED:
            return False
        return one.since >= self._gave_up

    def kernel_events_after(self, cause: LoggedEvent) -> tuple[str, ...]:
        """The events of the kernel log that came after a line, each once: ``Xid 74 of 0000:1b:00.0``."""
        own = report_in(cause.event.text)
        reports = [report_in(one.event.text) for one in self.events[self.events.index(cause) + 1 :]]
        names = dict.fromkeys(name_of_report(one) for one in reports if one is not None)
        if own is not None:
            names.pop(name_of_report(own), None)
        return tuple(names)[:_MOST_EVENTS]

    @property
    def counts(self) -> dict[Category, int]:
        """Lines by category, the likeliest cause first, then by number."""
        numbers: dict[Category, int] = {}
        for one in self.events:
            numbers[one.event.category] = numbers.get(one.event.category, 0) + 1
        culprit = self.culprit.event.category
        return dict(sorted(numbers.items(), key=lambda item: (item[0] != culprit, -item[1], item[0])))

    def ranks(self, category: Category) -> tuple[str, ...]:
        """Ranks that reported a category, in the order of their numbers; empty where no line names one."""
        found = {one.event.rank for one in self.events if one.event.category == category and one.event.rank}
        return tuple(sorted(found, key=int))

    def hosts(self, category: Category) -> tuple[str, ...]:
        """Hosts that reported a category, by name."""
        return tuple(
            sorted({one.event.host for one in self.events if one.event.category == category and one.event.host})
        )

    def named(self, category: Category) -> tuple[str, ...]:
        """Hosts and addresses that lines of a category name, the first one first."""
        found = (one.event.named for one in self.events if one.event.category == category)
        return tuple(dict.fromkeys(name for name in found if name))


def _is_removal(one: LoggedEvent) -> bool:
    report = report_in(one.event.text)
    return report is not None and (report.kind, report.code) == ("xid", _REMOVAL)


def _in_order(logs: Iterable[Iterable[LoggedEvent]]) -> list[LoggedEvent]:
    """Lines by time where all have one, else as in their files."""
    every = [one for log in logs for one in sorted(log, key=lambda one: one.line)]
    if all(one.time is not None for one in every):
        every.sort(key=lambda one: one.time or 0.0)
    return every


def first_rank(logs: Sequence[Iterable[LoggedEvent]]) -> str:
    """The rank that wrote the first line of trouble; empty if only one did, or their order is not known."""
    every = _in_order(logs)
    ranks = list(dict.fromkeys(one.event.rank for one in every if one.event.rank))
    is_known = len({one.file for one in every}) == 1 or all(one.time is not None for one in every)
    return ranks[0] if len(ranks) > 1 and is_known else ""


def lines_beside(culprit: LoggedEvent, logs: Iterable[Iterable[LoggedEvent]]) -> tuple[LoggedEvent, ...]:
    """The lines that may say more than one that names no cause.

    These are the first line of trouble, NCCL's first warning and the last exception of its process.

    Args:
        logs: all lines of each log that speak of trouble, in any order.
    """
    said = [one for one in _in_order(logs) if _HEADING.search(one.event.text) is None]
    place = (culprit.file, culprit.event.rank)
    raised = [
        one for one in said if (one.file, one.event.rank) == place and EXCEPTION_LINE.search(one.event.text) is not None
    ]
    warnings = [one for one in said if "NCCL WARN" in one.event.text]
    found = {one.event.text: one for one in (*said[:1], *warnings[:1], *raised[-1:])}
    found.pop(culprit.event.text, None)
    return tuple(found.values())


def chapters_of(logs: Iterable[Sequence[LoggedEvent]]) -> list[Chapter]:
    """The trouble of a job in chapters, the first one first.

    Lines without a time belong to the time before them in their file. Where no line has one, all is one chapter, in the
    order given: only times show that two events are separate.

    Args:
        logs: the events of each file, in the order of its lines. All times are assumed to be of one clock and zone.
    """
    dated = [list(_dated(log)) for log in logs]
    events = _compared([one for log in dated for one in log])
    if all(one.since is not None for one in events):
        events.sort(key=lambda one: one.since or 0.0)
    chapters: list[Chapter] = []
    for one in events:
        home = next((chapter for chapter in reversed(chapters[-2:]) if chapter.takes(one)), None)
        if home is None:
            home = Chapter()
            chapters.append(home)
        home.add(one)
    return chapters


def _dated(log: Sequence[LoggedEvent]) -> Iterator[LoggedEvent]:
    """The same lines; those without any time have that of the line before, the first ones that of the one after."""
    last = next((one.since for one in log if one.since is not None), None)
    for one in log:
        if one.time is None:
            yield replace(one, before=last)
        else:
            last = one.time
            yield one


def _compared(events: Sequence[LoggedEvent]) -> list[LoggedEvent]:
    """The same lines; calls that gave up are a mismatch where ranks made different ones under one number.

    Without the name of the process group, which torch writes in one of several lines, this is not certain, since each
    group has numbers of its own. Sends and receives, which have others, are two ends of one call.
    """
    groups = {
        (one.event.rank, *one.event.work[1:]): one.event.work[0]
        for one in events
        if one.event.work is not None and one.event.work[0]
    }
    numbers = [_number_in_group(one.event, groups) for one in events]
    calls: dict[tuple[str, str], dict[str, set[str]]] = {}
    for one, number in zip(events, numbers, strict=True):
        if one.event.work is not None and number is not None:
            calls.setdefault(number, {}).setdefault(one.event.work[2], set()).add(one.event.rank)
    odd = {key for key, ranks in calls.items() if len(ranks) > 1 and len(set().union(*ranks.values())) > 1}
    return [
        replace(one, event=replace(one.event, category="mismatch", certain=bool(number[0])))
        if number is not None and number in odd
        else one
        for one, number in zip(events, numbers, strict=True)
    ]


def _number_in_group(event: LogEvent, groups: Mapping[tuple[str, str, str], str]) -> tuple[str, str] | None:
    """Group and number of a collective that gave up; None for every other event."""
    if event.work is None or event.work[2] in _EXCHANGES:
        return None
    group, number, call = event.work
    return group or groups.get((event.rank, number, call), ""), number
