"""Which open faults explain which open symptoms: one finding with ranked causes instead of several in a row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from commwatch.findings.codes import CODES, next_step_of
from commwatch.findings.explanations import EXPLANATIONS, SYMPTOMS, Explanation, Explanations, Way
from commwatch.findings.finding import SEVERITIES, Cause, Component, ComponentKind, Finding
from commwatch.findings.measured import Measured
from commwatch.findings.register import Incident, counted_over, is_counted
from commwatch.findings.rules.gpu_ways import PEERS, by_nvlink, by_pcie
from commwatch.node.down_links import ALL_GPUS_FROM

READING_SECONDS = 90.0
"""By which a part may have read well after its effect began and still explain it: most collectors read each 60 s or
more often, the rules run each 10 s, and a cause begins before its effect."""
_SLOW_READINGS = {"nvlink_p2p_refused": 660.0}
"""The same of what is read more rarely, by code."""
SURE_FROM = 0.5
"""Weight from which a fault is called a cause of a symptom whose place is known; one that weighs less is also seen, and
no more."""
SURE_ANYWHERE_FROM = 0.8
"""The same for a probe over several GPUs, which shows that something is wrong, but not where."""
_LINK_LOST = frozenset({"nvlink_down", "nvlink_flapping", "nvlink_flapped"})
"""Faults that name the link, and the NVSwitch that it leads to."""
_SWITCH_TROUBLE = frozenset({"xid_fabric", "xid_nonfatal", "nvlink_recovery_failed", "fabric_unhealthy"})
"""Faults that GPUs show when the NVSwitch between them fails, beside links that are down. One GPU can show each of them
for a reason of its own."""
LONG_BEFORE = 2 * 86400.0
"""Seconds by which a fault is older than the symptom and did no harm at first: longer than the day between two cycles
of a rare probe."""
LONG_BEFORE_FACTOR = 0.5
"""Factor on the weight of such an explanation."""


STOPPED = frozenset({"job_stuck_suspected", "job_stuck", "job_stuck_long"})
"""Symptoms that begin at a known moment: until then the job had moved data for ``WORKED_SECONDS``."""
WORKED_SECONDS = 600.0
"""Seconds of traffic before it, as ``job_stuck_payload_seconds``: with a fault that is older the job went on."""

_SIZED = frozenset(SYMPTOMS["slow"]) - {"part_suspect", "pair_nearer_slower"}
"""Symptoms with an amount of slowness, which measurements elsewhere can be compared with."""


class _Link(NamedTuple):
    """A fault that may explain a symptom."""

    fault: Incident
    why: Explanation
    is_sure: bool
    """Whether it may be called a cause: else it was seen at the time, and whether it touches the symptom is not known,
    or it rarely does such harm."""
    is_measured: bool = False
    """Whether pairs or copies that use the part are slow, and those that do not use it are not."""


def join(
    incidents: Iterable[Incident], explanations: Explanations = EXPLANATIONS, measured: Sequence[Measured] = ()
) -> list[Finding]:
    """Put faults under the symptoms that they explain.

    Args:
        incidents: all that are open, each code and component once.
        explanations: the possible explanations; nothing explains itself, also not by way of others.
        measured: the current results of pairs of GPUs and of copies to the host.

    Returns:
        Most severe first, then what is wrong now before what has happened and reads healthy again, then faults before
        symptoms without a known cause, then the oldest. A fault that explains a symptom is listed under it and not
        beside it; one that explains several is listed under each, and so are its own explanations. A symptom is as
        severe as its most severe cause. A fault that was only seen beside a symptom stays a finding of its own.
    """
    standing = sorted(incidents, key=lambda one: one.key)
    links = {one.key: tuple(_links(one, standing, explanations, measured)) for one in standing}
    direct = {key: tuple(one for one in some if one.is_sure) for key, some in links.items()}
    absorbed = {one.fault.key for some in direct.values() for one in some}
    past = {one.key for one in standing if one.healthy_since is not None}
    found = [_with_causes(one, direct, links[one.key]) for one in standing if one.key not in absorbed]
    return sorted(found, key=lambda one: _order(one, is_past=one.key in past))


def _order(finding: Finding, *, is_past: bool) -> tuple[int, bool, bool, float, tuple[str, str]]:
    is_unexplained = finding.role == "symptom" and not finding.causes
    return (SEVERITIES.index(finding.severity), is_past, is_unexplained, finding.since, finding.key)


def _links(
    symptom: Incident, standing: Sequence[Incident], explanations: Explanations, measured: Sequence[Measured]
) -> Iterable[_Link]:
    """The faults that may explain a symptom, with the weight that they have at their time."""
    for fault in standing:
        known = explanations.get((symptom.code, fault.code))
        if known is None:
            continue
        place = _place_of(fault, standing)
        if not _touches(place, symptom.component, known.over):
            continue
        if _was_well(fault, symptom.first_seen) or _was_over(fault, symptom.first_seen):
            continue
        is_slow = _is_slow_there(fault, place, known.over, symptom, measured)
        if is_slow is False:
            continue
        factor = LONG_BEFORE_FACTOR if fault.first_seen < symptom.first_seen - LONG_BEFORE else 1.0
        is_sure = known.weight >= _sure_from(symptom, fault) and _is_placed(place, symptom.component)
        if symptom.code in STOPPED and fault.first_seen < symptom.first_seen - WORKED_SECONDS:
            is_sure = False
        yield _Link(fault, known._replace(weight=known.weight * factor), is_sure, is_slow is True)


def _sure_from(symptom: Incident, fault: Incident) -> float:
    """The least weight of a cause. A probe's finding elsewhere about the same traffic is the same problem."""
    if _is_symptom(fault):
        return 0.0
    return SURE_ANYWHERE_FROM if symptom.component.kind == "probe" else SURE_FROM


def _is_symptom(incident: Incident) -> bool:
    return CODES[incident.code].role == "symptom"


def _place_of(fault: Incident, standing: Sequence[Incident]) -> Component:
    """The component of a fault; that of an NVSwitch with the GPUs whose links it reported, if that is known.

    The switch numbers its own links, and the counts of SXids name none. So a GPU is known by a link to that switch that
    went down, or by trouble of several GPUs at the time, which have nothing but the fabric in common. Trouble of fewer
    can be a coincidence.
    """
    component = fault.component
    if component.kind != "nvswitch" or component.parts:
        return component
    at_the_time = [one for one in standing if abs(one.first_seen - fault.first_seen) <= READING_SECONDS]
    # A link that keeps going down is counted over an hour, as SXids are: the times of both say little.
    flapping = [one for one in standing if one.code == "nvlink_flapping"]
    here = _gpus_of(
        one.component
        for one in (*at_the_time, *flapping)
        if one.code in _LINK_LOST and _leads_to(one.component, component.key)
    )
    troubled = _gpus_of(
        one.component for one in at_the_time if one.code in _SWITCH_TROUBLE or _is_down_to_unknown_end(one)
    )
    return msgspec.structs.replace(component, parts=here | troubled if len(troubled) >= ALL_GPUS_FROM else here)


def _leads_to(lost: Component, switch: str) -> bool:
    """Whether links that are lost lead to an NVSwitch; those of a whole GPU or of all GPUs lead to each."""
    return lost.kind in ("gpu", "node") or switch in (lost.key, *lost.parts)


def _is_down_to_unknown_end(one: Incident) -> bool:
    """Whether a link is down whose far end is not known: one that is known is at that NVSwitch, or at another."""
    return one.code == "nvlink_down" and one.component.kind == "nvlink" and len(one.component.parts) == 1


def _gpus_of(components: Iterable[Component]) -> frozenset[str]:
    """PCI addresses of GPUs, and of those of links."""
    return frozenset().union(
        *({one.key.partition("/")[0]} if one.kind in ("gpu", "nvlink") else one.parts for one in components)
    )


def _is_placed(fault: Component, symptom: Component) -> bool:
    """Whether it is known where both are, so that they touch is more than that nothing speaks against it."""
    if symptom.kind in ("log", "part") and not symptom.parts:
        return fault.kind in _OF_ALL_JOBS
    return fault.kind != "nvswitch" or bool(fault.parts)


_OF_ALL_JOBS: frozenset[ComponentKind] = frozenset({"node", "log", "setting"})
"""Components that affect any job: an unusable driver, and the jobs' own messages and settings."""


def _was_well(fault: Incident, at: float) -> bool:
    """Whether a part is known to have been well at a time. A later first match of its fault is no proof."""
    return fault.well_at is not None and fault.well_at > at + seen_within(fault)


def _is_slow_there(
    fault: Incident, place: Component, over: Way, symptom: Incident, measured: Sequence[Measured]
) -> bool | None:
    """Whether the measurements over a part show a loss as large as the symptom; None if there are none.

    A pair is as slow as the slowest part on its way, so that the best of those that use a part says how slow the part
    can be. Where those that do not use it are no better, the part makes no difference.
    """
    if fault.component.kind in ("pair", "part") and _is_symptom(fault):
        return True  # it is what the matrix says itself
    left = _left(symptom)
    if left is None:
        return None
    is_of_matrix = symptom.code in ("pair_slow", "pairs_all_slow")
    since = fault.first_seen if is_of_matrix else max(fault.first_seen, symptom.first_seen)
    answers = []
    for kind in ("pair", "copy"):
        if kind == "pair" and not is_of_matrix and PEERS not in symptom.component.parts:
            continue
        current = [one for one in measured if one.kind == kind and one.at >= since]
        using = [one.share for one in current if one.way and _touches(place, _way(one.way), over)]
        maybe = [one.share for one in current if _touches(place, _way(one.maybe), over)]
        others = [one.share for one in current if not _touches(place, _way(one.maybe), over)]
        limit = (1.0 + left) / 2 * min(1.0, max(others, default=1.0))
        if using:
            answers.append(max(using) < limit)
        elif maybe and min(maybe) >= limit:
            answers.append(False)
    # Evidence that clears a part weighs more: both paths can be slow for another reason.
    return all(answers) if answers else None


def _way(parts: frozenset[str]) -> Component:
    return Component("pair", "", "", parts)


def _left(symptom: Incident) -> float | None:
    """The share of its bandwidth that is left; None if the symptom has no amount."""
    if symptom.code not in _SIZED:
        return None
    shares = [
        one.value if one.value <= 1.0 else 1.0 / one.value
        for one in symptom.match.evidence
        if one.unit == "ratio" and isinstance(one.value, (int, float)) and not one.what.startswith(_NO_BANDWIDTH)
    ]
    return min(shares, default=None)


_NO_BANDWIDTH = ("latency", "spread", "confidence")
"""How evidence begins that is a ratio of something else."""


def _was_over(fault: Incident, at: float) -> bool:
    """Whether an event was over by then, or a fault that harms as long as its events come had stopped.

    A link that was down for a moment an hour ago is no reason why a probe is slow now, although it is counted still.
    Events have stopped once the next one is overdue by their mean distance since the part was last known to be well.
    """
    if fault.healthy_since is not None and at > fault.healthy_since + READING_SECONDS:
        return True
    counts = [
        one.value for one in fault.match.evidence if one.threshold is not None and isinstance(one.value, (int, float))
    ]
    if fault.grew_at is None or not is_counted(fault.match) or not counts:
        return False
    well_at = float("-inf") if fault.well_at is None else fault.well_at
    between = min(counted_over(fault.match), fault.grew_at - well_at) / max(*counts, 1.0)
    return at > fault.grew_at + READING_SECONDS + between


def seen_within(fault: Incident) -> float:
    """Seconds after its beginning within which a fault is seen."""
    return _SLOW_READINGS.get(fault.code, READING_SECONDS)


def _touches(fault: Component, symptom: Component, over: Way) -> bool:
    """Whether a fault that acts on traffic over some way lies on the way of a symptom."""
    acting, used = _link_of(fault), _link_of(symptom)
    if over == "peers":
        return acting.shares_part(used) and (not used.parts or PEERS in used.parts)
    if over and not acting.parts and used.parts:
        return any(f"/{over}" in part for part in used.parts)
    if over == "pcie":
        # The link itself lies on the way or does not; its parts name all that stands below it.
        below = (fault.key,) if fault.kind == "pcie_link" else fault.parts
        acting = msgspec.structs.replace(fault, parts=frozenset(by_pcie(part) for part in below))
    elif over == "nvlink" and fault.kind != "nvlink":
        acting = msgspec.structs.replace(fault, parts=frozenset(by_nvlink(part) for part in fault.parts))
        if fault.kind == "pair":  # traffic of one of its GPUs with another one does not pass it
            return all(
                msgspec.structs.replace(acting, parts=frozenset({end})).shares_part(used) for end in acting.parts
            )
    return acting.shares_part(used)


def _link_of(component: Component) -> Component:
    """An NVLink as the part that it is itself, by both ends where these are known: less than the GPU it belongs to."""
    if component.kind != "nvlink":
        return component
    address, _, link = component.key.rpartition("/")
    far = {part for part in component.parts if part.startswith(f"{by_nvlink(part.partition('/')[0])}/")}
    return msgspec.structs.replace(component, parts=frozenset({by_nvlink(address, link)}) | far)


def _with_causes(
    incident: Incident, direct: Mapping[tuple[str, str], tuple[_Link, ...]], links: Iterable[_Link]
) -> Finding:
    """A finding with its causes, those by way of others among them, and as severe as the most severe.

    Args:
        incident: by itself.
        direct: by finding: what may be called a cause of it.
        links: all that may explain this one.
    """
    found = {one.fault.key: one for one in direct[incident.key]}
    own = frozenset(found)
    waiting = list(found.values())
    while waiting:
        link = waiting.pop()
        # A cause of another symptom of the same trouble is a cause of this one too.
        share = 1.0 if _is_symptom(link.fault) else link.why.weight
        for one in direct[link.fault.key]:
            further = one._replace(why=one.why._replace(weight=one.why.weight * share))
            known = found.get(one.fault.key)
            if known is None or (one.fault.key not in own and known.why.weight < further.why.weight):
                found[one.fault.key] = further
                waiting.append(further)
    # Where the matrix names a place, a fault of that place comes before it, and before all others.
    at_place = {one.fault.key for link in found.values() if link.is_measured for one in direct[link.fault.key]}
    found = {key: link._replace(is_measured=link.is_measured or key in at_place) for key, link in found.items()}
    code, match = CODES[incident.code], incident.match
    return Finding(
        code=code.name,
        title=code.title,
        severity=min((code.severity, *(one.fault.severity for one in found.values())), key=SEVERITIES.index),
        role=code.role,
        component=match.component.record,
        since=incident.first_seen,
        last_seen=incident.last_seen,
        detail=match.detail,
        evidence=match.evidence,
        causes=_ranked(found.values(), match.component, by_time=incident.code in STOPPED),
        meaning=code.meaning,
        next_step=next_step_of(match),
        alert=code.alert,
        also_seen=_ranked([one for one in links if one.fault.key not in found], match.component),
        seen_seconds=incident.seen_seconds,
    )


def _ranked(links: Collection[_Link], symptom: Component, *, by_time: bool = False) -> tuple[Cause, ...]:
    """Causes with measurements at their place first, then by weight; of one code, the one at the part itself comes
    before its far end.

    Args:
        links: faults.
        symptom: the component that they explain.
        by_time: order them by their beginning before the weight; those that began with the earliest one, by the time
            between two readings, count as equally early.
    """
    place = symptom.key.partition("/")[0]
    begin = min((link.fault.first_seen for link in links), default=0.0) + READING_SECONDS

    def order(link: _Link) -> tuple[bool, float, float, str, bool, tuple[str, str]]:
        fault = link.fault
        began = max(fault.first_seen, begin) if by_time else 0.0
        is_elsewhere = place not in fault.component.parts
        return not link.is_measured, began, -link.why.weight, fault.code, is_elsewhere, fault.key

    ordered = sorted(links, key=order)
    return tuple(_cause(fault, why) for fault, why, *_ in ordered)


def _cause(fault: Incident, why: Explanation) -> Cause:
    code, match = CODES[fault.code], fault.match
    return Cause(
        code=code.name,
        title=code.title,
        severity=code.severity,
        component=match.component.record,
        weight=why.weight,
        reason=why.reason,
        detail=match.detail,
        evidence=match.evidence,
        next_step=next_step_of(match),
        alert=code.alert,
        last_seen=fault.last_seen,
        seen_seconds=fault.seen_seconds,
        since=fault.first_seen,
    )
