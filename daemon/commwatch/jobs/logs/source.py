"""The source ``nccl_logs``: what NCCL, torch and launchers write into the configured logs about trouble."""

from __future__ import annotations

import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeAlias

import msgspec

from commwatch.jobs.logs.categories import Category
from commwatch.jobs.logs.event import LONGEST_TEXT, LogEvent, event_in_line
from commwatch.jobs.logs.files import LogFile, find_logs, short_host, stat_log
from commwatch.jobs.logs.lines import parse_line, telling_lines
from commwatch.jobs.logs.position import LogsPosition, Position
from commwatch.jobs.logs.tail import MOST_HOSTS, LogTail
from commwatch.jobs.logs.transport import Transport, TransportLines
from commwatch.jobs.turns import in_turn
from commwatch.readings import Absence, Batch, DeviceReadings, LogErrors
from commwatch.sources import files
from commwatch.sources.base import Origin, Source
from commwatch_exporters.snapshot import Series

BUSY_SECONDS = 0.25
"""A run ends after this time; the remaining lines wait for the next one."""
LOOK_SECONDS = 15.0
"""Between two searches for new files."""
MOST_FILES = 512
"""The files of each user that were written last; older ones are left out."""
MOST_OPEN = 128
"""Descriptors that stay open, through which a renamed file is read to its end."""
CLOCKS_SECONDS = 60.0
"""By which the clock of a file server may differ from ours."""
TELL_SECONDS = 60.0
"""The longest time for which a new process would go on from what was reported earlier."""
SET_UP_SECONDS = 600.0
"""After this time without a line of NCCL other processes are another job."""
_ORDINARY = b" NCCL INFO "
_PID = re.compile(rb":(\d{1,10}):\d{1,10} \[-?\d{1,10}\] NCCL ")
_MOST_KINDS = 256
"""The largest number of errors in one run that are kept apart by what they name."""
_MOST_BY_LOG = 128
"""Of these by the log, too."""
_LOOKED_FOR_HOSTS = 16
"""Lines of a piece that are asked who wrote them."""

Errors: TypeAlias = "dict[tuple[Category, bool, str, int | None, str], LogErrors]"
"""Errors of a run, by category, certainty, RDMA device, rank, and identity of the log."""

_SERIES: tuple[Series, ...] = (("commwatch_nccl_log_files", ()), ("commwatch_nccl_log_skipped_bytes_total", ()))


class NcclLogsSource(Source):
    """Reads what was added to the logs since the last run. The devices of this source are the configured names: each
    may lie on a file server that is gone.

    The contents of a file at its first reading are old and do not count, unless the file was created while this source,
    or the one that it resumes, was watching.

    Args:
        names: of files and folders, and patterns (``sources.log_files.pattern_of``).
        hosts: names of hosts whose lines count; shell patterns. Empty: all lines of a file with one writing host, and
            those of this node where several hosts write into one file.
        resume: JSON of the ``LogsPosition`` that an earlier process gave; empty without one.
        clock: seconds since 1970.
        monotonic: seconds.
    """

    collectors = ("nccl_logs",)

    def __init__(
        self,
        names: Iterable[str],
        hosts: Iterable[str] = (),
        resume: bytes = b"",
        host: str | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._names = tuple(names)
        self._hosts = tuple(short_host(one) for one in hosts)
        self._host = short_host(socket.gethostname() if host is None else host)
        self._clock = clock
        self._monotonic = monotonic
        before = msgspec.json.decode(resume, type=LogsPosition) if resume else LogsPosition()
        self._known = before.files
        self._watched_since = before.looked if before.names == self._names else None
        """A file that is not known was written in our absence if it changed later; None where we never watched."""
        self._tails: dict[str, LogTail] = {}
        self._gone: list[LogTail] = []
        """Files that no name leads to any more, to be read to their end."""
        self._searched = float("-inf")
        self._skipped = 0
        self._failed: OSError | None = None
        self._told: dict[str, Position] = {}
        self._told_at = float("-inf")

    def collect(self, collector: str) -> Batch:
        """Read what was added; see ``Source.collect``."""
        started = self._monotonic()
        if started - self._searched >= LOOK_SECONDS or not self._names_stand():
            self._search()
            self._searched = started
        if self._only is not None:
            return Batch()  # that it answered is all there is to know
        errors: Errors = {}
        failed = self._read_all(started, errors) or self._failed
        self._let_go()
        batch = Batch(log_errors=[*errors.values(), *self._fallbacks()], resume=self._resume(started))
        if failed is not None:
            detail = f"{files.label_of(failed.filename or 'a log')}: {failed.strerror}"
            batch.absences.append(Absence("", files.reason_of(failed), detail))
        batch.readings.append(DeviceReadings("", started, _SERIES, (len(self._tails), self._skipped)))
        return batch

    # --- what stands in them ---

    def _read_all(self, started: float, errors: Errors) -> OSError | None:
        """Read a piece of each user after the other, for as long as a run may take: the logs of one delay no other's.

        Returns why something cannot be read.
        """
        failed: OSError | None = None
        of_users: dict[int, deque[LogTail]] = {}
        for tail in sorted((*self._gone, *self._tails.values()), key=lambda tail: tail.looked):
            of_users.setdefault(tail.owner, deque()).append(tail)
        # First the user whose logs were not read for longest: one piece may take all the time.
        turns = deque(sorted(of_users.values(), key=lambda tails: tails[-1].looked))
        while turns and self._monotonic() - started < BUSY_SECONDS:
            waiting = turns.popleft()
            tail = waiting.popleft()
            self._report(tail.name)
            try:
                if self._read_piece(tail, started, errors):
                    waiting.append(tail)
                elif tail in self._gone:
                    self._forget(tail)
            except OSError as error:
                if tail in self._gone:
                    self._forget(tail)
                if files.reason_of(error) != "not_found":
                    failed = failed or error
            if waiting:
                turns.append(waiting)
        return failed

    def _read_piece(self, tail: LogTail, started: float, errors: Errors) -> bool:
        """Read a piece of a file; False where nothing more is to be read now."""
        piece = tail.read(started)
        if piece is None:
            return False
        tail.take_hosts(_writers(piece.body))
        self._take_transport(piece.body, tail, started)
        year = time.gmtime(self._clock()).tm_year
        for place, (start, line) in enumerate(telling_lines(piece.body)):
            # The first one is taken whatever the time is, so that a run never ends where it began.
            if place and self._monotonic() - started >= BUSY_SECONDS:
                tail.advance(piece.begins + start, False)
                return False
            event = event_in_line(line.decode(errors="replace"), year)
            if event is not None and self._is_ours(event.host, tail):
                self._count(event, tail, errors)
        tail.advance(piece.used, piece.skips)
        return True

    def _is_ours(self, host: str, tail: LogTail) -> bool:
        """Whether a line of a host, empty where it names none, was written on this node, as far as can be known."""
        host = short_host(host)
        if host:
            tail.take_hosts((host,))
        if self._hosts:
            return all(any(fnmatchcase(one, name) for name in self._hosts) for one in ({host} if host else tail.hosts))
        return len(tail.hosts) <= 1 or host == self._host

    def _count(self, event: LogEvent, tail: LogTail, errors: Errors) -> None:
        rank = int(event.rank) if event.category == "timeout" and event.rank else None
        key = (event.category, event.certain, event.hca, rank, tail.identity)
        if key not in errors and len(errors) >= _MOST_BY_LOG:
            key = (*key[:4], "")
        if key not in errors and len(errors) >= _MOST_KINDS:
            key = (event.category, event.certain, "", None, "")  # a log can name any number of devices
        before = errors.get(key)
        if before is None:
            _, number, operation = event.work or ("", "", "")
            errors[key] = LogErrors(
                event.category, event.certain, 1, files.label_of(tail.path), event.text, hca=key[2], rank=key[3],
                call=f"{operation} {number}".strip(), log=key[4],
            )  # fmt: skip
        else:
            errors[key] = replace(before, count=before.count + 1)

    def _take_transport(self, body: bytes, tail: LogTail, started: float) -> None:
        """Keep the transport lines of a piece for the job that is being set up."""
        if _ORDINARY not in body:
            return
        pids = set(_PID.findall(body))
        if started - tail.set_up >= SET_UP_SECONDS and tail.pids.isdisjoint(pids) and not tail.goes_on:
            tail.begin_job()
        tail.set_up, tail.goes_on = started, False
        tail.take_pids(pids)
        everything = TransportLines()
        everything.take(body, 1)
        tail.take_hosts(short_host(host.decode(errors="replace")) for host in everything.hosts)
        if len(tail.transport.hosts) < MOST_HOSTS:
            tail.transport.hosts |= everything.hosts
        if self._hosts or len(tail.hosts) > 1:
            body = b"".join(line for line in body.splitlines(keepends=True) if self._wrote(line, tail))
        tail.transport.take(body, 1)

    def _wrote(self, line: bytes, tail: LogTail) -> bool:
        parsed = parse_line(line.decode(errors="replace")) if _ORDINARY in line else None
        return parsed is not None and self._is_ours(parsed.host, tail)

    def _fallbacks(self) -> Iterator[LogErrors]:
        """The fallbacks of jobs whose communicators are complete, each once: shown by two runs, so that none is half
        written."""
        for tail in self._tails.values():
            if tail.fallback is None:
                continue
            transport = Transport([tail.transport])
            found = transport.fallback() if transport.is_set_up else None
            if found is None or (kind := found.fallback) is None:
                tail.fallback = ""
            elif kind != tail.fallback:
                tail.fallback = kind
            else:
                text = found.line.text.strip()[:LONGEST_TEXT]
                yield LogErrors(found.category, True, 1, files.label_of(tail.path), text, fallback=kind)
                tail.fallback = None
                tail.position = msgspec.structs.replace(tail.position, told=True)

    # --- which files there are ---

    def _names_stand(self) -> bool:
        """Whether every name still leads to the file that it led to before, and none was cut.

        The copy of a log that was copied and cut is identified by how far that log was read: it is searched for before
        the log is read from its beginning.
        """
        for tail in self._tails.values():
            self._report(tail.name)
            try:
                found = stat_log(tail.path, tail.name)
            except OSError:
                return False
            if found is None or found.identity != tail.identity or found.size < tail.position.offset:
                return False
        return True

    def _search(self) -> None:
        """Find the current files of the names."""
        found: dict[str, LogFile] = {}
        self._failed = None
        now = self._clock()
        for name in self._touched(self._names):
            these, failed = find_logs(name, self._host)
            self._failed = self._failed or failed
            for one in these:
                found.setdefault(one.identity, one)
        latest = in_turn(sorted(found.values(), key=lambda one: -one.changed), lambda one: one.owner)[:MOST_FILES]
        wanted = {one.identity: one for one in latest}
        for identity in self._tails.keys() - wanted.keys():
            self._gone.append(self._tails.pop(identity))
        for identity, one in wanted.items():
            if identity in self._tails:
                self._tails[identity].path = one.path
        # Those known from an earlier process first: a copy is known by how far the file was read that it was made of.
        for identity in sorted(wanted.keys() - self._tails.keys(), key=lambda one: one not in self._known):
            self._report(wanted[identity].name)
            self._tails[identity] = self._begin(wanted[identity])
        # What is new below a name that is left out is so too once it is read again.
        if not self._leave_out or self._watched_since is None:
            self._watched_since = now

    def _begin(self, file: LogFile) -> LogTail:
        """A file that was not followed until now."""
        tail = LogTail(file, self._known.pop(file.identity, Position()))
        if tail.position.offset:
            return tail
        try:
            for other in (*self._tails.values(), *self._gone):
                # Rotation that copies and truncates: what the copy holds was read from the other file.
                for position in (other.position, other.replaced) if file.path.startswith(other.path) else ():
                    if tail.holds_before(position):
                        tail.position = position
                        return tail
            if self._watched_since is None or file.changed < self._watched_since - CLOCKS_SECONDS:
                tail.start_at_end()
        except OSError as error:
            self._failed = self._failed or error
        return tail

    def _forget(self, tail: LogTail) -> None:
        """A file that is gone was read to its end, or cannot be read any more."""
        tail.close()
        self._gone.remove(tail)
        self._skipped += tail.take_skipped()
        self._known[tail.identity] = tail.position
        while len(self._known) > MOST_FILES:
            del self._known[next(iter(self._known))]

    def _let_go(self) -> None:
        """Close what need not stay open."""
        for tail in self._tails.values():
            self._skipped += tail.take_skipped()
        opened = sorted((tail for tail in self._tails.values() if tail.is_open), key=lambda tail: -tail.grown)
        for tail in opened[MOST_OPEN:]:
            tail.close()

    def _resume(self, now: float) -> bytes | None:
        """State from which the next process resumes; None while it equals the last reported one."""
        positions = self._known | {tail.identity: tail.position for tail in (*self._gone, *self._tails.values())}
        if positions == self._told and now - self._told_at < TELL_SECONDS:
            return None
        self._told, self._told_at = positions, now
        return msgspec.json.encode(LogsPosition(self._names, self._watched_since or 0.0, positions))

    def close(self) -> None:
        for tail in (*self._gone, *self._tails.values()):
            tail.close()


def make_source(origin: Origin) -> NcclLogsSource:
    settings = origin.settings.nccl_logs
    return NcclLogsSource(settings.paths, settings.hosts, origin.resume)


def _writers(body: bytes) -> Iterator[str]:
    """Hosts that some of NCCL's ordinary lines name."""
    at = body.find(_ORDINARY)
    for _ in range(_LOOKED_FOR_HOSTS):
        if at < 0:
            return
        begin = max(body.rfind(b"\n", 0, at) + 1, at - 512)
        parsed = parse_line(body[begin : at + len(_ORDINARY)].decode(errors="replace"))
        if parsed is not None and parsed.host:
            yield short_host(parsed.host)
        at = body.find(_ORDINARY, at + 1)
