"""What a run says of each of its nodes, from what was measured and the verdict; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from commwatch.cluster.locate import Cell, Named, Verdict, cells_of
from commwatch.cluster.messages import word_of
from commwatch.cluster.node_report import MOST_SUSPICIONS, Direction, NetworkRates, RailResult, Suspicion
from commwatch.cluster.run_file import Measured, Run


class Findings(msgspec.Struct, frozen=True):
    """What the run measured, by its members."""

    rails: Mapping[int, tuple[RailResult, ...]]
    suspicions: Mapping[int, tuple[Suspicion, ...]]
    network: NetworkRates | None


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
