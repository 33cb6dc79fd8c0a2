"""What a check says of all its members. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.cluster.consistency import Contacts, Reports, differences
from commwatch.cluster.messages import Failure, Member, Verdict
from commwatch.cluster.reachability import unreachable, unreachable_peers


def judge(contacts: Contacts, reports: Reports, size: int, names: Sequence[str] = ()) -> Verdict:
    """The verdict.

    Args:
        contacts: who has come, by rank.
        reports: what they found; who is missing here left, or did not answer in time.
        size: how many the launcher promised.
        names: how the launcher calls them.
    """
    reports = dict(sorted(reports.items()))
    members = tuple(_members(contacts, reports, size, names))
    if len(reports) < 2:
        return Verdict(outcome="too_few", members=members, failures=())
    failures = (*unreachable(contacts, reports), *differences(contacts, reports))
    ordered = tuple(sorted(failures, key=lambda one: one.minor))
    named = any(not one.minor for one in ordered) or len(reports) < size
    return Verdict(
        outcome="named" if named else "fine",
        members=members,
        failures=ordered,
        paths=sum(len(one.outcomes) for one in reports.values()),
    )


def _members(contacts: Contacts, reports: Reports, size: int, names: Sequence[str]) -> Iterator[Member]:
    unreached = unreachable_peers(reports)
    for rank in range(size):
        name = contacts[rank].name if rank in contacts else names[rank] if rank < len(names) else f"rank {rank}"
        if rank not in reports:
            yield Member(rank=rank, name=name, state="lost" if rank in contacts else "absent")
        else:
            chosen = reports[rank].facts.nccl
            yield Member(rank=rank, name=name, state="checked", address=chosen.address, interface=chosen.interface,
                         unreachable=unreached.get(rank, ()))  # fmt: skip


def line_of(failure: Failure) -> str:
    """A failure as one line: cause, who, whom, port, direction, what is seen, and the command that cures it."""
    arrow = {"in": " <- ", "out": " -> ", "": " with "}[failure.direction]
    line = f"{failure.cause}: {failure.who}"
    if failure.whom:
        line += arrow + failure.whom
    if failure.port:
        line += f", port{'s' if '-' in failure.port or ',' in failure.port else ''} {failure.port}"
    if failure.direction:
        line += f" ({failure.direction})"
    if failure.detail:
        line += f": {failure.detail}"
    return line + (f"; on {failure.who}: {failure.cure}" if failure.cure else "")
