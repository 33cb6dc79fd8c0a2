"""Dumps of a job that moves no data, found by the environments of its processes; takes seconds, so for commands."""

from __future__ import annotations

import os.path
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from commwatch.jobs import in_child
from commwatch.jobs.evidence import JobEvidence, SuspectedJob, first_gpu
from commwatch.jobs.flight_recorder.files import DumpFile
from commwatch.jobs.flight_recorder.reading import read_dumps
from commwatch.jobs.flight_recorder.report import JobVerdict, is_of_pause, shortened, word_on
from commwatch.jobs.flight_recorder.verdict import judge
from commwatch.jobs.ranks import RANKS_MAX, RankSample, read_rank
from commwatch.jobs.settings.facts import ProcessSettings
from commwatch.sources import files

MOST_DUMPS: Final = 256
"""Of a job. More take minutes: they are for ``commwatch diagnose --flight-recorder``."""
MOST_SECONDS: Final = 60.0
"""For the dumps of all jobs: one alone may take its reader ten seconds."""


class Dumps:
    """Flight Recorders as a source: the verdict on the dumps that the processes of a job write.

    Args:
        known: jobs of which such words are there already, by the PCI address of the lowest GPU.
        others: processes of other jobs, which may write under the same name.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        procfs: Path,
        known: Collection[str] = (),
        others: Sequence[int] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._procfs = procfs
        self._known = known
        self._others = others
        self._clock = clock

    def __call__(self, jobs: Sequence[SuspectedJob]) -> dict[str, JobEvidence]:
        """Read the dumps in child processes, and judge them; say so where they cannot be read."""
        asked, until = self._clock(), time.monotonic() + MOST_SECONDS
        try:
            processes = {first_gpu(job): self._processes(job) for job in jobs}
            elsewhere = {one.dumps for one in self._read(pid for pid in self._others[:RANKS_MAX] if self._alive(pid))}
        except OSError as error:
            return {key: _unread(error) for key in map(first_gpu, jobs) if key not in self._known}
        found = {}
        for job in jobs:
            key = first_gpu(job)
            others = elsewhere | {one.dumps for other, some in processes.items() if other != key for one in some}
            own = [one for one in processes[key] if one.dumps not in {"", *others}]
            # Processes without a launcher count as one job, and may be several.
            is_one = len({one.dumps for one in own}) == 1 or all(one.job for one in own)
            if not own or not is_one or key in self._known:
                continue
            try:
                word = self._word_on(job, own, asked, until)
            except OSError as error:
                word = _unread(error)
            if word is not None:
                found[key] = word
        return found

    def _processes(self, job: SuspectedJob) -> tuple[ProcessSettings, ...]:
        return self._read(
            rank.pid
            for rank in job.ranks[:RANKS_MAX]
            if (sample := self._alive(rank.pid)) is not None and sample.started == rank.started
        )

    def _alive(self, pid: int) -> RankSample | None:
        """A process that can be read: one that hangs in the kernel might keep the reader, too."""
        sample = read_rank(self._procfs, pid)
        return None if sample is None or sample.state in ("", "D") else sample

    def _read(self, pids: Iterable[int]) -> tuple[ProcessSettings, ...]:
        """What the environments of processes say."""
        return in_child.ask(in_child.Task(str(self._procfs), tuple(pids))).settings

    def _word_on(
        self, job: SuspectedJob, own: Sequence[ProcessSettings], asked: float, until: float
    ) -> JobEvidence | None:
        dumps = self._files(own)
        if not 0 < len(dumps) <= MOST_DUMPS:
            return None
        verdicts = judge(read_dumps(dumps, until - time.monotonic())[0]).verdicts
        taken = max(one.written for one in dumps)
        for verdict in verdicts:
            one = JobVerdict(dumps[0].owner, dumps[0].series, taken, shortened(verdict))
            if is_of_pause(one, asked - job.seconds, asked):
                return word_on(job, one, {each.pid: int(each.rank) for each in own if each.pid and each.rank})
        return None

    def _files(self, own: Sequence[ProcessSettings]) -> list[DumpFile]:
        """Those of the processes' user whose folder is the same one here as it is for them.

        Raises:
            OSError: they cannot be read.
        """
        users = {self._user(one.pid) for one in own if one.pid is not None}
        # Not by a pattern: in a folder of all, anybody may make any number of folders that it fits.
        folders = {os.path.dirname(one.dump_path) for one in own}
        series = {one.dumps for one in own}
        found = in_child.ask(in_child.Task(folders=tuple(folders))).dumps
        return [one for one in found if one.series in series and {one.owner} == users]

    def _user(self, pid: int) -> int | None:
        users = files.parse_users(files.read_if_there(f"{self._procfs}/{pid}/status"))
        return None if users is None else users.real


def _unread(error: OSError) -> JobEvidence:
    return JobEvidence("flight_recorder", f"Flight Recorder: the dumps of the job were not read ({error.strerror})")
