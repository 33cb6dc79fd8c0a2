"""What jobs wrote and answered about themselves, as evidence on the jobs that move no data.

A word counts by place and time: it is about processes of this job, or of its user where no more can be known, which it
then says; and it is no older than the last payload of the job. It is evidence and no verdict: it ends no suspicion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from commwatch.jobs.evidence import JobEvidence, SuspectedJob, first_gpu
from commwatch.jobs.flight_recorder.report import JobVerdict, is_of_pause, word_on
from commwatch.jobs.flight_recorder.tracker import FlightRecorderVerdicts
from commwatch.jobs.flight_recorder.verdict import KNOWN_OPERATIONS, Verdict, ranks_text
from commwatch.jobs.inspector.tracker import GROUP as INSPECTOR
from commwatch.jobs.logs.categories import CATEGORIES, About, Side
from commwatch.jobs.logs.culprit import Finding, first_culprit
from commwatch.jobs.logs.meanings import about_line
from commwatch.jobs.logs.tracker import JobLogs, LastErrors, category_of
from commwatch.jobs.ranks import RANKS_MAX
from commwatch.jobs.settings.plan import JobSettings
from commwatch.jobs.stuck import StuckJobs
from commwatch.lines import printable
from commwatch.node.store import Store
from commwatch.service.job_ras import JobRas
from commwatch.sources import files
from commwatch.units import format_seconds, time_of_day
from commwatch_exporters.snapshot import Series, Value

GROUP: Final = "job_words"
_RANK: Final = "commwatch_job_flight_recorder_rank"
_OPERATIONS: Final = KNOWN_OPERATIONS | {"send", "recv"}
"""Values of a label; a job can write any name."""
_MOST_RANKS: Final = 4
"""Of a job that metrics name."""
_MOST_CALLS: Final = 4
"""That a word names of those that timed out."""
_NO_CAUSE: Final[Collection[Side]] = ("symptom", "unknown")
"""Sides of errors that name no cause."""
_MOST_GPUS: Final = 8
"""That a word names."""


class JobWords:
    """The words of Flight Recorder, Inspector, logs and RAS on each job that is suspected now.

    Args:
        settings: knows ranks of processes, and where their dumps and logs are.
        ras: None where it is not asked.
    """

    def __init__(
        self,
        store: Store,
        stuck: StuckJobs,
        dumps: FlightRecorderVerdicts,
        logs: JobLogs,
        settings: JobSettings,
        ras: JobRas | None,
        procfs: Path,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        store.declare(GROUP, holds=[_RANK])
        self._store = store
        self._stuck = stuck
        self._dumps = dumps
        self._logs = logs
        self._settings = settings
        self._ras = ras
        self._procfs = procfs
        self._monotonic = monotonic

    def words(self, now: float) -> dict[str, tuple[JobEvidence, ...]]:
        """The words on each job, by the PCI address of its lowest GPU; the ranks in them are put into the store.

        Args:
            now: seconds since 1970.
        """
        words: dict[str, tuple[JobEvidence, ...]] = {}
        shown: dict[Series, Value] = {}
        for job in self._stuck.suspected(self._monotonic()):
            if job.ranks:
                found = self._verdict_on(job, now)
                words[first_gpu(job)] = tuple(self._on(job, found, now))
                if found is not None and found[1]:
                    shown.update(_named_ranks(job, found[0].verdict))
        self._store.show(GROUP, "", shown, self._monotonic())
        return words

    def _on(self, job: SuspectedJob, found: tuple[JobVerdict, bool] | None, now: float) -> Iterator[JobEvidence]:
        if found is not None:
            verdict, is_own = found
            places = self._settings.places if is_own else {}
            whose = "" if is_own else ", of this user; whether of this job is not known"
            yield word_on(job, verdict, {pid: one.rank for pid, one in places.items()}, whose)
        yield from self._inspector(job)
        yield from self._log(job, now)
        yield from self._answer_of_ras(job)

    # --- Flight Recorder ---

    def _verdict_on(self, job: SuspectedJob, now: float) -> tuple[JobVerdict, bool] | None:
        """The likeliest verdict that counts, and whether it is known to be on this job; None without one."""
        payload = now - job.seconds
        current = [one for one in self._dumps.latest if is_of_pause(one, payload, now)]
        if not current:
            return None
        pids = {one.pid for one in job.ranks}
        others = {pid for these in self._store.occupants.values() for pid in these} - pids
        user = self._user(pids)
        found = [one for one in current if one.owner == user and one.series not in self._series(others)]
        if own := self._series(pids):
            found = [one for one in found if one.series in own] if self._is_one(pids, own) else []
        elif len({one.series for one in found}) > 1 or user in map(self._read_user, others):
            found = []  # they may be of another job of this user
        return (found[0], bool(own)) if found else None

    def _series(self, pids: Collection[int]) -> set[str]:
        """Where the dumps of some processes are, as far as it is known."""
        places = (self._settings.places.get(pid) for pid in pids)
        return {one.dumps for one in places if one is not None and one.dumps}

    def _is_one(self, pids: Collection[int], names: Collection[str]) -> bool:
        """Whether all that processes write is of one job: those without a launcher count as one, and may be several."""
        return len(names) == 1 or all(self._store.jobs.get(pid) for pid in pids)

    def _user(self, pids: Collection[int]) -> int | None:
        """The user of all processes of a job that have not ended; None where there are several, or it is not known."""
        users = {user for pid in sorted(pids)[:RANKS_MAX] if (user := self._read_user(pid)) is not None}
        return users.pop() if len(users) == 1 else None

    def _read_user(self, pid: int) -> int | None:
        users = files.parse_users(files.read_if_there(f"{self._procfs}/{pid}/status"))
        return None if users is None else users.real

    # --- logs ---

    def _log(self, job: SuspectedJob, now: float) -> Iterator[JobEvidence]:
        """The likeliest cause and the time-outs in what was read since the last payload of the job's own logs."""
        pids = {one.pid for one in job.ranks}
        others = {pid for these in self._store.occupants.values() for pid in these} - pids
        own = self._logs_of(pids) - self._logs_of(others)
        monotonic = self._monotonic()
        found = self._logs.errors_since(monotonic - job.seconds, own) if self._is_one(pids, own) else []
        cause = first_culprit(Finding(category_of(one.errors)) for one in found)
        of_cause = [one for one in found if category_of(one.errors) == cause and _about(one).side not in _NO_CAUSE]
        # Without a call, the rank can be the one that did not come.
        timed_out = [one for one in found if one.errors.rank is not None and one.errors.call]
        if not (named := [*of_cause, *timed_out]):
            return
        here = {port.partition(":")[0] for port in self._store.group("rdma") if port}
        parts = sorted({one.errors.hca for one in of_cause} & here)
        words = [*_cause_in_words(of_cause, parts), *_time_outs_in_words(timed_out)]
        since = now - monotonic + min(one.first for one in named)
        read = now - monotonic + max(one.last for one in named)
        yield JobEvidence("log", f"job log (read {time_of_day(read)}): {'; '.join(words)}", tuple(parts), since)

    def _logs_of(self, pids: Collection[int]) -> set[str]:
        """Identities of the logs of some processes, as far as they are known."""
        places = (self._settings.places.get(pid) for pid in pids)
        return {log for one in places if one is not None for log in one.logs}

    # --- Inspector and RAS ---

    def _inspector(self, job: SuspectedJob) -> Iterator[JobEvidence]:
        block = self._store.get(INSPECTOR, "")
        addresses, late = {one.address for one in job.ranks}, self._monotonic() - (block.time if block else 0.0)
        ages = [
            age + late
            for (metric, labels), age in (zip(block.layout.series, block.values, strict=True) if block else ())
            if metric == "commwatch_job_last_communication_seconds" and labels[1] in addresses and age is not None
        ]
        if ages and (age := min(ages)) <= job.seconds:
            yield JobEvidence("inspector", f"Inspector: newest record {format_seconds(max(1, round(age)))} ago")

    def _answer_of_ras(self, job: SuspectedJob) -> Iterator[JobEvidence]:
        if self._ras is None:
            return
        pids = frozenset(one.pid for one in job.ranks)
        word = self._ras.word_on(pids, self._monotonic() - job.seconds)
        if word is None or word.outcome not in ("agree", "differ"):
            return  # any other one is about why it was not asked, or of which job it is not known
        behind = sorted({(one.gpu, one.address) for one in job.ranks if one.pid in word.behind_pids})[:_MOST_GPUS]
        where = f" (on this node: {', '.join(f'GPU{gpu}' for gpu, _ in behind)})" if behind else ""
        yield JobEvidence("ras", f"{printable(word.words)}{where}", tuple(address for _, address in behind))


def _about(one: LastErrors) -> About:
    """The cause that the line itself names, else what its category says."""
    category = category_of(one.errors)
    return about_line(category, one.errors.text) or CATEGORIES[category]


def _cause_in_words(found: Sequence[LastErrors], devices: Sequence[str]) -> Iterator[str]:
    for one in found[:1]:
        happened = _about(one).happened.rstrip(".")
        yield f"{happened} ({', '.join(devices)})" if devices else happened


def _time_outs_in_words(found: Sequence[LastErrors]) -> Iterator[str]:
    calls: dict[str, set[int]] = {}
    for one in found:
        if one.errors.rank is not None:
            calls.setdefault(one.errors.call, set()).add(one.errors.rank)
    for call, ranks in list(calls.items())[:_MOST_CALLS]:
        yield f"{ranks_text(ranks)} timed out in {printable(call)}"


def _named_ranks(job: SuspectedJob, verdict: Verdict) -> Iterator[tuple[Series, Value]]:
    """The first ranks that a certain verdict names, at the job's lowest GPU."""
    gpu, address = min((one.gpu, one.address) for one in job.ranks)
    operation = verdict.operation if verdict.operation in _OPERATIONS else "other"
    for rank in verdict.ranks[:_MOST_RANKS] if verdict.is_certain else ():
        yield (_RANK, (str(gpu), address, str(rank), verdict.kind, operation)), verdict.sequence_number or 0
