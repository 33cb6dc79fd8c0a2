"""The source ``nccl_inspector``: the operations of jobs, as NCCL Inspector writes them into configured folders."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from commwatch.jobs.inspector.aggregate import Key
from commwatch.jobs.inspector.arrivals import Arrivals
from commwatch.jobs.inspector.process import KINDS, PHASES, REFUSALS, Counts, ProcessFile
from commwatch.jobs.inspector.prometheus_file import MOST_BYTES, Page, gpu_of, parse_page
from commwatch.jobs.inspector.report import COLLECTOR, MOST_FILES, InspectorReport, ProcessReport
from commwatch.jobs.logs.files import LogFile, find_logs, short_host
from commwatch.jobs.logs.position import Position
from commwatch.jobs.logs.tail import LogTail
from commwatch.jobs.turns import in_turn
from commwatch.readings import Absence, Batch, DeviceReadings
from commwatch.regular_file import read_regular
from commwatch.sources import files
from commwatch.sources.base import Origin, Source
from commwatch_exporters.snapshot import Series, Value

CPU_SECONDS: Final = 0.025
"""A run reads for this CPU time, which at its interval of 10 s is 9 s an hour; the rest is passed over."""
LONGEST_SECONDS: Final = 1.0
"""It ends after this time, too: a file may lie on a slow file server."""
SEARCH_SECONDS: Final = 60.0
"""Between two searches for files: one over 4,096 old ones takes tens of milliseconds."""
MOST_OPEN: Final = 64
STALE_SECONDS: Final = 180.0
"""A result that is older, and older than three windows, is not current."""
_OLDEST_SECONDS: Final = 1e9


class _GpuFile:
    """A .prom file that is read again when it has changed."""

    def __init__(self, name: str, newest: float) -> None:
        self.name = name
        """The configured name that leads to it."""
        self.owner = -1
        self.stamp = (0.0, -1)
        self.page = Page({}, {}, None, 0, "")
        self.newest = newest
        """Monotonic seconds of its last change."""
        self.looked = float("-inf")


class InspectorSource(Source):
    """Reads what was added to Inspector's files since the last run. The devices of this source are the configured
    names, as for the logs of jobs.

    Args:
        names: folders, files and patterns, as ``jobs.logs.files.find_logs`` takes them.
        clock: seconds since 1970.
        monotonic: seconds.
        cpu: seconds for which this process has run.
    """

    collectors = (COLLECTOR,)

    def __init__(
        self,
        names: Iterable[str],
        host: str | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        super().__init__()
        self._names = tuple(names)
        self._host = short_host(socket.gethostname() if host is None else host)
        self._clock = clock
        self._monotonic = monotonic
        self._cpu = cpu
        self._processes: dict[str, ProcessFile] = {}
        """By identity of the file."""
        self._gpus: dict[str, _GpuFile] = {}
        """By path of the .prom file."""
        self._searched: float | None = None
        self._failed: OSError | None = None
        self._counts = Counts()
        self._operations: Counter[Key] = Counter()
        self._seconds: dict[Key, float] = {}
        self._arrivals = Arrivals()
        self._skipped = self._turn = 0

    def collect(self, collector: str) -> Batch:
        """Read what was added; see ``Source.collect``."""
        started = self._monotonic()
        if self._searched is None or started - self._searched >= SEARCH_SECONDS:
            self._search(started)
        if self._only is not None:
            return Batch()
        failed = self._read(started) or self._failed
        self._arrivals.settle(started)
        batch = Batch(audit=msgspec.json.encode(InspectorReport(tuple(self._reports(started)))))
        if failed is not None:
            detail = f"{files.label_of(failed.filename or 'a file of Inspector')}: {failed.strerror}"
            batch.absences.append(Absence("", files.reason_of(failed), detail))
        batch.absences += self._foreign(started)
        series = dict(self._readings(started))
        batch.readings.append(DeviceReadings("", started, tuple(series), tuple(series.values())))
        return batch

    # --- which files there are ---

    def _search(self, now: float) -> None:
        found: dict[str, LogFile] = {}
        self._failed = None
        for name in self._touched(self._names):
            these, failed = find_logs(name, self._host)
            self._failed = self._failed or failed
            found |= {one.identity: one for one in these}
        latest = in_turn(sorted(found.values(), key=lambda one: -one.changed), lambda one: one.owner)[:MOST_FILES]
        # A link may lead anywhere, and Inspector makes none.
        latest = [one for one in latest if not os.path.islink(one.path)]
        gpus = {one.path: one for one in latest if one.path.endswith(".prom")}
        wanted = {one.identity: one for one in latest if one.path not in gpus}
        for identity in self._processes.keys() - wanted.keys():
            gone = self._processes.pop(identity)
            self._sum(gone)
            gone.tail.close()
        for identity in wanted.keys() - self._processes.keys():
            self._report(wanted[identity].name)
            self._processes[identity] = self._begin(wanted[identity], now)
        self._gpus = {
            path: self._gpus.get(path) or _GpuFile(one.name, now - self._age(one)) for path, one in gpus.items()
        }
        self._searched = now

    def _begin(self, file: LogFile, now: float) -> ProcessFile:
        """A file that was not followed: what stands in it is old, unless it was made since the last search."""
        tail = LogTail(file, Position())
        if self._searched is not None:
            return ProcessFile(tail, None)
        try:
            tail.start_at_end()
        except OSError as error:
            self._failed = self._failed or _serious(error)
        return ProcessFile(tail, now - self._age(file) if file.size else None)

    def _age(self, file: LogFile) -> float:
        """Seconds since a file was written last; its owner can set any time."""
        return min(max(0.0, self._clock() - file.changed), _OLDEST_SECONDS)

    # --- reading ---

    def _read(self, started: float) -> OSError | None:
        """Read all files, another one first in each run; returns why one cannot be read."""
        failed: OSError | None = None
        processes, until = list(self._processes.values()), self._cpu() + CPU_SECONDS
        for path, gpu in self._gpus.items():
            self._report(gpu.name)
            try:
                if self._cpu() < until:
                    self._read_gpu(path, gpu, started)
            except OSError as error:
                failed = failed or _serious(error)
        self._turn = (self._turn + 1) % max(1, len(processes))
        for process in (*processes[self._turn :], *processes[: self._turn]):
            self._report(process.tail.name)
            try:
                self._read_process(process, started, until)
            except OSError as error:
                failed = failed or _serious(error)
            self._sum(process)
            if len(self._processes) > MOST_OPEN:
                process.tail.close()
        return failed

    def _read_process(self, process: ProcessFile, started: float, until: float) -> None:
        tail, begin = process.tail, process.tail.position.offset
        while (piece := tail.read(started)) is not None:
            skipped = tail.take_skipped()
            self._skipped += skipped
            if skipped or tail.position.offset < begin:  # too much was added, or the file was written again
                process.lose()
            if self._cpu() >= until or self._monotonic() - started >= LONGEST_SECONDS:
                before = tail.position.offset
                tail.start_at_end()
                self._skipped += tail.position.offset - before
                process.lose()
                process.newest = started  # it grows by records alone
                return
            if piece.skips:
                self._counts.refused["form"] += bool(piece.body)  # the beginning of a line that is too long
                process.window.is_whole = False
            else:
                process.take(piece.body, started, self._counts, self._arrivals)
            tail.advance(piece.used, piece.skips)
            begin = tail.position.offset

    def _read_gpu(self, path: str, gpu: _GpuFile, now: float) -> None:
        found = os.stat(path, follow_symlinks=False)
        gpu.owner = found.st_uid
        stamp, looked, gpu.looked = (found.st_mtime, found.st_size), gpu.looked, now
        if stamp == gpu.stamp:
            return
        page = parse_page(read_regular(path, MOST_BYTES))
        if gpu.stamp[1] >= 0:
            for kind, lost in page.dropped.items():
                self._counts.dropped[kind] += int(max(0.0, lost - gpu.page.dropped.get(kind, lost)))
            if page.operations is None or page.operations != gpu.page.operations:
                # With totals it is rewritten without new records, too. A clock that was stepped moves it little.
                gpu.newest = now - max(0.0, min(self._clock() - found.st_mtime, now - looked, _OLDEST_SECONDS))
        self._counts.refused["form"] += page.refused
        self._counts.refused["version"] += bool(page.foreign)
        gpu.stamp, gpu.page = stamp, page

    def _sum(self, process: ProcessFile) -> None:
        for key, count, seconds in process.window.drain():
            self._operations[key] += count
            self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    # --- the results ---

    def _foreign(self, now: float) -> Iterator[Absence]:
        """The versions that are not read, each once, while they are being written."""
        since = now - STALE_SECONDS
        for version in sorted({one.foreign for one in self._processes.values() if one.tail.grown >= since} - {""})[:4]:
            yield Absence("", "unreadable", f"Inspector writes format {version[:16]!r}; v4.0 to v4.3 are read")
        for version in sorted({one.page.foreign for one in self._gpus.values() if one.newest >= since} - {""})[:4]:
            yield Absence("", "unreadable", f"Inspector writes .prom version {version[:16]!r}; v5 is read")

    def _reports(self, now: float) -> Iterator[ProcessReport]:
        for process in self._processes.values():
            if not process.pid:
                continue
            result, waiting = process.window.result, self._arrivals.published.get((process.tail.owner, process.pid))
            is_current = result is not None and now - result.at <= max(STALE_SECONDS, 3 * result.seconds)
            yield ProcessReport(
                process.pid,
                short_host(process.host) == self._host,
                owner=process.tail.owner,
                newest_age=None if process.newest is None else now - process.newest,
                share=result.share if result is not None and is_current else None,
                waits_seconds=None if waiting is None else waiting.seconds,
                last_ratio=None if waiting is None else waiting.last_ratio,
            )
        for path, gpu in self._gpus.items():
            if uuid := gpu_of(os.path.basename(path)):
                yield ProcessReport(uuid=uuid, owner=gpu.owner, newest_age=now - gpu.newest)

    def _readings(self, now: float) -> Iterator[tuple[Series, Value]]:
        head = "commwatch_nccl_inspector"
        yield (f"{head}_files", ()), len(self._processes) + len(self._gpus)
        yield (f"{head}_skipped_bytes_total", ()), self._skipped
        yield (f"{head}_unknown_fields_total", ()), self._counts.unknown_fields
        for why in REFUSALS:
            yield (f"{head}_refused_lines_total", (why,)), self._counts.refused[why]
        for kind in KINDS:
            yield (f"{head}_dropped_records_total", (kind,)), self._counts.dropped[kind]
        for phase in PHASES:
            if seconds := self._counts.proxy_seconds.get(phase):
                yield (f"{head}_proxy_seconds_total", phase), seconds
        for key in sorted(self._operations):
            yield (f"{head}_operations_total", key), self._operations[key]
            yield (f"{head}_operation_seconds_total", key), self._seconds[key]
        for key, means in sorted(self._means(now).items()):
            yield (f"{head}_bus_bandwidth_bytes_per_second", (*key, "lowest")), min(means)
            yield (f"{head}_bus_bandwidth_bytes_per_second", (*key, "median")), statistics.median(means)

    def _means(self, now: float) -> dict[Key, list[float]]:
        """The current mean of each process or GPU by key."""
        results = [one.window.result for one in self._processes.values()]
        pages = [
            one.means for one in results if one and now - one.at <= max(STALE_SECONDS, 3 * one.seconds)
        ] + [gpu.page.means for gpu in self._gpus.values() if now - gpu.newest <= STALE_SECONDS]  # fmt: skip
        means: dict[Key, list[float]] = {}
        for page in pages:
            for key, mean in page.items():
                if mean > 0:
                    means.setdefault(key, []).append(mean)
        return means

    def close(self) -> None:
        for process in self._processes.values():
            process.tail.close()


def _serious(error: OSError) -> OSError | None:
    """An error that a person can do something about: a file that is gone is none."""
    return None if files.reason_of(error) == "not_found" else error


def make_source(origin: Origin) -> InspectorSource:
    return InspectorSource(origin.settings.nccl_inspector.paths)
