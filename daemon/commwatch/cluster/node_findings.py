"""The results of a run for each of its nodes, from the measurements and the verdict; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from commwatch.cluster.locate import Named, Verdict, cells_of
from commwatch.cluster.messages import word_of
from commwatch.cluster.node_report import MOST_SUSPICIONS, Direction, NetworkRates, RailResult, Suspicion
from commwatch.cluster.run_file import Measured, Run


class Findings(msgspec.Struct, frozen=True):
    """The measurements of the run, by its members."""

    rails: Mapping[int, tuple[RailResult, ...]]
    suspicions: Mapping[int, tuple[Suspicion, ...]]
    network: NetworkRates | None


def findings_of(run: Run, verdict: Verdict, devices: Sequence[Sequence[str]]) -> Findings:
    return Findings(_rails(run, devices), _suspicions(run, verdict, devices), _network(verdict))


def _network(verdict: Verdict) -> NetworkRates | None:
    whole = verdict.whole
    if whole is None:
        return None
    return NetworkRates(usual=whole.node, low=whole.low, high=whole.high, inside=whole.inside)


# --- rails ---


def _rails(run: Run, devices: Sequence[Sequence[str]]) -> Mapping[int, tuple[RailResult, ...]]:
    bad: set[int] = set()
    ratios: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for fault, cells in cells_of(run):
        bad |= {one.measured for one in cells if one.is_bad}
        for one in cells if fault == "bandwidth" else ():
            if one.rail is not None and one.ratio is not None:
                ratios[one.source, one.rail, "sent"].append(one.ratio)
                ratios[one.destination, one.rail, "received"].append(one.ratio)
    of_rail: dict[tuple[int, int], list[tuple[Measured, float | None, float | None]]] = defaultdict(list)
    for measured in run.measured:
        if measured.rail is not None:
            of_rail[measured.first, measured.rail].append((measured, measured.forward, measured.backward))
            of_rail[measured.second, measured.rail].append((measured, measured.backward, measured.forward))
    found: dict[int, tuple[RailResult, ...]] = defaultdict(tuple)
    for (member, rail), of in sorted(of_rail.items()):
        outcomes = Counter("failed" if one.failed else "slow" if id(one) in bad else "good" for one, _, _ in of)
        device = devices[member][rail] if rail < len(devices[member]) else ""
        found[member] += (
            RailResult(
                rail=rail,
                device=word_of(device),
                sent=max((sent for _, sent, _ in of if sent is not None), default=None),
                received=max((received for _, _, received in of if received is not None), default=None),
                sent_ratio=max(ratios[member, rail, "sent"], default=None),
                received_ratio=max(ratios[member, rail, "received"], default=None),
                latency=min((one.latency for one, _, _ in of if one.latency is not None), default=None),
                good=outcomes["good"],
                slow=outcomes["slow"],
                failed=outcomes["failed"],
            ),
        )
    return found


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
