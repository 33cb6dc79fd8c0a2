"""The verdicts on dumps, each with whose dumps they are, as the source hands them to the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from commwatch.jobs.evidence import JobEvidence, SuspectedJob
from commwatch.jobs.flight_recorder.verdict import CLOCKS_SECONDS, Verdict
from commwatch.lines import printable
from commwatch.state.records import Timestamp
from commwatch.units import time_of_day

COLLECTOR: Final = "flight_recorder"
"""Of the source, and of its only collector."""
MOST_VERDICTS: Final = 16
MOST_RANKS: Final = 64
"""Of each list of a verdict: the first ones."""
_LONGEST_LABEL, _LONGEST_DETAIL = 256, 4096
_LONGEST_WORD, _MOST_GPUS = 400, 8
"""Characters of a verdict as evidence, and GPUs that it names."""


class JobVerdict(msgspec.Struct, frozen=True):
    owner: int
    """Id of the user whose dumps they are."""
    series: str
    """See ``files.series_of``."""
    taken: Timestamp
    """When the last of them was written, seconds since 1970; the user can set any time."""
    verdict: Verdict


JobVerdicts: TypeAlias = Annotated[tuple[JobVerdict, ...], msgspec.Meta(max_length=MOST_VERDICTS)]


def is_of_pause(one: JobVerdict, payload: float, now: float) -> bool:
    """Whether dumps are of the time since the last payload. Clocks of nodes differ, and a program calls its operations
    before the data of earlier ones has moved.

    Args:
        payload: when the last one moved, seconds since 1970.
        now: likewise.
    """
    return payload <= one.taken <= now + CLOCKS_SECONDS and one.verdict.since >= payload - CLOCKS_SECONDS


def word_on(job: SuspectedJob, one: JobVerdict, ranks: Mapping[int, int | None], whose: str = "") -> JobEvidence:
    """A verdict as evidence on a job.

    Args:
        ranks: by process.
        whose: the dumps are, where that is in doubt.
    """
    doubt = "" if one.verdict.is_certain else " (not certain)"
    detail = printable(one.verdict.detail).rstrip(".")
    if len(detail) > _LONGEST_WORD:
        detail = f"{detail[:_LONGEST_WORD]}…"
    places = {
        (rank, process.gpu, process.address)
        for process in job.ranks
        if (rank := ranks.get(process.pid)) is not None and rank in one.verdict.ranks
    }
    named = sorted(places)[:_MOST_GPUS]
    where = "".join(f"; rank {rank} is on GPU{gpu}" for rank, gpu, _ in named)
    words = f"Flight Recorder (dump {time_of_day(one.taken)}{whose}): {detail}{doubt}{where}"
    return JobEvidence("flight_recorder", words, tuple(address for _, _, address in named), one.verdict.since)


def shortened(verdict: Verdict) -> Verdict:
    """A verdict cut to what the daemon keeps of it: nothing of the program, and of all texts and lists the first."""
    return msgspec.structs.replace(
        verdict,
        ranks=verdict.ranks[:MOST_RANKS],
        waiting=verdict.waiting[:MOST_RANKS],
        group=verdict.group[:_LONGEST_LABEL],
        operation=verdict.operation[:_LONGEST_LABEL],
        detail=verdict.detail[:_LONGEST_DETAIL],
        frames={},
    )
