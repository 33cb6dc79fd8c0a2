"""The report of a check or a probe on one of its nodes, for the daemon of that node; it names no other node."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec

from commwatch.cluster.messages import MOST_RAILS, Failure, FailureCause, Quantity, Unreachable, Verdict, Word
from commwatch.probes.rank_plan import SkipReason
from commwatch.state.records import Count, Ratio, Timestamp, check_unique

OPERATION: Final = "cluster-report"
CHECK_OPERATION: Final = "cluster-check"
"""Of the control socket of a daemon, which takes the report of a probe or of a check."""
MOST_SUSPICIONS: Final = 32
"""Of one node; a node is named with its rails together."""
CAUSES: Final[tuple[FailureCause, ...]] = get_args(FailureCause)

Kind: TypeAlias = Literal["leaf", "uplink", "node", "nic", "pair", "network"]
Fault: TypeAlias = Literal["failed", "transport", "bandwidth", "latency"]
Direction: TypeAlias = Literal["out", "in", "both"]
LeafSource: TypeAlias = Literal["none", "slurm", "topograph", "file"]

RunOutcome: TypeAlias = Literal["completed", "too_few", "busy", "gave_way", "lost", "broken"]
"""How a run went for one node. ``completed``: it was measured, and the run judged; ``too_few``: fewer than two nodes
were measured; ``busy``: it was not free; ``lost``: it did not answer in time; ``broken``: it was turned away, ended by
a signal, or the store was lost."""


# --- a probe ---


class RailResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurements of one rail of the node with all its partners; the best counts, since other traffic only
    slows."""

    rail: Annotated[int, msgspec.Meta(ge=0, lt=MOST_RAILS)]
    device: Word
    """Interface, RDMA device or simulated GPU of this node."""
    sent: Quantity | None = None
    """Bytes per second."""
    received: Quantity | None = None
    sent_ratio: Ratio | None = None
    """Of what is usual among equal nodes."""
    received_ratio: Ratio | None = None
    latency: Quantity | None = None
    """Seconds of a small message there and back, halved."""
    good: Count = 0
    """Partners with which nothing was bad."""
    slow: Count = 0
    failed: Count = 0


class Suspicion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part that the run names, and that this node is or uses."""

    kind: Kind
    element: Word
    """Device of a NIC, name of a leaf; else the kind."""
    fault: Fault
    direction: Direction
    ratio: Ratio | None
    """Of what is usual; None where nothing was measured."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the suspicion: part and fault."""
        return (self.kind, self.element, self.fault)


class NetworkRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate from one node to another one, all rails together, in bytes per second."""

    usual: Quantity
    low: Quantity
    """All but a tenth of the measurements gave more."""
    high: Quantity
    inside: Quantity | None = None
    """Between the GPUs of a node, as the operator said."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    finished_at: Timestamp
    """By the clock of the node."""
    outcome: RunOutcome
    skip: SkipReason | Literal[""] = ""
    """Why the node was not free."""
    engine: Word = ""
    """The launcher of the members."""
    backend: Word = ""
    nodes: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """That were measured."""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """That the run took."""
    occupied_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """Seconds for which it occupied each GPU of this node."""
    nccl_version: Word = ""
    """Of its ranks; empty without NCCL."""
    settings: Word = ""
    """Digest of the NCCL settings that its ranks found on the node; empty without any."""
    block: Word = ""
    """The part above the leaf, by the launcher."""
    leaf: Word = ""
    leaf_source: LeafSource = "none"
    rails: Annotated[tuple[RailResult, ...], msgspec.Meta(max_length=MOST_RAILS)] = ()
    suspicions: Annotated[tuple[Suspicion, ...], msgspec.Meta(max_length=MOST_SUSPICIONS)] = ()
    network: NetworkRates | None = None

    def __post_init__(self) -> None:
        check_unique(((one.rail, one.device) for one in self.rails), "rail")


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The store's last message: the run is over, with the report on the member's node."""

    exit_code: int
    report: NodeReport


def skip_of(detail: str) -> SkipReason | Literal[""]:
    """The reason at the beginning of why a node is not free; empty where it begins with none that is known."""
    word = detail.partition(":")[0]
    return next((one for one in get_args(SkipReason) if one == word), "")


# --- a check ---


class CheckReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    finished_at: Timestamp
    """By the clock of the node."""
    outcome: Literal["completed", "unreached"]
    """``unreached``: the member did not get to the meeting place, and nothing else was checked."""
    causes: Annotated[tuple[FailureCause, ...], msgspec.Meta(max_length=len(CAUSES))] = ()
    """Of what is to be cured on this node."""
    unreachable: Annotated[tuple[Unreachable, ...], msgspec.Meta(max_length=4)] = ()

    def __post_init__(self) -> None:
        check_unique(self.causes, "cause")
        check_unique(((one.port_kind, one.direction) for one in self.unreachable), "unreachable port")


def report_of_verdict(verdict: Verdict, rank: int, now: float) -> CheckReport:
    """The report of a verdict on a member.

    Args:
        now: seconds since 1970.
    """
    failed = {one.cause for one in verdict.failures if rank in one.ranks and not one.minor}
    return CheckReport(
        run=os.urandom(16).hex(),
        finished_at=now,
        outcome="completed",
        causes=tuple(one for one in CAUSES if one in failed),
        unreachable=next((one.unreachable for one in verdict.members if one.rank == rank), ()),
    )


def report_of_unreached(failure: Failure, rank: int, now: float) -> CheckReport:
    """The report of a member that took no part: it did not get to the store, or the store is of another version.

    Member 0 without a port has no way to go.

    Args:
        now: seconds since 1970.
    """
    missed = rank != 0 and failure.cause != "version"
    return CheckReport(
        run=os.urandom(16).hex(),
        finished_at=now,
        outcome="unreached",
        causes=tuple(one for one in CAUSES if one == failure.cause and rank in failure.ranks),
        unreachable=(Unreachable(port_kind="rendezvous", direction="out", peers=1),) if missed else (),
    )
