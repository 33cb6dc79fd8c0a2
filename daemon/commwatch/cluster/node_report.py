"""What a run says of one of its nodes: made by the store, handed to the daemon of that node; no other node is in it."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec

from commwatch.cluster.messages import MOST_RAILS, Quantity, Word
from commwatch.cluster.terms import Direction, Fault, Kind, LeafSource
from commwatch.probes.rank_plan import SkipReason
from commwatch.state.records import Count, Ratio, Timestamp, check_unique

OPERATION: Final = "cluster-report"
"""Of the control socket of a daemon, which takes a report."""
MOST_SUSPICIONS: Final = 32
"""Of one node; a node is named with its rails together."""

RunOutcome: TypeAlias = Literal["completed", "too_few", "busy", "gave_way", "lost", "broken"]
"""How a run went for one node. ``completed``: it was measured, and the run judged; ``too_few``: fewer than two nodes
were measured; ``busy``: it was not free; ``lost``: it did not answer in time; ``broken``: it was turned away, ended by
a signal, or the store was lost."""


class RailResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rail of the node measured with all its partners; the best counts, since others' traffic only slows."""

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
        """What it says of which part."""
        return (self.kind, self.element, self.fault)


class NetworkRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the network carries from one node to another one, all rails together, in bytes per second."""

    usual: Quantity
    low: Quantity
    """All but a tenth of the measurements gave more."""
    high: Quantity
    inside: Quantity | None = None
    """Between the GPUs of a node, as the operator said."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run says of one node."""

    run: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    """Identity of the run."""
    finished_at: Timestamp
    """By the clock of the node."""
    outcome: RunOutcome
    skip: SkipReason | Literal[""] = ""
    """Why the node was not free."""
    engine: Word = ""
    """What started the members."""
    backend: Word = ""
    nodes: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """That were measured."""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """That the run took."""
    occupied_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """For which it held each GPU of this node."""
    nccl_version: Word = ""
    """Of its ranks; empty without NCCL."""
    settings: Word = ""
    """Digest of the NCCL settings that its ranks found on the node; empty without any."""
    block: Word = ""
    """Above the leaf, as the launcher says."""
    leaf: Word = ""
    leaf_source: LeafSource = "none"
    rails: Annotated[tuple[RailResult, ...], msgspec.Meta(max_length=MOST_RAILS)] = ()
    suspicions: Annotated[tuple[Suspicion, ...], msgspec.Meta(max_length=MOST_SUSPICIONS)] = ()
    network: NetworkRates | None = None

    def __post_init__(self) -> None:
        check_unique(((one.rail, one.device) for one in self.rails), "rail")


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The store's last word: the run is over, and this is what it says of the member's node."""

    exit_code: int
    report: NodeReport


def skip_of(detail: str) -> SkipReason | Literal[""]:
    """The reason at the beginning of why a node is not free; empty where it begins with none that is known."""
    word = detail.partition(":")[0]
    return next((one for one in get_args(SkipReason) if one == word), "")
