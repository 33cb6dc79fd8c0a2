"""RDMA traffic: packets that are sent again or dropped, connections that are given up, and congestion."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import port_of
from commwatch.findings.rules.counted import (
    SUSTAINED_OPENS_AFTER,
    Found,
    add_rises,
    columns_of,
    counted,
    matches,
    thresholds_of,
    windows_of,
)
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, FindingCode, Rule, RuleSet
from commwatch_exporters.catalogue.metric import SUSTAINED_SECONDS
from commwatch_exporters.node.model import RdmaPort

_BASELINE = 1200.0
"""Seconds: as far back as the history of a counter goes that moves every 5 s."""
_CONGESTED_FOR = 120.0
"""Seconds for which the wait must be longer than before: later it is what the port is used to."""


def retransmitting(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Ports that go on sending packets again."""
    evidence_of: Found = {}
    add_rises("rdma_retransmitting", facts, thresholds, evidence_of)
    sent = dict(facts.rises(RdmaPort.transmit_packets, SUSTAINED_SECONDS))
    most = thresholds.rdma_retransmitted_share_ratio
    for port, again in facts.rises(RdmaPort.retransmitted_packets, SUSTAINED_SECONDS):
        packets = sent.get(port)
        if packets and again / packets > most:
            what = "share of packets that were sent again in the last 2 min"
            evidence = Evidence(what, again / packets, "ratio", most, "rdma_retransmitted_share_ratio")
            evidence_of.setdefault(port_of(port), []).append(evidence)
    return matches("rdma_retransmitting", evidence_of)


def congested(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Ports that are asked to slow down, or wait for credit far longer than before."""
    evidence_of: Found = {}
    add_rises("rdma_congested", facts, thresholds, evidence_of)
    _add_waits(facts, thresholds, evidence_of)
    return matches("rdma_congested", evidence_of)


def _add_waits(facts: Facts, thresholds: Thresholds, evidence_of: Found) -> None:
    """Add the ports that wait for credit: ticks for each packet sent, against those of the 20 min before.

    How long a tick is depends on the adapter, so that a port can be compared with itself alone. Where it carried less
    before than now, there is nothing to compare it with.
    """
    ticks = dict(facts.rises(RdmaPort.port_transmit_wait_ticks, SUSTAINED_SECONDS))
    if not ticks:
        return
    ticks_of_all = dict(facts.rises(RdmaPort.port_transmit_wait_ticks, _BASELINE))
    packets = dict(facts.rises(RdmaPort.port_transmit_packets, SUSTAINED_SECONDS))
    packets_of_all = dict(facts.rises(RdmaPort.port_transmit_packets, _BASELINE))
    for port, waited in ticks.items():
        sent = packets.get(port, 0.0)
        sent_before = packets_of_all.get(port, 0.0) - sent
        if not sent or sent_before < sent:
            continue
        usual = (ticks_of_all[port] - waited) / sent_before
        limit = thresholds.rdma_wait_rise_factor * usual
        if waited / sent > limit:
            what = "ticks without credit for each packet in the last 2 min"
            evidence = Evidence(what, waited / sent, "", limit, "rdma_wait_rise_factor")
            evidence_of.setdefault(port_of(port), []).append(evidence)


def functions_unread(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Ports whose adapters have virtual functions: these count their traffic and losses themselves; all as one."""
    found = {port_of(port): number for port, number in facts.each(RdmaPort.virtual_functions)}
    if found:
        parts = frozenset().union(*(port.parts for port in found))
        component = Component("node", "rdma_functions", f"virtual functions of {len(found)} RDMA ports", parts)
        evidence = [Evidence(f"virtual functions of {port.name}", number) for port, number in found.items()]
        yield Match("rdma_functions_unread", component, tuple(evidence))


RDMA_TRAFFIC = RuleSet(
    name="RDMA traffic",
    codes=(
        FindingCode(
            name="rdma_retransmitting",
            title="RDMA port keeps sending packets again",
            severity="warning",
            role="symptom",
            quantities=("rdma_losses",),
            meaning="For minutes packets were lost or the other end was not ready. Bandwidth drops, latency has long "
            "tails, and connections may break.",
            next_step="Check the causes listed. None: see whether the other node died, and check the switch port's "
            "counters and, on RoCE, flow control on both ends.",
            alert="CommwatchRdmaRetransmitting",
            opens_after=SUSTAINED_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_dropping",
            title="RDMA port keeps dropping packets",
            severity="warning",
            role="symptom",
            quantities=("rdma_losses",),
            meaning="Packets were dropped for minutes. A lost packet is resent after a pause: jobs may run slower.",
            next_step="Check the causes listed. None: on InfiniBand find the congestion at the switches; on RoCE check "
            "flow control on both ends.",
            alert="CommwatchRdmaDropping",
            opens_after=SUSTAINED_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_connections_lost",
            title="RDMA connections were lost",
            severity="info",
            role="symptom",
            quantities=("rdma_losses",),
            meaning="A connection failed after its last retry, and its job with it, or the peer was stopped.",
            next_step="Was a job stopped, or did another node fail? Else check the causes listed.",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_congested",
            title="RDMA port meets congestion",
            severity="info",
            role="symptom",
            quantities=("rdma_congestion",),
            meaning="The network slows the port or grants less credit than before. Multi-node collectives slow down; "
            "this node is not at fault.",
            next_step="None on this node. Find the congested node or uplink at the switches.",
            alert="CommwatchRdmaCongested",
            opens_after=_CONGESTED_FOR,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_functions_unread",
            title="RDMA traffic of virtual functions is not read",
            severity="info",
            role="state",
            meaning="Virtual functions count for themselves: what jobs send and lose there is not seen.",
            next_step="Read hw_counters in the pod; in a virtual machine commwatch does.",
        ),
    ),
    rules=(
        Rule(
            functions_unread, ("rdma_functions_unread",), reads=(RdmaPort.virtual_functions,), details=(RdmaPort.info,)
        ),
        Rule(
            retransmitting,
            ("rdma_retransmitting",),
            reads=(*columns_of("rdma_retransmitting"), RdmaPort.retransmitted_packets, RdmaPort.transmit_packets),
            details=(RdmaPort.info,),
            thresholds=(*thresholds_of("rdma_retransmitting"), "rdma_retransmitted_share_ratio"),
        ),
        counted("rdma_traffic.dropping", "rdma_dropping"),
        counted("rdma_traffic.connections", "rdma_connections_lost"),
        Rule(
            congested,
            ("rdma_congested",),
            reads=(*columns_of("rdma_congested"), RdmaPort.port_transmit_wait_ticks, RdmaPort.port_transmit_packets),
            details=(RdmaPort.info,),
            thresholds=(*thresholds_of("rdma_congested"), "rdma_wait_rise_factor"),
        ),
    ),
    windows={
        **windows_of("rdma_retransmitting", "rdma_dropping", "rdma_connections_lost", "rdma_congested"),
        **dict.fromkeys((RdmaPort.transmit_packets, RdmaPort.retransmitted_packets), SUSTAINED_SECONDS),
        **dict.fromkeys((RdmaPort.port_transmit_wait_ticks, RdmaPort.port_transmit_packets), _BASELINE),
    },
)
