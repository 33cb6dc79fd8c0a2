"""Which open faults explain which open symptoms: one finding with ranked causes instead of several in a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from commwatch.findings.code import COUNT_CLOSES_AFTER
from commwatch.findings.codes import CODES
from commwatch.findings.explanations import EXPLANATIONS, Explanation, Explanations, Way
from commwatch.findings.finding import SEVERITIES, Cause, Component, Finding
from commwatch.findings.rules.gpu_ways import PEERS, by_nvlink, by_pcie

READING_SECONDS = 90.0
"""By which a fault may have been seen after its symptom and still explain it: most collectors read each 60 s or more
often, the rules look each 10 s, and a cause begins before its effect."""
COUNTING_SECONDS = 3600.0
"""The same of events that are a fault from a number in an hour on: the first came so much earlier at most."""
_SLOW_READINGS = {"nvlink_p2p_refused": 660.0}
"""The same of what is read more rarely, by code."""
LONG_BEFORE = 2 * 86400.0
"""Seconds by which a fault is older than the symptom and did no harm at first: longer than the day between two cycles
of a rare probe."""
LONG_BEFORE_FACTOR = 0.5
"""It explains the symptom so much less."""


def join(findings: Iterable[Finding], explanations: Explanations = EXPLANATIONS) -> list[Finding]:
    """Put faults under the symptoms that they explain.

    Args:
        findings: all that are open, each code and component once.
        explanations: what can explain what; nothing explains itself, also not by way of others.

    Returns:
        Most severe first, then the oldest. A fault that explains a symptom stands under it and not beside it; one that
        explains several stands under each, and so does what explains the fault in turn. A symptom is as severe as its
        most severe cause.
    """
    standing = sorted(findings, key=lambda one: one.key)
    direct = {finding.key: tuple(_direct(finding, standing, explanations)) for finding in standing}
    absorbed = {fault.key for faults in direct.values() for fault, _ in faults}
    kept = [_with_causes(finding, direct) for finding in standing if finding.key not in absorbed]
    return sorted(kept, key=lambda one: (SEVERITIES.index(one.severity), one.since, one.key))


def _direct(
    symptom: Finding, standing: Sequence[Finding], explanations: Explanations
) -> Iterable[tuple[Finding, Explanation]]:
    """The faults that explain a symptom, with the weight that they have at their time."""
    for fault in standing:
        known = explanations.get((symptom.code, fault.code))
        if known is None or not _touches(fault.component, symptom.component, known.over):
            continue
        if fault.since > symptom.since + seen_within(fault):
            continue
        factor = LONG_BEFORE_FACTOR if fault.since < symptom.since - LONG_BEFORE else 1.0
        yield fault, known._replace(weight=known.weight * factor)


def seen_within(fault: Finding) -> float:
    """Seconds after its beginning within which a fault is seen."""
    code = CODES.get(fault.code)
    if code is not None and code.closes_after >= COUNT_CLOSES_AFTER:
        return COUNTING_SECONDS if any(one.threshold is not None for one in fault.evidence) else READING_SECONDS
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
    return acting.shares_part(used)


def _link_of(component: Component) -> Component:
    """An NVLink as the part that it is itself, which is less than the GPU that it belongs to."""
    if component.kind != "nvlink":
        return component
    address, _, link = component.key.rpartition("/")
    return msgspec.structs.replace(component, parts=frozenset({by_nvlink(address, link)}))


def _with_causes(finding: Finding, direct: dict[tuple[str, str], tuple[tuple[Finding, Explanation], ...]]) -> Finding:
    """A finding with its causes, those by way of others among them, and as severe as the most severe."""
    found: dict[tuple[str, str], tuple[Finding, Explanation]] = {}
    waiting = [(fault, explanation) for fault, explanation in direct[finding.key]]
    while waiting:
        fault, explanation = waiting.pop()
        known = found.get(fault.key)
        if known is not None and known[1].weight >= explanation.weight:
            continue
        found[fault.key] = (fault, explanation)
        waiting += [(one, why._replace(weight=why.weight * explanation.weight)) for one, why in direct[fault.key]]
    causes = [
        Cause(fault.code, fault.component, fault.evidence, why.weight, why.reason, fault.detail)
        for fault, why in found.values()
    ]
    worst = min((finding.severity, *(fault.severity for fault, _ in found.values())), key=SEVERITIES.index)
    ranked = sorted(causes, key=lambda cause: (-cause.weight, cause.code, cause.component.identity))
    return msgspec.structs.replace(finding, causes=tuple(ranked), severity=worst)
