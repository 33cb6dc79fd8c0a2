"""What a check says of one of its nodes: made by the member there, handed to its daemon; no other node is in it."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec

from commwatch.cluster.messages import Failure, FailureCause, Unreachable, Verdict
from commwatch.state.records import Timestamp, check_unique

OPERATION: Final = "cluster-check"
"""Of the control socket of a daemon, which takes a report."""
CheckOutcome: TypeAlias = Literal["completed", "unreached"]
CAUSES: Final[tuple[FailureCause, ...]] = get_args(FailureCause)


class CheckReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a check says of one node."""

    run: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    """Identity of the report."""
    finished_at: Timestamp
    """By the clock of the node."""
    outcome: CheckOutcome
    """``unreached``: the member took no part at the meeting place, and nothing else was looked at."""
    causes: Annotated[tuple[FailureCause, ...], msgspec.Meta(max_length=len(CAUSES))] = ()
    """Of what is to be cured on this node."""
    unreachable: Annotated[tuple[Unreachable, ...], msgspec.Meta(max_length=4)] = ()

    def __post_init__(self) -> None:
        check_unique(self.causes, "cause")
        check_unique(((one.port_kind, one.direction) for one in self.unreachable), "unreachable port")


def report_of_verdict(verdict: Verdict, rank: int, now: float) -> CheckReport:
    """What a verdict says of a member.

    Args:
        verdict: of all members.
        rank: of the member.
        now: seconds since 1970.
    """
    failures = [one for one in verdict.failures if rank in one.ranks and not one.minor]
    unreachable = next((one.unreachable for one in verdict.members if one.rank == rank), ())
    return _report("completed", failures, unreachable, now)


def report_of_unreached(failure: Failure, rank: int, now: float) -> CheckReport:
    """What a member knows of itself that took no part: it did not get to the store, or the store is of another version.

    Member 0 without a port has no way to go.

    Args:
        failure: that keeps it away.
        rank: of the member.
        now: seconds since 1970.
    """
    missed = rank != 0 and failure.cause != "version"
    unreachable = (Unreachable(port_kind="rendezvous", direction="out", peers=1),) if missed else ()
    failures = [failure] if rank in failure.ranks else []
    return _report("unreached", failures, unreachable, now)


def _report(
    outcome: CheckOutcome, failures: list[Failure], unreachable: tuple[Unreachable, ...], now: float
) -> CheckReport:  # fmt: skip
    causes = {one.cause for one in failures}
    return CheckReport(
        run=os.urandom(16).hex(), finished_at=now, outcome=outcome,
        causes=tuple(one for one in CAUSES if one in causes), unreachable=unreachable,
    )  # fmt: skip
