"""In what the nodes of a run differ: versions, settings, parts, names, interfaces, clocks. Pure."""

from __future__ import annotations

import ipaddress
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from commwatch.cluster.interfaces import leads_nowhere, network
from commwatch.cluster.messages import Cause, Contact, Facts, Failure, Report

CLOCK_SECONDS = 1.0
"""By which a clock may be off: logs of several nodes are read side by side."""
MOST_NAMES = 4
MOST_NODES = 4

_MINOR = frozenset({"kernel", "NIC firmware", "GPU firmware", "GPU VBIOS", "RoCE GIDs"})
"""Differences that are said and break nothing by themselves."""
_INSTALLED = {"torch": "pip install torch=={}", "NCCL": "pip install nvidia-nccl-cu12=={}",
              "commwatch": "pip install commwatch=={}"}  # fmt: skip
_COPIED = "/etc/nccl.conf"

Contacts = Mapping[int, Contact]
Reports = Mapping[int, Report]


def differences(contacts: Contacts, reports: Reports) -> Iterator[Failure]:
    """All of it, in the order in which it should be cured."""
    yield from _interfaces(contacts, reports)
    yield from _names(contacts, reports)
    yield from _values(contacts, reports)
    yield from _clocks(contacts, reports)


def names_of(ranks: Sequence[int], contacts: Contacts) -> str:
    """The names of some members; of many the first ones."""
    names = [contacts[rank].name for rank in ranks[:MOST_NAMES]]
    more = len(ranks) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


# --- values ---


def _values(contacts: Contacts, reports: Reports) -> Iterator[Failure]:
    for cause, fields in _SUBJECTS:
        subjects = {rank: fields(one.facts) for rank, one in reports.items()}
        for name in sorted(set().union(*subjects.values())):
            values = {
                rank: have.get(name, "not set") for rank, have in subjects.items() if name in have or cause == "version"
            }
            yield from _minority(cause, name, values, contacts)


def _mtu(facts: Facts) -> Mapping[str, str]:
    taken = [one for one in facts.interfaces if one.mtu and one.address == facts.nccl.address]
    return {"MTU of the interface": str(taken[0].mtu)} if taken else {}


_SUBJECTS: tuple[tuple[Cause, Callable[[Facts], Mapping[str, str]]], ...] = (
    ("version", lambda facts: facts.versions),
    ("version", lambda facts: facts.settings),
    ("parts", lambda facts: facts.parts),
    ("mtu", _mtu),
)


def _minority(cause: Cause, name: str, values: Mapping[int, str], contacts: Contacts) -> Iterator[Failure]:
    """The members that are not like more than half of the others; all where there is no such majority."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    minor = name in _MINOR or cause == "mtu"
    (usual, count) = counts.most_common(1)[0]
    if 2 * count <= len(values):
        groups = [
            f"{names_of([rank for rank, one in values.items() if one == value], contacts)}: {value}" for value in counts
        ]
        shown = "; ".join(groups[:MOST_NODES]) + (f"; {len(groups) - MOST_NODES} more" * (len(groups) > MOST_NODES))
        yield Failure(cause=cause, who=names_of(list(values), contacts), detail=f"{name} differs: {shown}",
                      cure=_same(name, usual), minor=minor, ranks=tuple(values))  # fmt: skip
        return
    for value in counts:
        if value != usual:
            ranks = [rank for rank, one in values.items() if one == value]
            detail = f"{name} is {value}, on {count} others {usual}"
            yield Failure(cause=cause, who=names_of(ranks, contacts), detail=detail, cure=_same(name, usual),
                          minor=minor, ranks=tuple(ranks))  # fmt: skip


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


# --- names ---


def _names(contacts: Contacts, reports: Reports) -> Iterator[Failure]:
    for rank, report in reports.items():
        facts, who = report.facts, contacts[rank].name
        address = facts.nccl.address or "ADDRESS"
        minor = bool(facts.gloo.why)
        line = f"echo '{address} {facts.own_name}' >> /etc/hosts"
        if not facts.own_addresses:
            detail = f"its own name {facts.own_name} does not resolve: gloo does not start"
            yield Failure(cause="name", who=who, detail=detail, cure=line, minor=minor, ranks=(rank,))
        elif all(ipaddress.ip_address(one).is_loopback for one in facts.own_addresses):
            detail = (
                f"its own name {facts.own_name} resolves to {facts.own_addresses[0]}: gloo gives others that address"
            )
            cure = f"sed -i 's/^127[.0-9]*[ \\t].*\\b{facts.own_name}\\b.*/{address} {facts.own_name}/' /etc/hosts"
            yield Failure(cause="name", who=who, detail=detail, cure=cure, minor=minor, ranks=(rank,))
        elif not facts.gloo.interface and not minor:
            detail = f"its own name {facts.own_name} resolves to {facts.own_addresses[0]}, which no interface has"
            yield Failure(cause="name", who=who, detail=detail, cure=line, ranks=(rank,))


# --- interfaces ---


def _interfaces(contacts: Contacts, reports: Reports) -> Iterator[Failure]:
    own = {
        rank: {network(one): one.name for one in report.facts.interfaces if not one.name.startswith("lo")}
        for rank, report in reports.items()
    }
    chosen = {rank: _chosen_network(report.facts) for rank, report in reports.items()}
    shared = set.intersection(*(set(one) for one in own.values())) if own else set()
    shared = {one for one in shared if not ipaddress.ip_network(one).is_link_local}
    votes = Counter(one for one in chosen.values() if one in shared)
    best = votes.most_common(1)[0][0] if votes else min(shared, default="")
    for rank, report in reports.items():
        facts, who = report.facts, contacts[rank].name
        right = own[rank].get(best, "") or _any_suited(facts)
        cure = f"export NCCL_SOCKET_IFNAME=={right} GLOO_SOCKET_IFNAME={right}" if right else "ip -br addr"
        if leads_nowhere(facts.nccl):
            detail = _nowhere("NCCL", facts.nccl)
            yield Failure(cause="wrong_interface", who=who, detail=detail, cure=cure, ranks=(rank,))
        elif best and chosen[rank] != best:
            by = f" by {facts.nccl.why}" if facts.nccl.why else ""
            detail = f"NCCL takes {facts.nccl.interface} ({chosen[rank]}){by}; the network of all is {best}"
            yield Failure(cause="wrong_interface", who=who, detail=detail, cure=cure, ranks=(rank,))
        elif facts.gloo.why and leads_nowhere(facts.gloo):
            detail = _nowhere("gloo", facts.gloo)
            yield Failure(cause="wrong_interface", who=who, detail=detail, cure=cure, ranks=(rank,))


def _chosen_network(facts: Facts) -> str:
    return next((network(one) for one in facts.interfaces if one.address == facts.nccl.address), "")


def _any_suited(facts: Facts) -> str:
    return next(
        (
            one.name
            for one in facts.interfaces
            if not leads_nowhere(type(facts.nccl)(interface=one.name, address=one.address))
        ),
        "",
    )


def _nowhere(library: str, choice: object) -> str:
    interface, address, why = (getattr(choice, name) for name in ("interface", "address", "why"))
    if not interface:
        return f"{library} finds no interface" + (f": {why} selects none that is up" if why else "")
    return f"{library} takes {interface} ({address})" + (f" by {why}" if why else "") + ", which leads to no other node"


# --- clocks ---


def _clocks(contacts: Contacts, reports: Reports) -> Iterator[Failure]:
    if not reports:
        return
    usual = median(one.clock_seconds for one in reports.values())
    for rank, one in reports.items():
        off = one.clock_seconds - usual
        if abs(off) - one.clock_error_seconds > CLOCK_SECONDS:
            detail = f"its clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the others"
            yield Failure(cause="clock", who=contacts[rank].name, detail=detail, cure="chronyc makestep", minor=True,
                          ranks=(rank,))  # fmt: skip
