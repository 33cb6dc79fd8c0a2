"""Errors, packets sent again and congestion of an RDMA port: what the rules found in how its counters moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.rdma_ports import name_of
from commwatch.findings.finding import Cause, Finding
from commwatch.findings.words import format_evidence
from commwatch_exporters.node.model import RdmaPort


class _Trouble(NamedTuple):
    what: str
    codes: frozenset[str]
    """Of the findings that report it."""
    counts: Callable[[RdmaPort], Iterable[float | None]]
    """Counters of the port or its interface; one of them has to be read for anything to be seen."""


_TROUBLES = (
    _Trouble(
        "errors of the link, last hour",
        frozenset({
            "rdma_errors", "rdma_errors_upstream", "rdma_packets_refused", "rdma_counter_saturated",
            "rdma_port_flapping", "rdma_port_flapped",
        }),
        lambda port: (port.symbol_errors, port.receive_errors, port.icrc_errors),
    ),
    _Trouble(
        "packets sent again or dropped",
        frozenset({"rdma_retransmitting", "rdma_dropping", "rdma_connections_lost", "ethernet_dropping"}),
        lambda port: (
            port.ack_timeouts, port.packet_sequence_errors, port.retransmitted_packets, port.port_transmit_discards,
        ),
    ),
    _Trouble(
        "congestion (ECN, CNP, credit, pause)",
        frozenset({"rdma_congested", "ethernet_paused", "ethernet_pausing"}),
        lambda port: (
            port.ecn_marked, port.cnp_handled, port.port_transmit_wait_ticks,
            port.network_interface.global_receive_pause_seconds,
            *port.network_interface.pfc_receive_pause_seconds.values(),
        ),
    ),
)  # fmt: skip
_RULES = ("rdma", "ethernet_traffic.")
"""What the names of the rules begin with that look at these counters."""


def troubles(known: Known, port: RdmaPort) -> Iterator[Check]:
    """One line for each kind of trouble: what was found, or that it was looked for."""
    told = _told_of(known, port)
    for trouble in _TROUBLES:
        yield _check(known, port, trouble, [one for one in told if one.code in trouble.codes])


def _told_of(known: Known, port: RdmaPort) -> list[Finding | Cause]:
    """Findings of the port and of its interface; one that explains another stands beneath it alone."""
    identities = {f"rdma_port/{port.device}/{port.number}"}
    if port.interface:
        identities.add(f"interface/{port.interface}")
    records: list[Finding | Cause] = []
    for finding in known.findings.findings:
        records += (finding, *finding.causes)
    unique = {(one.code, one.component.identity): one for one in records}
    return [one for one in unique.values() if one.component.identity in identities]


def _check(known: Known, port: RdmaPort, trouble: _Trouble, told: list[Finding | Cause]) -> Check:
    required = "nothing beyond the thresholds"
    if told:
        grave = any(one.severity != "info" for one in told)
        return Check(
            branch="infiniband", what=trouble.what, where=name_of(port),
            measured="; ".join(format_evidence(fact) for one in told for fact in one.evidence) or told[0].title,
            required=required, verdict="failed" if grave else "notice", source=_sources(told),
            detail="; ".join(one.title for one in told), next_step=told[0].next_step,
        )  # fmt: skip
    why = _not_looked_at(known, port, trouble)
    verdict: CheckVerdict = "not measured" if why else "passed"
    return Check(
        branch="infiniband", what=trouble.what, where=name_of(port), measured="" if why else "nothing",
        required="" if why else required, verdict=verdict,
        source="" if why else "thresholds.yaml, watched by the daemon", detail=why,
    )  # fmt: skip


def _sources(told: list[Finding | Cause]) -> str:
    origins = [fact.threshold_origin for one in told for fact in one.evidence if fact.threshold_origin]
    return ", ".join(dict.fromkeys(origins))


def _not_looked_at(known: Known, port: RdmaPort, trouble: _Trouble) -> str:
    """Why a trouble would not have been seen; empty where it would."""
    if known.findings.looked_at is None:
        return "the daemon has not looked yet"
    failing = [name for name in known.findings.failing_rules if name.startswith(_RULES)]
    if failing:
        return f"a rule failed: {', '.join(failing)}"
    if any(count is not None for count in trouble.counts(port)):
        return ""
    return "this adapter has none of the counters that would show it, or they were not read"
