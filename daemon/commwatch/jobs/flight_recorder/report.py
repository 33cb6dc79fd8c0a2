"""The verdicts on dumps, each with whose dumps they are, as the source hands them to the daemon."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from commwatch.jobs.flight_recorder.verdict import Verdict
from commwatch.state.records import Timestamp

COLLECTOR: Final = "flight_recorder"
"""Of the source, and of its only collector."""
MOST_VERDICTS: Final = 16
MOST_RANKS: Final = 64
"""Of each list of a verdict: the first ones."""
_LONGEST_LABEL, _LONGEST_DETAIL = 256, 4096


class JobVerdict(msgspec.Struct, frozen=True):
    owner: int
    """Id of the user whose dumps they are."""
    series: str
    """See ``files.series_of``."""
    taken: Timestamp
    """When the last of them was written, seconds since 1970; the user can set any time."""
    verdict: Verdict


JobVerdicts: TypeAlias = Annotated[tuple[JobVerdict, ...], msgspec.Meta(max_length=MOST_VERDICTS)]


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
