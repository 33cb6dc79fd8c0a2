"""Which connections between the nodes of a run fail, on which node that is to be cured, and how. Pure."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from commwatch.cluster.consistency import Contacts, Reports, names_of
from commwatch.cluster.interfaces import network
from commwatch.cluster.messages import Cause, Contact, Direction, Failure, Outcome, TriedPort, Unreachable

_CAUSES: Mapping[str, Cause] = {
    "refused": "refused", "filtered": "filtered", "no_route": "no_route", "stranger": "name", "mtu": "mtu",
}  # fmt: skip
_WORDS: Mapping[Cause, str] = {
    "refused": "turned away though a member listens there",
    "filtered": "no answer",
    "no_route": "no way leads there",
    "name": "another host answers at the address",
    "mtu": "1 byte passes, 64 KiB do not: large packets are lost on the way",
}


class Path(NamedTuple):
    """From which member to which."""

    source: int
    target: int


Failed = dict[Path, list[Outcome]]
Way = Literal["in", "out"]


def unreachable(contacts: Contacts, reports: Reports) -> Iterator[Failure]:
    """The meeting place first, then what fails between members that have both reported."""
    yield from _meeting(contacts, reports)
    yield from _names(contacts, reports)
    found = _by_cause(reports)
    tried = {Path(rank, one.whom) for rank, report in reports.items() for one in _between(report.outcomes, reports)}
    # A node without a route back answers no other: that is one cause, and its own tries show it.
    back = {Path(path.target, path.source) for path in found.get("no_route", {})}
    for cause in ("no_route", "refused", "filtered", "name", "mtu"):
        failed = found.get(cause, {})
        if cause == "filtered":
            failed = {path: ports for path, ports in failed.items() if path not in back}
        if failed:
            yield from _blamed(cause, failed, tried, contacts, reports)


def firewall_line(sources: Iterable[str], ports: str, direction: Direction) -> str:
    """The line that lets connections through.

    Args:
        sources: addresses or networks of the other ends.
        ports: one, or a range with a colon.
        direction: ``in`` for the node that listens.
    """
    others = ",".join(sorted(set(sources)))
    program = "ip6tables" if others.count(":") > 1 else "iptables"
    chain, where = ("OUTPUT", "-d") if direction == "out" else ("INPUT", "-s")
    return f"{program} -I {chain} -p tcp {where} {others} --dport {ports} -j ACCEPT"


def unreachable_peers(reports: Reports) -> Mapping[int, tuple[Unreachable, ...]]:
    """Of each member between whom and others a connection failed, how many others, by port and direction."""
    peers: defaultdict[int, defaultdict[tuple[TriedPort, Way], set[int]]] = defaultdict(lambda: defaultdict(set))
    failed: list[tuple[int, int, TriedPort]] = [
        (one, 0, "rendezvous") for of in _missed(reports).values() for one in of
    ]
    for rank, report in reports.items():
        tries = _between(report.outcomes, reports)
        failed += [(rank, one.whom, "ephemeral") for one in tries if one.result in _CAUSES]
    for source, target, kind in failed:
        if source != target:
            peers[source][kind, "out"].add(target)
            peers[target][kind, "in"].add(source)
    return {
        rank: tuple(
            Unreachable(port_kind=kind, direction=way, peers=len(others))
            for (kind, way), others in sorted(of_member.items())
        )
        for rank, of_member in peers.items()
    }


# --- the meeting place ---


def _meeting(contacts: Contacts, reports: Reports) -> Iterator[Failure]:
    host = contacts[0].name if 0 in contacts else "rank 0"
    for port, owner in _taken(reports).items():
        yield busy_port(host, port, owner)
    for (result, port), ranks in _missed(reports).items():
        yield Failure(
            cause=_CAUSES[result], who=host, whom=names_of(ranks, contacts), port=str(port), direction="in",
            detail=f"the meeting place: {_WORDS[_CAUSES[result]]}",
            cure=firewall_line(_networks(ranks, contacts, reports), str(port), "in"), ranks=(0,),
        )  # fmt: skip


def _taken(reports: Reports) -> dict[int, str]:
    """Ports of the meeting place that something else has, with what that is."""
    outcomes = (one for report in reports.values() for one in report.outcomes)
    return {one.port: one.detail for one in outcomes if one.kind == "rendezvous" and one.result == "busy_port"}


def _missed(reports: Reports) -> Mapping[tuple[str, int], list[int]]:
    """Members that did not get to a free port of the meeting place, by result and port."""
    taken = _taken(reports)
    found: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, report in reports.items():
        for one in report.outcomes:
            missed = one.kind == "rendezvous" and one.result in ("refused", "filtered", "no_route")
            if missed and one.port not in taken:
                # It did reach the store, on a later port of the same node: there is a route.
                found["filtered" if one.result == "no_route" else one.result, one.port].append(rank)
    return found


def busy_port(who: str, port: int, owner: str) -> Failure:
    """The port on which the job would meet is taken."""
    detail = f"taken by {owner}" if owner else "something else answers there"
    return Failure(
        cause="busy_port", who=who, port=str(port), direction="in", detail=detail,
        cure=f"ss -ltnp 'sport = :{port}', then end that process or export MASTER_PORT={port + 1}", ranks=(0,),
    )  # fmt: skip


def _names(contacts: Contacts, reports: Reports) -> Iterator[Failure]:
    """Members whose name does not lead to them, by who was asked."""
    wrong: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)
    for rank, report in reports.items():
        for one in report.outcomes:
            if one.result == "name" and one.kind != "rendezvous" and one.whom in contacts:
                wrong[one.whom, one.address, one.detail].append(rank)
    for (target, name, detail), ranks in wrong.items():
        address = contacts[target].addresses[0] if contacts[target].addresses else "ADDRESS"
        yield Failure(
            cause="name", who=names_of(ranks, contacts), whom=contacts[target].name,
            detail=f"{name} {detail}", cure=f"echo '{address} {name}' >> /etc/hosts", ranks=tuple(ranks),
        )  # fmt: skip


# --- between members ---


def _between(outcomes: Iterable[Outcome], reports: Reports) -> Iterator[Outcome]:
    """The tries of ports of members that reported: one that left meanwhile is no evidence on the network."""
    return (one for one in outcomes if one.kind == "ephemeral" and one.port and one.whom in reports)


def _by_cause(reports: Reports) -> dict[Cause, Failed]:
    found: dict[Cause, Failed] = {}
    for rank, report in reports.items():
        outcomes = list(_between(report.outcomes, reports))
        # A firewall may answer "no route" for a port; where another port of the address is open, there is one.
        reached = {(one.whom, one.address) for one in outcomes if one.result in ("open", "mtu")}
        for one in outcomes:
            if (cause := _CAUSES.get(one.result)) is not None:
                if cause == "no_route" and (one.whom, one.address) in reached:
                    cause = "filtered"
                found.setdefault(cause, {}).setdefault(Path(rank, one.whom), []).append(one)
    return found


def _blamed(cause: Cause, failed: Failed, tried: set[Path], contacts: Contacts, reports: Reports) -> Iterator[Failure]:
    """One line for each node that is common to all that fails there, else for each node that is not reached."""
    left = dict(failed)
    of_ends: tuple[defaultdict[int, set[Path]], ...] = (defaultdict(set), defaultdict(set))
    for path in tried:
        for end, rank in enumerate(path):
            of_ends[end][rank].add(path)

    def take(paths: set[Path]) -> Failed:
        return {path: left.pop(path) for path in paths}

    if cause == "mtu":
        for rank in sorted(reports):
            both = of_ends[0][rank] | of_ends[1][rank]
            if len(both) > 2 and both <= left.keys():
                yield _failure(cause, rank, "", take(both), contacts, reports)
    for direction, end in (("in", 1), ("out", 0)):
        for rank in sorted(reports):
            all_of = of_ends[end][rank]
            if len(all_of) > 1 and all_of <= left.keys():
                yield _failure(cause, rank, direction, take(all_of), contacts, reports)  # type: ignore[arg-type]
    for rank in sorted({path.target for path in left}):
        yield _failure(cause, rank, "in", take({path for path in left if path.target == rank}), contacts, reports)


def _failure(
    cause: Cause, rank: int, direction: Direction, failed: Failed, contacts: Contacts, reports: Reports
) -> Failure:
    others = sorted({end for path in failed for end in path} - {rank})
    ports = sorted({one.port for outcomes in failed.values() for one in outcomes})
    listeners = [contacts[path.target] for path in failed]
    low, high = min(one.low for one in listeners), max(one.high for one in listeners)
    whole = all(len({one.port for one in found}) == len(contacts[path.target].ports) for path, found in failed.items())
    shown = "" if cause == "mtu" else f"{low}-{high}" if whole else ", ".join(map(str, ports[:3]))
    detail, cure = _WORDS[cause], ""
    if cause in ("refused", "filtered"):
        cure = firewall_line(_networks(others, contacts, reports), f"{low}:{high}", direction)
    elif cause == "no_route":
        source, target = (rank, others[0]) if direction == "out" or len(others) == 1 else (others[0], rank)
        if len(others) == 1:
            source, target = next(iter(failed))
        address = _address(contacts[target])
        detail, cure = f"{detail} ({address})", f"ip route get {address}; ip route add {address} via GATEWAY"
        if source != rank:  # the route is missing where the connection begins
            names = names_of(others, contacts)
            return Failure(cause=cause, who=names, whom=contacts[rank].name, port=shown, direction="out", detail=detail,
                           cure=cure, ranks=tuple(others))  # fmt: skip
    elif cause == "mtu":
        taken = reports[rank].facts.nccl.interface or "INTERFACE"
        own = next((one.mtu for one in reports[rank].facts.interfaces if one.name == taken), 0)
        detail, cure = f"{detail}; {taken} has MTU {own}", f"ip link set dev {taken} mtu {1500 if own > 1500 else 1280}"
    else:
        cure = f"arping -D -c 2 {_address(contacts[rank])}"
    return Failure(cause=cause, who=contacts[rank].name, whom=names_of(others, contacts), port=shown,
                   direction=direction, detail=detail, cure=cure, ranks=(rank,))  # fmt: skip


def _address(contact: Contact) -> str:
    return contact.addresses[0] if contact.addresses else "ADDRESS"


def _networks(ranks: Iterable[int], contacts: Contacts, reports: Reports) -> list[str]:
    """The networks of some members, or their addresses where these are single ones."""
    found = []
    for rank in ranks:
        address = _address(contacts[rank])
        known = reports[rank].facts.interfaces if rank in reports else ()
        found += next(([network(one)] for one in known if one.address == address), [address])
    return [str(ipaddress.ip_network(one)) if "/" in one else one for one in dict.fromkeys(found)]
