"""What a run says of one of its nodes: made by the store, handed to the daemon of that node; no other node is in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec

from commwatch.cluster.locate import Cell, Direction, Fault, Kind, Named, Verdict, cells_of
from commwatch.cluster.messages import MOST_RAILS, Quantity, Word, word_of
from commwatch.cluster.run_file import LeafSource, Measured, Run
from commwatch.probes.plan import SkipReason
from commwatch.state.records import Count, Timestamp

OPERATION: Final = "cluster-report"
"""Of the control socket of a daemon, which takes a report."""
MOST_SUSPICIONS: Final = 32
"""Of one node; a node is named with its rails together."""

RunOutcome: TypeAlias = Literal["completed", "too_few", "busy", "gave_way", "lost", "broken"]
"""How a run went for one node. ``completed``: it was measured, and the run judged; ``too_few``: fewer than two nodes
were measured; ``busy``: it was not free; ``lost``: it did not answer in time; ``broken``: it was turned away, ended by
a signal, or the store was lost."""

Ratio = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


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
    leaf: Word = ""
    leaf_source: LeafSource = "none"
    rails: Annotated[tuple[RailResult, ...], msgspec.Meta(max_length=MOST_RAILS)] = ()
    suspicions: Annotated[tuple[Suspicion, ...], msgspec.Meta(max_length=MOST_SUSPICIONS)] = ()
    network: NetworkRates | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The store's last word: the run is over, and this is what it says of the member's node."""

    exit_code: int
    report: NodeReport


class Findings(msgspec.Struct, frozen=True):
    """What the run measured, by its members."""

    rails: Mapping[int, tuple[RailResult, ...]]
    suspicions: Mapping[int, tuple[Suspicion, ...]]
    network: NetworkRates | None


def skip_of(detail: str) -> SkipReason | Literal[""]:
    """The reason at the beginning of why a node is not free; empty where it begins with none that is known."""
    word = detail.partition(":")[0]
    return next((one for one in get_args(SkipReason) if one == word), "")


def findings_of(run: Run, verdict: Verdict, devices: Sequence[Sequence[str]]) -> Findings:
    """What a run says of each of its members.

    Args:
        run: as it was measured.
        verdict: of it.
        devices: of each member, by rail.
    """
    return Findings(_rails(run, devices), _suspicions(run, verdict, devices), _network(verdict))


def _network(verdict: Verdict) -> NetworkRates | None:
    whole = verdict.whole
    if whole is None:
        return None
    return NetworkRates(usual=whole.node, low=whole.low, high=whole.high, inside=whole.inside)


# --- rails ---


class _Of(msgspec.Struct):
    """What is known of one rail of a member so far."""

    sent: list[float] = []
    received: list[float] = []
    sent_ratio: list[float] = []
    received_ratio: list[float] = []
    latency: list[float] = []
    pairs: dict[str, int] = {}


def _rails(run: Run, devices: Sequence[Sequence[str]]) -> Mapping[int, tuple[RailResult, ...]]:
    known: dict[int, dict[int, _Of]] = defaultdict(lambda: defaultdict(_Of))
    bad: set[int] = set()
    for fault, cells in cells_of(run):
        bad |= {cell.measured for cell in cells if cell.is_bad}
        if fault == "bandwidth":
            _take_ratios(cells, known)
    for one in run.measured:
        if one.rail is not None:
            _take(one, one.rail, known, is_bad=id(one) in bad)
    return {
        member: tuple(
            RailResult(
                rail=rail,
                device=word_of(devices[member][rail]) if rail < len(devices[member]) else "",
                sent=max(of.sent, default=None),
                received=max(of.received, default=None),
                sent_ratio=max(of.sent_ratio, default=None),
                received_ratio=max(of.received_ratio, default=None),
                latency=min(of.latency, default=None),
                good=of.pairs.get("good", 0),
                slow=of.pairs.get("slow", 0),
                failed=of.pairs.get("failed", 0),
            )
            for rail, of in sorted(rails.items())
        )
        for member, rails in known.items()
    }


def _take_ratios(cells: Iterable[Cell], known: Mapping[int, Mapping[int, _Of]]) -> None:
    for cell in cells:
        if cell.rail is not None and cell.ratio is not None:
            known[cell.source][cell.rail].sent_ratio.append(cell.ratio)
            known[cell.destination][cell.rail].received_ratio.append(cell.ratio)


def _take(one: Measured, rail: int, known: Mapping[int, Mapping[int, _Of]], *, is_bad: bool) -> None:
    outcome = "failed" if one.failed else "slow" if is_bad else "good"
    for member, sent, received in (
        (one.first, one.forward, one.backward),
        (one.second, one.backward, one.forward),
    ):
        of = known[member][rail]
        of.sent += [] if sent is None else [sent]
        of.received += [] if received is None else [received]
        of.latency += [] if one.latency is None else [one.latency]
        of.pairs[outcome] = of.pairs.get(outcome, 0) + 1


# --- suspicions ---


def _suspicions(
    run: Run, verdict: Verdict, devices: Sequence[Sequence[str]]
) -> Mapping[int, tuple[Suspicion, ...]]:  # fmt: skip
    found: dict[int, list[Suspicion]] = defaultdict(list)
    places = {one.name: place for place, one in enumerate(run.members)}
    for named in verdict.named:
        for member in _touched(named, run, places):
            if len(found[member]) < MOST_SUSPICIONS:
                found[member].append(
                    Suspicion(
                        kind=named.kind,
                        element=_element(named, run.members[member].leaf, devices[member]),
                        fault=named.fault,
                        direction=_seen_from(named, run.members[member].name),
                        ratio=named.ratio,
                    )
                )
    return {member: tuple(of) for member, of in found.items()}


def _touched(named: Named, run: Run, places: Mapping[str, int]) -> Iterable[int]:
    if named.kind == "network":
        return places.values()
    if named.kind in ("leaf", "uplink"):
        return [place for place, one in enumerate(run.members) if one.leaf in named.elements]
    return [places[name] for name in named.elements]


def _element(named: Named, leaf: str, devices: Sequence[str]) -> str:
    if named.kind in ("leaf", "uplink"):
        return word_of(leaf)
    rail = named.rails[0] if named.rails else None
    if named.kind == "nic" and rail is not None and rail < len(devices):
        return word_of(devices[rail])
    return named.kind


def _seen_from(named: Named, name: str) -> Direction:
    """The direction as the node itself sees it: that of a pair is that of its first end."""
    if named.kind != "pair" or named.direction == "both" or name == named.elements[0]:
        return named.direction
    return "in" if named.direction == "out" else "out"
