"""The ranks of jobs that do not go on, read by a command with the rights of whoever runs it.

The daemon's unit sees state, CPU time and switches of other users' processes. Root and the job's user see where they
wait, too. Nothing here attaches to a process. Takes seconds: for commands, never for the daemon's event loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from commwatch.jobs import in_child
from commwatch.jobs.evidence import JobEvidence, JobRank, SuspectedJob, first_gpu, has_arrived_alone
from commwatch.jobs.ranks import RANKS_MAX, REASONS, SAMPLES, RankSample, Sampled, odd_rank, read_rank
from commwatch.jobs.settings.facts import ProcessSettings
from commwatch.jobs.settings.owner import read_owners

SECONDS_APART: Final = 2.0
"""Between two samples: what computes or waits throughout does so over four seconds."""
_RIGHTS: Final = {
    True: "state, CPU time, switches and where each waits",
    False: "state, CPU time and switches only; root and the job's user see where each waits, too",
}

Source: TypeAlias = Callable[[Sequence[SuspectedJob]], Mapping[str, JobEvidence]]
"""One source of evidence: jobs to its word on each, by the PCI address of the job's lowest GPU."""


def ask_sources(jobs: Sequence[SuspectedJob], sources: Sequence[Source]) -> dict[str, tuple[JobEvidence, ...]]:
    """The word of each source on each job, in the order of the sources."""
    answers = [source(jobs) for source in sources]
    return {key: tuple(one[key] for one in answers if key in one) for key in map(first_gpu, jobs)}


class ProcessTable:
    """The process table as a source: which rank differs from its peers.

    Args:
        identity: also say whose job it is, as ``jobs.identity`` of the configuration asks for.
        pause: lets seconds pass.
        monotonic: seconds.
    """

    def __init__(
        self,
        procfs: Path,
        *,
        identity: bool = False,
        pause: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._procfs = procfs
        self._identity = identity
        self._pause = pause
        self._monotonic = monotonic

    def __call__(self, jobs: Sequence[SuspectedJob]) -> dict[str, JobEvidence]:
        """Sample the processes of all jobs together; takes ``SECONDS_APART`` between two samples."""
        courses: dict[str, list[tuple[float, Mapping[int, RankSample | None]]]] = {first_gpu(job): [] for job in jobs}
        for number in range(SAMPLES):
            if number:
                self._pause(SECONDS_APART)
            for job in jobs:
                pids = sorted({one.pid for one in job.ranks})[:RANKS_MAX]
                sample = {pid: read_rank(self._procfs, pid) for pid in pids}
                courses[first_gpu(job)].append((self._monotonic(), sample))
        return {
            key: JobEvidence("proc", *self._judge(job, course))
            for job, (key, course) in zip(jobs, courses.items(), strict=True)
        }

    def _judge(
        self, job: SuspectedJob, course: Sequence[tuple[float, Mapping[int, RankSample | None]]]
    ) -> tuple[str, tuple[str, ...]]:
        """The words, and the GPU that they name."""
        samples: list[Sampled] = [
            (at, {pid: one for pid, one in sample.items() if one is not None}) for at, sample in course
        ]
        count = len(course[0][1])
        if any(len(sample) < count for _, sample in samples):
            return (
                f"the processes of its {count} ranks do not all show in {self._procfs} (hidepid, or another PID "
                "namespace): no rank is named",
                (),
            )
        if any(_is_another(rank, sample) for _, sample in samples for rank in job.ranks if rank.pid in sample):
            return "other processes than those of the daemon have the numbers of its ranks: no rank is named", ()
        is_full = any(one.call for _, sample in samples for one in sample.values())
        how = f"read as {_user()}: {_RIGHTS[is_full]}"
        odd = odd_rank(samples)
        if odd is None or has_arrived_alone(odd.pid, job.ranks):
            return f"of {count} ranks none alone differs from all others ({how})", ()
        rank = next(one for one in job.ranks if one.pid == odd.pid)
        is_on_disk = any(sample[odd.pid].state == "D" for _, sample in samples)
        who = self._who(job, rank, read=odd.reason != "gone" and not is_on_disk)
        return f"{who} differs from its {count - 1} peers: it {REASONS[odd.reason]} ({how})", (rank.address,)

    def _who(self, job: SuspectedJob, rank: JobRank, *, read: bool) -> str:
        """``rank 3 of 8 on GPU3 (process 4242, NCCL 2.27.3)``.

        Args:
            read: its environment and its libraries; those of a process that hangs in the kernel may block the reader.
        """
        settings: ProcessSettings | None = None
        owner, why = "", "its environment shows no rank"
        if read:
            try:
                settings = next(iter(in_child.ask(in_child.Task(str(self._procfs), (rank.pid,))).settings), None)
            except OSError as error:
                why = f"what its files say was not read: {error.strerror}"
            if self._identity and (owners := read_owners([rank.pid], self._procfs)):
                owner = f", {owners[0].owner.scheduler} job {owners[0].owner.job}"
        version = settings.nccl_version if settings is not None else None
        nccl = f", NCCL {'.'.join(map(str, version))}" if version else ""
        if settings is not None and settings.rank:
            of = f" of {settings.world_size}" if settings.world_size else ""
            local = f", local rank {settings.local_rank}" if settings.local_rank else ""
            return f"rank {settings.rank}{of} on GPU{rank.gpu} (process {rank.pid}{local}{nccl}{owner})"
        place = sorted({one.gpu for one in job.ranks}).index(rank.gpu)
        order = f"number {place} by the order of GPU indices, {why}"
        return f"the rank on GPU{rank.gpu} ({order}; process {rank.pid}{nccl}{owner})"


def _is_another(rank: JobRank, sample: Mapping[int, RankSample]) -> bool:
    """Whether the number of a rank belongs to another process than the one that the daemon saw."""
    return bool(sample[rank.pid].state) and sample[rank.pid].started != rank.started


def _user() -> str:
    return "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
