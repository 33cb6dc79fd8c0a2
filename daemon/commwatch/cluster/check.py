"""A check: each member reads its node and tries the ports of others; the store judges what all of them report."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import msgspec

from commwatch.cluster.channel import Channel, ChannelError
from commwatch.cluster.connections import Listeners, listening_sockets, port_range, try_all
from commwatch.cluster.environment import partners
from commwatch.cluster.facts import read_facts
from commwatch.cluster.interfaces import leads_nowhere
from commwatch.cluster.member import (
    GRACE_SECONDS,
    MeetingPlace,
    NodeAddresses,
    Progress,
    Run,
    Unreached,
    answer_of,
    contact_name,
    joined,
    read_node,
    run_member,
)
from commwatch.cluster.messages import Contact, Facts, Ping, Pong, Report, Roster, Verdict, has_addresses
from commwatch.cluster.node_report import CheckReport, report_of_unreached, report_of_verdict
from commwatch.cluster.store import Store
from commwatch.cluster.verdict import judge
from commwatch.jobs.settings.variables import known_variables

_PINGS = 3
_MOST_PINGS = 8
_ROSTER_BYTES = 2**21
_VERDICT_BYTES = 2**24

Judge: TypeAlias = Callable[[Mapping[int, Contact], Mapping[int, Report]], Verdict]


async def check(run: Run, progress: Progress, take: Callable[[CheckReport], None] = lambda report: None) -> Verdict:
    """Take part in a check, and host its store as member 0.

    Args:
        take: receives the report about the local node, if there is one.

    Raises:
        Unreached: the store was not reached.
        BrokenRun: the run cannot begin, or the store was lost.
    """
    begun, place, known = time.monotonic(), run.place, known_variables()
    facts = await read_node(
        run, progress, "reads versions, names and interfaces of this node",
        lambda: read_facts(run.sysfs, run.procfs, run.variables, known, place.host, interface=run.interface),
    )  # fmt: skip
    addresses = _reachable_addresses(facts)
    span = port_range(run.procfs)
    sockets, ports = listening_sockets(addresses, span)
    contact = Contact(
        rank=place.rank, name=contact_name(run, facts.own_name), token=secrets.token_hex(8), addresses=addresses,
        ports=ports, low=span[0], high=span[1],
    )  # fmt: skip
    node = NodeAddresses(contact.name, {one.address for one in facts.interfaces}, facts.master_addresses)
    store = Store(run.key, place.size, "check", run.deadlines)
    listeners = Listeners(contact.token)
    try:
        await listeners.open(sockets)
        verdict = await run_member(
            run, node, store,
            partial(serve_check, judge=partial(judge, size=place.size, names=place.names)),
            partial(_take_part, facts=facts, contact=contact, progress=progress),
        )  # fmt: skip
        if verdict.outcome != "too_few":
            take(report_of_verdict(verdict, place.rank, time.time()))
        return msgspec.structs.replace(
            verdict, strangers=store.strangers, seconds=round(time.monotonic() - begun, 3)
        )  # fmt: skip
    except Unreached as error:
        take(report_of_unreached(error.failure, place.rank, time.time()))
        raise
    finally:
        await listeners.close()
        for sock in sockets:
            sock.close()


def _reachable_addresses(facts: Facts) -> tuple[str, ...]:
    """NCCL's, and gloo's where that is another; only those from which other nodes can be reached at all."""
    suited = [one.address for one in (facts.nccl, facts.gloo) if not leads_nowhere(one)]
    return tuple(dict.fromkeys(suited))


# --- every member ---


async def _take_part(meeting: MeetingPlace, facts: Facts, contact: Contact, progress: Progress) -> Verdict:
    deadlines, size = meeting.run.deadlines, meeting.run.place.size
    async with joined(meeting, contact, progress) as (channel, tries):
        async with progress.step(meeting.waiting):
            roster = await answer_of(channel, Roster, seconds=deadlines.join + GRACE_SECONDS, most=_ROSTER_BYTES)
        contacts = {one.rank: one for one in roster.contacts if one.rank < size}
        clock, error = await _clock(channel)
        whom = [contacts[rank] for rank in partners(contact.rank, sorted(contacts))]
        async with progress.step(lambda: f"tries the ports of {len(whom)} members"):
            found = await try_all(whom, meeting.run.place.names, deadlines.step)
        outcomes = (*meeting.taken, *tries, *found)
        await channel.send(Report(facts=facts, outcomes=outcomes, clock_seconds=clock, clock_error_seconds=error))
        async with progress.step(lambda: "waits for what the others have found"):
            return await answer_of(channel, Verdict, seconds=deadlines.report + GRACE_SECONDS, most=_VERDICT_BYTES)


async def _clock(channel: Channel) -> tuple[float, float]:
    """By how much the own clock is ahead of the store's, and the error of that: of several round trips the shortest."""
    best = (0.0, float("inf"))
    for _ in range(_PINGS):
        sent, begun = time.time(), time.monotonic()
        await channel.send(Ping())
        answer = await answer_of(channel, Pong, seconds=GRACE_SECONDS, most=1024)
        half = (time.monotonic() - begun) / 2
        best = min(best, (sent + half - answer.now, half), key=lambda one: one[1])
    return best


# --- the store ---


async def serve_check(store: Store, judge: Judge, clock: Callable[[], float] = time.time) -> Verdict:
    """Send each member the roster, collect the reports, and send the verdict to all members that have reported."""
    contacts = {rank: one.contact for rank, one in sorted(store.members.items())}
    roster = Roster(contacts=tuple(contacts.values()))
    found = await asyncio.gather(*(
        store.request(rank, _report_of(store.members[rank].channel, roster, clock), store.deadlines.report)
        for rank in contacts
    ))  # fmt: skip
    reports = {rank: report for rank, report in zip(contacts, found, strict=True) if report is not None}
    verdict = judge(contacts, reports)
    await store.send(dict.fromkeys(reports, verdict))
    return verdict


async def _report_of(channel: Channel, roster: Roster, clock: Callable[[], float]) -> Report:
    await channel.send(roster)
    for _ in range(_MOST_PINGS + 1):
        answer: Ping | Report = await channel.receive(Ping, Report)
        if isinstance(answer, Report):
            if not has_addresses(None, answer.facts):
                raise ChannelError("a report with what is no address")
            return answer
        await channel.send(Pong(now=clock()))
    raise ChannelError("more questions for the clock than a member has")
