"""The verdict of a check from what members report: which connections fail, in what nodes differ, where and how each is
to be cured. Pure."""

from __future__ import annotations

import ipaddress
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from commwatch.cluster.interfaces import leads_nowhere, network
from commwatch.cluster.messages import (
    Cause,
    Choice,
    Contact,
    Direction,
    Facts,
    Failure,
    Member,
    Outcome,
    Report,
    TriedPort,
    Unreachable,
    Verdict,
)

CLOCK_SECONDS = 1.0
"""By which a clock may be off: logs of several nodes are read side by side."""
MOST_NAMES = 4
MOST_NODES = 4

_MINOR = frozenset({"kernel", "NIC firmware", "GPU firmware", "GPU VBIOS", "RoCE GIDs"})
"""Differences that are said and break nothing by themselves."""
_INSTALLED = {"torch": "pip install torch=={}", "NCCL": "pip install nvidia-nccl-cu12=={}",
              "commwatch": "pip install commwatch=={}"}  # fmt: skip
_COPIED = "/etc/nccl.conf"
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
Ends = defaultdict[int, set[Path]]


class Reported(NamedTuple):
    """Who has come, by rank, and what they found: who is missing there left, or did not answer in time."""

    contacts: Mapping[int, Contact]
    reports: Mapping[int, Report]

    def names(self, ranks: Sequence[int]) -> str:
        """The names of some members; of many the first ones."""
        names = [self.contacts[rank].name if rank in self.contacts else f"rank {rank}" for rank in ranks[:MOST_NAMES]]
        more = len(ranks) - len(names)
        return ", ".join(names) + (f" and {more} more" if more else "")

    def failure(self, cause: Cause, ranks: Sequence[int], **others: Any) -> Failure:
        """What is to be cured on these members."""
        return Failure(cause=cause, who=self.names(ranks), ranks=tuple(ranks), **others)

    def address(self, rank: int) -> str:
        """The first address of a member at which others reach it."""
        addresses = self.contacts[rank].addresses
        return addresses[0] if addresses else "ADDRESS"

    def between(self, rank: int) -> list[Outcome]:
        """The tries of a member to reach ports of others that reported: one that left meanwhile is no evidence."""
        tries = (one for one in self.reports[rank].outcomes if one.kind == "ephemeral" and one.port)
        return [one for one in tries if one.whom in self.reports and one.whom != rank]


def judge(
    contacts: Mapping[int, Contact], reports: Mapping[int, Report], size: int, names: Sequence[str] = ()
) -> Verdict:
    """The verdict.

    Args:
        contacts: who has come, by rank.
        reports: what they found; who is missing here left, or did not answer in time.
    """
    found = Reported(contacts, dict(sorted(reports.items())))
    members = tuple(_members(found, size, names))
    if len(reports) < 2:
        return Verdict(outcome="too_few", members=members, failures=())
    failures = sorted((*_unreachable(found), *_differences(found)), key=lambda one: one.minor)
    named = any(not one.minor for one in failures) or len(reports) < size
    return Verdict(
        outcome="named" if named else "fine",
        members=members,
        failures=tuple(failures),
        paths=sum(len(one.outcomes) for one in reports.values()),
    )


def _members(found: Reported, size: int, names: Sequence[str]) -> Iterator[Member]:
    unreached = _unreachable_peers(found)
    for rank in range(size):
        has_come = rank in found.contacts
        name = names[rank] if rank < len(names) and not has_come else found.names((rank,))
        if rank not in found.reports:
            yield Member(rank=rank, name=name, state="lost" if has_come else "absent")
        else:
            chosen = found.reports[rank].facts.nccl
            yield Member(rank=rank, name=name, state="checked", address=chosen.address, interface=chosen.interface,
                         unreachable=unreached.get(rank, ()))  # fmt: skip


# --- which connections fail ---


def _unreachable(found: Reported) -> Iterator[Failure]:
    """The meeting place first, then what fails between members that have both reported."""
    yield from _meeting(found)
    yield from _names_of_others(found)
    causes = _by_cause(found)
    tried: dict[Direction, Ends] = {"": defaultdict(set), "in": defaultdict(set), "out": defaultdict(set)}
    for rank in found.reports:
        for path in {Path(rank, one.whom) for one in found.between(rank)}:
            tried[""][rank].add(path)
            tried[""][path.target].add(path)
            tried["in"][path.target].add(path)
            tried["out"][rank].add(path)
    # A node without a route back answers no other: that is one cause, and its own tries show it.
    back = {Path(path.target, path.source) for path in causes["no_route"]}
    causes["filtered"] = {path: ports for path, ports in causes["filtered"].items() if path not in back}
    order: tuple[Cause, ...] = ("no_route", "refused", "filtered", "name", "mtu")
    for cause in order:
        yield from _blamed(cause, causes[cause], tried, found)


def _unreachable_peers(found: Reported) -> Mapping[int, tuple[Unreachable, ...]]:
    """Of each member between whom and others a connection failed, how many others, by port and direction."""
    peers: defaultdict[int, defaultdict[tuple[TriedPort, Literal["in", "out"]], set[int]]]
    peers = defaultdict(lambda: defaultdict(set))
    failed: list[tuple[int, int, TriedPort]] = [(one, 0, "rendezvous") for of in _missed(found).values() for one in of]
    for rank in found.reports:
        failed += [(rank, one.whom, "ephemeral") for one in found.between(rank) if one.result in _CAUSES]
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


def busy_port(who: str, port: int, owner: str) -> Failure:
    """The port on which the job would meet is taken."""
    detail = f"taken by {owner}" if owner else "something else answers there"
    return Failure(
        cause="busy_port", who=who, port=str(port), direction="in", detail=detail,
        cure=f"ss -ltnp 'sport = :{port}', then end that process or export MASTER_PORT={port + 1}", ranks=(0,),
    )  # fmt: skip


def _meeting(found: Reported) -> Iterator[Failure]:
    for port, owner in _taken(found).items():
        yield busy_port(found.names((0,)), port, owner)
    for (result, port), ranks in _missed(found).items():
        cause = _CAUSES[result]
        cure = firewall_line(_networks(ranks, found), str(port), "in")
        yield found.failure(cause, (0,), whom=found.names(ranks), port=str(port), direction="in",
                            detail=f"the meeting place: {_WORDS[cause]}", cure=cure)  # fmt: skip


def _taken(found: Reported) -> dict[int, str]:
    """Ports of the meeting place that something else has, with what that is."""
    outcomes = (one for report in found.reports.values() for one in report.outcomes)
    return {one.port: one.detail for one in outcomes if one.kind == "rendezvous" and one.result == "busy_port"}


def _missed(found: Reported) -> Mapping[tuple[str, int], list[int]]:
    """Members that did not get to a free port of the meeting place, by result and port."""
    taken = _taken(found)
    missed: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, report in found.reports.items():
        for one in report.outcomes:
            is_failed = one.kind == "rendezvous" and one.result in ("refused", "filtered", "no_route")
            if is_failed and one.port not in taken:
                # It did reach the store, on a later port of the same node: there is a route.
                missed["filtered" if one.result == "no_route" else one.result, one.port].append(rank)
    return missed


def _names_of_others(found: Reported) -> Iterator[Failure]:
    """Members whose name does not lead to them, by who was asked."""
    wrong: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)
    for rank, report in found.reports.items():
        for one in report.outcomes:
            if one.result == "name" and one.kind != "rendezvous" and one.whom in found.contacts:
                wrong[one.whom, one.address, one.detail].append(rank)
    for (target, name, detail), ranks in wrong.items():
        yield found.failure("name", ranks, whom=found.names((target,)), detail=f"{name} {detail}",
                            cure=f"echo '{found.address(target)} {name}' >> /etc/hosts")  # fmt: skip


def _by_cause(found: Reported) -> dict[Cause, Failed]:
    causes: dict[Cause, Failed] = {cause: {} for cause in _WORDS}
    for rank in found.reports:
        outcomes = found.between(rank)
        # A firewall may answer "no route" for a port; where another port of the address is open, there is one.
        reached = {(one.whom, one.address) for one in outcomes if one.result in ("open", "mtu")}
        for one in outcomes:
            if (cause := _CAUSES.get(one.result)) is not None:
                if cause == "no_route" and (one.whom, one.address) in reached:
                    cause = "filtered"
                causes[cause].setdefault(Path(rank, one.whom), []).append(one)
    return causes


def _blamed(cause: Cause, failed: Failed, tried: Mapping[Direction, Ends], found: Reported) -> Iterator[Failure]:
    """One line for each node that is common to all that fails there, else for each node that is not reached."""
    left = dict(failed)

    def blame(rank: int, direction: Direction, paths: set[Path]) -> Failure:
        return _failure(cause, rank, direction, {path: left.pop(path) for path in paths}, found)

    for direction, ends in tried.items():
        for rank in found.reports:
            is_common = len(ends[rank]) > (1 if direction else 2) and ends[rank] <= left.keys()
            if is_common and (direction or cause == "mtu"):
                yield blame(rank, direction, ends[rank])
    for rank in sorted({path.target for path in left}):
        yield blame(rank, "in", {path for path in left if path.target == rank})


def _failure(cause: Cause, rank: int, direction: Direction, failed: Failed, found: Reported) -> Failure:
    others = sorted({end for path in failed for end in path} - {rank})
    ports = sorted({one.port for outcomes in failed.values() for one in outcomes})
    listeners = [found.contacts[path.target] for path in failed]
    low, high = min(one.low for one in listeners), max(one.high for one in listeners)
    whole = all(len({one.port for one in outcomes}) == len(found.contacts[path.target].ports)
                for path, outcomes in failed.items())  # fmt: skip
    shown = "" if cause == "mtu" else f"{low}-{high}" if whole else ", ".join(map(str, ports[:3]))
    detail, ranks = _WORDS[cause], [rank]
    if cause in ("refused", "filtered"):
        cure = firewall_line(_networks(others, found), f"{low}:{high}", direction)
    elif cause == "no_route":
        source, target = (rank, others[0]) if direction == "out" else (others[0], rank)
        if len(others) == 1:
            source, target = next(iter(failed))
        address = found.address(target)
        detail, cure = f"{detail} ({address})", f"ip route get {address}; ip route add {address} via GATEWAY"
        if source != rank:  # the route is missing where the connection begins
            ranks, others, direction = others, ranks, "out"
    elif cause == "mtu":
        facts = found.reports[rank].facts
        taken = facts.nccl.interface or "INTERFACE"
        own = next((one.mtu for one in facts.interfaces if one.name == taken), 0)
        detail, cure = f"{detail}; {taken} has MTU {own}", f"ip link set dev {taken} mtu {1500 if own > 1500 else 1280}"
    else:
        cure = f"arping -D -c 2 {found.address(rank)}"
    return found.failure(cause, ranks, whom=found.names(others), port=shown, direction=direction, detail=detail,
                         cure=cure)  # fmt: skip


def _networks(ranks: Iterable[int], found: Reported) -> list[str]:
    """The networks of some members, or their addresses where these are single ones."""
    networks = []
    for rank in ranks:
        address = found.address(rank)
        known = found.reports[rank].facts.interfaces if rank in found.reports else ()
        networks.append(next((network(one) for one in known if one.address == address), address))
    return list(dict.fromkeys(networks))


# --- in what nodes differ ---


def _differences(found: Reported) -> Iterator[Failure]:
    """All of it, in the order in which it should be cured."""
    yield from _interfaces(found)
    yield from _own_names(found)
    for cause, fields in _SUBJECTS:
        subjects = {rank: fields(one.facts) for rank, one in found.reports.items()}
        for name in sorted(set().union(*subjects.values())):
            values = {
                rank: have.get(name, "not set") for rank, have in subjects.items() if name in have or cause == "version"
            }
            yield from _minority(cause, name, values, found)
    yield from _clocks(found)


def _interfaces(found: Reported) -> Iterator[Failure]:
    own = {
        rank: {network(one): one.name for one in report.facts.interfaces if not one.name.startswith("lo")}
        for rank, report in found.reports.items()
    }
    chosen = {rank: _chosen_network(report.facts) for rank, report in found.reports.items()}
    shared = {one for one in set.intersection(*map(set, own.values())) if not ipaddress.ip_network(one).is_link_local}
    votes = Counter(one for one in chosen.values() if one in shared)
    best = votes.most_common(1)[0][0] if votes else min(shared, default="")
    for rank, report in found.reports.items():
        facts = report.facts
        right = own[rank].get(best, "") or _any_suited(facts)
        cure = f"export NCCL_SOCKET_IFNAME=={right} GLOO_SOCKET_IFNAME={right}" if right else "ip -br addr"
        if leads_nowhere(facts.nccl):
            detail = _nowhere("NCCL", facts.nccl)
        elif best and chosen[rank] != best:
            by = f" by {facts.nccl.why}" if facts.nccl.why else ""
            detail = f"NCCL takes {facts.nccl.interface} ({chosen[rank]}){by}; the network of all is {best}"
        elif facts.gloo.why and leads_nowhere(facts.gloo):
            detail = _nowhere("gloo", facts.gloo)
        else:
            continue
        yield found.failure("wrong_interface", (rank,), detail=detail, cure=cure)


def _chosen_network(facts: Facts) -> str:
    return next((network(one) for one in facts.interfaces if one.address == facts.nccl.address), "")


def _any_suited(facts: Facts) -> str:
    suited = (one for one in facts.interfaces if not leads_nowhere(Choice(interface=one.name, address=one.address)))
    return next((one.name for one in suited), "")


def _nowhere(library: str, choice: Choice) -> str:
    if not choice.interface:
        return f"{library} finds no interface" + (f": {choice.why} selects none that is up" if choice.why else "")
    by = f" by {choice.why}" if choice.why else ""
    return f"{library} takes {choice.interface} ({choice.address}){by}, which leads to no other node"


def _own_names(found: Reported) -> Iterator[Failure]:
    for rank, report in found.reports.items():
        facts, minor = report.facts, bool(report.facts.gloo.why)
        line = f"{facts.nccl.address or 'ADDRESS'} {facts.own_name}"
        cure = f"echo '{line}' >> /etc/hosts"
        if not facts.own_addresses:
            detail = "does not resolve: gloo does not start"
        elif all(ipaddress.ip_address(one).is_loopback for one in facts.own_addresses):
            detail = f"resolves to {facts.own_addresses[0]}: gloo gives others that address"
            cure = f"sed -i 's/^127[.0-9]*[ \\t].*\\b{facts.own_name}\\b.*/{line}/' /etc/hosts"
        elif not facts.gloo.interface and not minor:
            detail = f"resolves to {facts.own_addresses[0]}, which no interface has"
        else:
            continue
        detail = f"its own name {facts.own_name} {detail}"
        yield found.failure("name", (rank,), detail=detail, cure=cure, minor=minor)


def _mtu(facts: Facts) -> Mapping[str, str]:
    taken = [one for one in facts.interfaces if one.mtu and one.address == facts.nccl.address]
    return {"MTU of the interface": str(taken[0].mtu)} if taken else {}


_SUBJECTS: tuple[tuple[Cause, Callable[[Facts], Mapping[str, str]]], ...] = (
    ("version", lambda facts: facts.versions),
    ("version", lambda facts: facts.settings),
    ("parts", lambda facts: facts.parts),
    ("mtu", _mtu),
)


def _minority(cause: Cause, name: str, values: Mapping[int, str], found: Reported) -> Iterator[Failure]:
    """The members that are not like more than half of the others; all where there is no such majority."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        groups[value].append(rank)
    if len(groups) < 2:
        return
    usual = max(groups, key=lambda value: len(groups[value]))
    count = len(groups[usual])
    differing = {
        f"{name} is {value}, on {count} others {usual}": ranks for value, ranks in groups.items() if value != usual
    }
    if 2 * count <= len(values):
        shown = [f"{found.names(ranks)}: {value}" for value, ranks in groups.items()]
        more = f"; {len(shown) - MOST_NODES} more" if len(shown) > MOST_NODES else ""
        differing = {f"{name} differs: {'; '.join(shown[:MOST_NODES])}{more}": list(values)}
    for detail, ranks in differing.items():
        yield found.failure(
            cause, ranks, detail=detail, cure=_same(name, usual), minor=name in _MINOR or cause == "mtu"
        )


def _same(name: str, usual: str) -> str:
    """The command that makes a node like the others."""
    if name.startswith("NCCL_"):
        return f"unset {name}" if usual == "not set" else f"export {name}={shlex.quote(usual)}"
    if usual in ("none", "unknown", "not set"):
        return ""
    if name == _COPIED:
        return f"copy {_COPIED} from a node that has {usual}: scp NODE:{_COPIED} {_COPIED}"
    if name.startswith("MTU"):
        return f"ip link set dev INTERFACE mtu {usual}"
    return _INSTALLED[name].format(shlex.quote(usual.partition("+")[0])) if name in _INSTALLED else ""


def _clocks(found: Reported) -> Iterator[Failure]:
    usual = median(one.clock_seconds for one in found.reports.values())
    for rank, one in found.reports.items():
        off = one.clock_seconds - usual
        if abs(off) - one.clock_error_seconds > CLOCK_SECONDS:
            detail = f"its clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the others"
            yield found.failure("clock", (rank,), detail=detail, cure="chronyc makestep", minor=True)
