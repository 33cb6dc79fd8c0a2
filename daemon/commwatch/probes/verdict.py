"""What came of a cycle, from what its ranks said and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, Protocol, cast, get_args

from commwatch.probes.plan import (
    ErrorEvent,
    Failed,
    FailureReason,
    Measured,
    Phase,
    RankResult,
    Skipped,
    SkipReason,
)

_TIMEOUTS: dict[Phase, FailureReason] = {
    "start": "start",
    "rendezvous": "rendezvous_timeout",
    "setup": "setup_timeout",
    "measure": "measure_timeout",
}


class RankState(Protocol):
    """A rank after its cycle."""

    @property
    def rank(self) -> int: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def error(self) -> ErrorEvent | None: ...
    @property
    def own_status(self) -> int | None: ...
    def last_words(self) -> str:
        """The end of its standard error."""


class Timeout(NamedTuple):
    """The rank that was furthest behind when a deadline passed."""

    rank: int
    phase: Phase
    seconds: float
    """Since the start of the ranks."""


class Problem(NamedTuple):
    """Why there is no result."""

    reason: FailureReason | SkipReason
    detail: str

    def result(self, finished_at: float, occupied_seconds: float) -> Failed | Skipped:
        """A failure, or a skip where the ranks found that they cannot run on this node at all."""
        if self.reason in get_args(SkipReason):
            reason = cast("SkipReason", self.reason)
            return Skipped(
                finished_at=finished_at, occupied_seconds=occupied_seconds, reason=reason, detail=self.detail
            )
        failure = cast("FailureReason", self.reason)
        return Failed(finished_at=finished_at, occupied_seconds=occupied_seconds, reason=failure, detail=self.detail)


def failure_of(ranks: Sequence[RankState], timeout: Timeout | None) -> Problem | None:
    """The cause among all that went wrong; None for a good cycle.

    When one rank dies, the others report that their peer is gone: a wrong sum comes first, then a rank that ended
    without a word, then what ranks reported, then the deadline.
    """
    reported = [(rank, rank.error) for rank in ranks if rank.error is not None]
    for rank, error in reported:
        if error.reason == "wrong_result":
            return Problem(error.reason, f"rank {rank.rank}: {error.detail}")
    if timeout is None:
        for rank in ranks:
            if rank.error is None and rank.phase != "done" and rank.own_status is not None:
                how = _how(rank.own_status)
                words = rank.last_words()
                return Problem(
                    "crashed", f"rank {rank.rank} {how} in phase {rank.phase}{': ' + words if words else ''}"
                )
    if reported:
        # NCCL's own errors say more than those of the ranks that only lost their peer.
        rank, error = min(reported, key=lambda one: one[1].reason == "crashed")
        return Problem(error.reason, f"rank {rank.rank}: {error.detail}")
    if timeout is not None:
        reason = _TIMEOUTS.get(timeout.phase, "measure_timeout")
        return Problem(reason, f"rank {timeout.rank} was in phase {timeout.phase} after {timeout.seconds:.1f} s")
    return None


def _how(status: int) -> str:
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def measured(
    ranks: Sequence[RankResult], *, finished_at: float, occupied_seconds: float, setup_seconds: float
) -> Measured:
    """The result of a cycle: the slowest rank holds all others, so its times stand for the cycle."""
    return Measured(
        finished_at=finished_at,
        occupied_seconds=occupied_seconds,
        setup_seconds=setup_seconds,
        latency_seconds=max(median(rank.latency_seconds) for rank in ranks),
        bandwidth_seconds=max(median(rank.bandwidth_seconds) for rank in ranks),
        ranks=tuple(ranks),
        torch_version=ranks[0].torch_version,
        nccl_version=ranks[0].nccl_version,
    )
