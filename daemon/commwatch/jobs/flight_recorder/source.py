"""The source ``flight_recorder``: dumps that jobs write into the configured folders, judged as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from commwatch.jobs.flight_recorder.files import DumpFile, find_all, rank_of
from commwatch.jobs.flight_recorder.pickle_walk import NoDump
from commwatch.jobs.flight_recorder.reading import read_file
from commwatch.jobs.flight_recorder.recording import condense
from commwatch.jobs.flight_recorder.report import COLLECTOR, MOST_VERDICTS, JobVerdict, shortened
from commwatch.jobs.flight_recorder.verdict import KINDS, RankDump, judge, likelihood
from commwatch.jobs.turns import in_turn
from commwatch.readings import Absence, Batch, DeviceReadings
from commwatch.sources import files
from commwatch.sources.base import Origin, Source
from commwatch_exporters.snapshot import Series

MOST_BYTES: Final = 4 * 2**20
"""Of a dump: 30,000 calls. Larger ones are for ``commwatch diagnose --flight-recorder``, whose child has limits."""
MOST_MEMORY: Final = 512 * 2**20
"""Bytes that all dumps take together, about; each user who has dumps gets an equal share."""
BUSY_SECONDS: Final = 0.25
"""A run reads no further dump after this time."""
NEW_SECONDS: Final = 600.0
"""At the first search dumps that are older than this are of a hang before this time, and are not read."""
_SERIES: Final[tuple[Series, ...]] = (
    ("commwatch_flight_recorder_dumps", ()),
    ("commwatch_flight_recorder_unread_dumps", ()),
    *(("commwatch_flight_recorder_verdicts_total", (kind,)) for kind in KINDS),
)

_GROUP_BYTES, _RANK_BYTES = 2048, 36
"""Of a group more than it takes: to compare the 256,000 that fit takes 2 s, and a run has ``deadline``."""
_LAST_TIME: Final = 253_402_300_799.0
"""The end of the year 9999: the time of a file can be anything."""
_Job: TypeAlias = "tuple[int, str]"
"""User, and the series of the dumps: those of one user whose names differ in more than the rank are of several jobs."""


class FlightRecorderSource(Source):
    """Reads each dump once it is complete, and judges those of each job together when none of it is left to be read.

    A dump is complete when it has not changed from one run to the next. The devices of this source are the configured
    names, as for the logs of jobs.

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
        self._led: dict[str, str] = {}
        """By path the configured name that leads to it."""
        self._old: set[tuple[int, int, int]] | None = None
        """Stamps of the files that the first search passed over."""
        self._read: dict[str, tuple[DumpFile, RankDump | None]] = {}
        """By path; None of a file that is no dump, is too large, or had to make room."""
        self._sizes: dict[str, int] = {}
        """By path of a dump, see ``_size``."""
        self._judged: dict[_Job, tuple[Sequence[DumpFile], tuple[JobVerdict, ...]]] = {}
        """The files of each job that were judged, and the verdicts."""
        self._told: tuple[JobVerdict, ...] = ()
        self._totals = dict.fromkeys(KINDS, 0)
        self._turn = 0

    def collect(self, collector: str) -> Batch:
        """Read and judge; see ``Source.collect``."""
        started = time.monotonic()
        batch = Batch()
        found = {one.path: one for one in self._find(batch)}
        if self._only is not None:
            return Batch()
        pending = [one for one in found.values() if self._is_pending(one)]
        complete = [one for one in pending if self._seen.get(one.path) == one]
        for place, one in enumerate(self._in_turn(complete)):
            if place and time.monotonic() - started >= BUSY_SECONDS:
                break
            self._report(self._led[one.path])
            self._read[one.path] = one, (dump := _read(one))
            self._sizes[one.path] = 0 if dump is None else _size(dump)
        self._seen = found
        self._read = {path: read for path, read in self._read.items() if path in found}
        self._sizes = {path: size for path, size in self._sizes.items() if path in found}
        self._make_room()
        batch.audit = self._judge({_job_of(one) for one in found.values() if self._is_pending(one)})
        dumps = [dump for _, dump in self._read.values() if dump is not None]
        values = (len(dumps), len(self._read) - len(dumps), *self._totals.values())
        batch.readings.append(DeviceReadings("", started, _SERIES, values))
        return batch

    def _find(self, batch: Batch) -> Sequence[DumpFile]:
        """The files of now, without those that were there long before this source."""
        found: list[DumpFile] = []
        self._led = {}
        for name in self._touched(self._names):
            try:
                these = find_all([name])[0]
                self._led |= {one.path: name for one in these}
                found += these
            except FileNotFoundError:
                continue  # no job has written there yet
            except OSError as error:
                detail = f"{files.label_of(error.filename or name)}: {error.strerror}"
                batch.absences.append(Absence("", files.reason_of(error), detail))
        if self._old is None:
            self._old = {one.stamp for one in found if one.written < self._clock() - NEW_SECONDS}
        return [one for one in found if one.stamp not in self._old]

    def _in_turn(self, complete: Sequence[DumpFile]) -> list[DumpFile]:
        """One file of each user after the other, another user first in each run: the many of one delay no other's."""
        owners = sorted({one.owner for one in complete})
        self._turn += 1
        first = sorted(complete, key=lambda one: (owners.index(one.owner) + self._turn) % len(owners))
        return in_turn(first, lambda one: one.owner)

    def _is_pending(self, file: DumpFile) -> bool:
        return file.path not in self._read or self._read[file.path][0] != file

    def _by_job(self) -> dict[_Job, list[tuple[DumpFile, RankDump]]]:
        by_job: dict[_Job, list[tuple[DumpFile, RankDump]]] = {}
        for file, dump in self._read.values():
            if dump is not None:
                by_job.setdefault(_job_of(file), []).append((file, dump))
        return by_job

    def _make_room(self) -> None:
        """Give up what is beyond a user's share of the memory: of the job that wrote last the dumps that were read
        last, and of those before it all."""
        by_job = self._by_job()
        share = MOST_MEMORY // max(1, len({owner for owner, _ in by_job}))
        used: dict[int, int] = {}
        lists: set[tuple[int, int]] = set()
        for job, read in sorted(by_job.items(), key=lambda one: -max(file.written for file, _ in one[1])):
            owner, is_last = job[0], job[0] not in used
            for place, (file, dump) in enumerate(read):
                used[owner] = used.get(owner, 0) + self._sizes[file.path]
                for group in dump.recording.groups:
                    if (owner, id(group.ranks)) not in lists:  # the dumps of a job share them
                        lists.add((owner, id(group.ranks)))
                        used[owner] += _RANK_BYTES * len(group.ranks)
                if used[owner] > share:
                    for other, _ in read[place:] if is_last else read:
                        self._read[other.path] = other, None
                    break

    def _judge(self, pending: Collection[_Job]) -> bytes | None:
        """JSON of the verdicts; None while they are those of the run before.

        Args:
            pending: jobs with dumps that are still to be read, whose verdicts stay as they are.
        """
        by_job = self._by_job()
        before, self._judged = self._judged, {}
        for job, read in by_job.items():
            these = [file for file, _ in read]
            earlier = before.get(job, ([], ()))
            is_judged = job in pending or these == earlier[0]
            self._judged[job] = earlier if is_judged else (these, tuple(_verdicts(job, [dump for _, dump in read])))
        told = self._latest()
        if told == self._told:
            return None
        known = [(one.series, one.verdict) for one in self._told]
        for one in told:
            self._totals[one.verdict.kind] += (one.series, one.verdict) not in known
        self._told = told
        return msgspec.json.encode(told)

    def _latest(self) -> tuple[JobVerdict, ...]:
        """Of each user the verdicts on the last dumps, so that the dumps of none push out another's; the likeliest
        first."""
        most = max(1, MOST_VERDICTS // max(1, len({owner for owner, _ in self._judged})))
        of_user: dict[int, list[JobVerdict]] = {}
        found = [one for _, verdicts in self._judged.values() for one in verdicts]
        for one in sorted(found, key=lambda one: -one.taken):  # those of one job stay in their order
            of_user.setdefault(one.owner, []).append(one)
        latest = [one for some in of_user.values() for one in some[:most]]
        return tuple(sorted(latest, key=lambda one: likelihood(one.verdict))[:MOST_VERDICTS])


def _job_of(file: DumpFile) -> _Job:
    return file.owner, file.series


def _size(dump: RankDump) -> int:
    """Bytes that a dump takes, about: objects take some three times what they take as MessagePack. Without the ranks of
    its groups."""
    groups = dump.recording.groups
    kept = [(one.name, one.description, one.steps, one.exchanges) for one in groups]
    return 3 * len(msgspec.msgpack.encode(kept)) + _GROUP_BYTES * len(groups)


def _verdicts(job: _Job, dumps: Sequence[RankDump]) -> Iterator[JobVerdict]:
    owner, series = job
    taken = min(max(0.0, *(one.taken for one in dumps)), _LAST_TIME)
    for verdict in judge(dumps).verdicts[:MOST_VERDICTS]:
        yield JobVerdict(owner, series, taken, shortened(verdict))


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
    return FlightRecorderSource(origin.settings.flight_recorder.paths)
