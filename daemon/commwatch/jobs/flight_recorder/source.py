"""The source ``flight_recorder``: dumps that jobs write into the configured folders, judged as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from commwatch.jobs.flight_recorder.files import DumpFile, find_all, rank_of
from commwatch.jobs.flight_recorder.pickle_walk import NoDump
from commwatch.jobs.flight_recorder.reading import read_file
from commwatch.jobs.flight_recorder.recording import condense
from commwatch.jobs.flight_recorder.verdict import KINDS, RankDump, Verdict, judge, likelihood
from commwatch.readings import Absence, Batch, DeviceReadings
from commwatch.sources import files
from commwatch.sources.base import Origin, Source
from commwatch_exporters.snapshot import Series

COLLECTOR: Final = "flight_recorder"
MOST_BYTES: Final = 4 * 2**20
"""Of a dump: 30,000 calls. Larger ones are for ``commwatch diagnose --flight-recorder``, whose child has limits."""
BUSY_SECONDS: Final = 0.25
"""A run reads no further dump after this time."""
NEW_SECONDS: Final = 600.0
"""At the first search dumps that are older than this are of a hang before this time, and are not read."""
_MOST_VERDICTS: Final = 16
_SERIES: Final[tuple[Series, ...]] = (
    ("commwatch_flight_recorder_dumps", ()),
    ("commwatch_flight_recorder_unread_dumps", ()),
    *(("commwatch_flight_recorder_verdicts_total", (kind,)) for kind in KINDS),
)


class FlightRecorderSource(Source):
    """Reads each dump once it is complete, and judges those of each user together when none is left to be read.

    A dump is complete when it has not changed from one run to the next.

    Args:
        names: of files and folders, and shell patterns.
        clock: seconds since 1970.
    """

    collectors = (COLLECTOR,)

    def __init__(self, names: Iterable[str], clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._names = tuple(names)
        self._clock = clock
        self._seen: dict[str, DumpFile] = {}
        """Of the run before."""
        self._old: set[tuple[int, int, int]] | None = None
        """Stamps of the files that the first search passed over."""
        self._read: dict[str, tuple[DumpFile, RankDump | None]] = {}
        """By path; None of a file that is no dump or too large."""
        self._told: tuple[Verdict, ...] = ()
        self._totals = dict.fromkeys(KINDS, 0)

    def collect(self, collector: str) -> Batch:
        """Read and judge; see ``Source.collect``."""
        started = time.monotonic()
        batch = Batch()
        found = {one.path: one for one in self._find(batch)}
        pending = [one for one in found.values() if self._is_pending(one)]
        complete = [one for one in pending if self._seen.get(one.path) == one]
        for place, one in enumerate(complete):
            if place and time.monotonic() - started >= BUSY_SECONDS:
                break
            self._read[one.path] = one, _read(one)
        self._seen = found
        self._read = {path: read for path, read in self._read.items() if path in found}
        if not any(self._is_pending(one) for one in found.values()):
            batch.audit = self._judge()
        dumps = [dump for _, dump in self._read.values() if dump is not None]
        values = (len(dumps), len(self._read) - len(dumps), *self._totals.values())
        batch.readings.append(DeviceReadings("", started, _SERIES, values))
        return batch

    def _find(self, batch: Batch) -> Sequence[DumpFile]:
        """The files of now, without those that were there long before this source."""
        found: list[DumpFile] = []
        for name in self._names:
            try:
                found += find_all([name])[0]
            except FileNotFoundError:
                continue  # no job has written there yet
            except OSError as error:
                detail = f"{files.label_of(error.filename or name)}: {error.strerror}"
                batch.absences.append(Absence("", files.reason_of(error), detail))
        if self._old is None:
            self._old = {one.stamp for one in found if one.written < self._clock() - NEW_SECONDS}
        return [one for one in found if one.stamp not in self._old]

    def _is_pending(self, file: DumpFile) -> bool:
        return file.path not in self._read or self._read[file.path][0] != file

    def _judge(self) -> bytes | None:
        """JSON of the verdicts; None while they are those of the run before."""
        # A job is one user's: another one may have dumps in these folders, too, or may have planted some.
        by_owner: dict[int, list[RankDump]] = {}
        for file, dump in self._read.values():
            if dump is not None:
                by_owner.setdefault(file.owner, []).append(dump)
        most = max(1, _MOST_VERDICTS // max(1, len(by_owner)))
        found = [one for dumps in by_owner.values() for one in judge(dumps).verdicts[:most]]
        verdicts = tuple(sorted(found, key=likelihood)[:_MOST_VERDICTS])
        if verdicts == self._told:
            return None
        for one in verdicts:
            self._totals[one.kind] += one not in self._told
        self._told = verdicts
        return msgspec.json.encode([msgspec.structs.replace(one, frames={}) for one in verdicts])


def _read(file: DumpFile) -> RankDump | None:
    """A dump; None where the file is none that can be used."""
    try:
        dump, read = read_file(file.path, MOST_BYTES)
        rank = rank_of(file.path) if dump.rank is None else dump.rank
        if rank is None or read.owner != file.owner:
            return None
        return RankDump(rank, file.path, read.written, condense(dump))
    except (NoDump, OSError):  # counted as unread; the command says why
        return None


def make_source(origin: Origin) -> FlightRecorderSource:
    """The configured folders."""
    return FlightRecorderSource(origin.settings.flight_recorder.paths)
