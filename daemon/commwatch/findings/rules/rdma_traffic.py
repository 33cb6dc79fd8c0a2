"""RDMA traffic: packets that are sent again or dropped, connections that are given up, and congestion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import COUNT_CLOSES_AFTER, FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Evidence, Sighting
from commwatch.findings.rules.ports import (
    MINUTE,
    PORTS,
    SUSTAINED_OPENS_AFTER,
    SUSTAINED_WINDOW,
    Limit,
    Told,
    metrics_of,
    port_at,
    risen,
    sightings,
    tell_rises,
    thresholds_of,
    windows_of,
)
from commwatch.findings.rules.rule_set import HOUR, Rule, RuleSet

_SENT = "commwatch_rdma_transmit_packets_total"
_SENT_AGAIN = "commwatch_rdma_retransmitted_packets_total"
_WAIT = "commwatch_rdma_port_transmit_wait_ticks_total"
_PORT_SENT = "commwatch_rdma_port_transmit_packets_total"
_BASELINE = 1200.0
"""Seconds: as far back as the history of a counter goes that moves every 5 s."""
_CONGESTED_FOR = 120.0
"""Seconds for which the wait must be longer than before: later it is what the port is used to."""

_SEQUENCE = "rdma_sequence_errors_per_second"
_TIMEOUTS = "rdma_ack_timeouts_per_minute"
_SLOW = "rdma_slow_restarts_per_second"
_DROPS = "rdma_drops_per_minute"
_NOTIFICATIONS = "rdma_congestion_notifications_per_second"


def _sustained(metric: str, what: str, threshold: str, per: float = 1.0) -> Limit:
    return Limit(metric, what, SUSTAINED_WINDOW, threshold, per)


_RETRANSMISSIONS = (
    _sustained("commwatch_rdma_ack_timeouts_total", "times no answer came", _TIMEOUTS, MINUTE),
    _sustained("commwatch_rdma_retransmission_timeouts_total", "times no answer came", _TIMEOUTS, MINUTE),
    _sustained("commwatch_rdma_packet_sequence_errors_total", "answers that told of a gap", _SEQUENCE),
    _sustained("commwatch_rdma_implied_nak_sequence_errors_total", "answers that showed a gap", _SEQUENCE),
    _sustained("commwatch_rdma_adaptive_retransmissions_total", "adaptive retransmissions", _SEQUENCE),
    _sustained(
        "commwatch_rdma_rnr_retries_total", "times the other end was not ready", "rdma_rnr_retries_per_minute", MINUTE
    ),
    _sustained("commwatch_rdma_slow_restarts_total", "slow restarts", _SLOW),
)
_DROPPED = (
    _sustained("commwatch_rdma_port_transmit_discards_total", "packets dropped before sending", _DROPS, MINUTE),
    _sustained("commwatch_rdma_receive_drops_total", "packets received and dropped", _DROPS, MINUTE),
)
_CONNECTIONS = (
    Limit("commwatch_rdma_retries_exceeded_total", "connections given up", HOUR),
    Limit("commwatch_rdma_unresponsive_remote_total", "times the other end did not answer at all", HOUR),
)
_CONGESTION = (
    _sustained("commwatch_rdma_cnp_handled_total", "congestion notifications obeyed", _NOTIFICATIONS),
    _sustained("commwatch_rdma_ecn_marked_total", "packets received with a congestion mark", _NOTIFICATIONS),
)


def retransmitting(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports that go on sending packets again."""
    told: Told = {}
    tell_rises(facts, thresholds, _RETRANSMISSIONS, told)
    sent = _rises(facts, _SENT, SUSTAINED_WINDOW)
    most = thresholds.rdma_retransmitted_share_ratio
    for labels, again in facts.increases(_SENT_AGAIN, SUSTAINED_WINDOW):
        packets = sent.get(tuple(labels.values()))
        if packets and again / packets > most:
            what = "share of packets that were sent again in the last 2 min"
            evidence = Evidence(what, again / packets, "ratio", most, "rdma_retransmitted_share_ratio")
            told.setdefault(port_at(facts, labels), []).append(evidence)
    return sightings("rdma_retransmitting", told)


def dropping(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports that go on dropping packets."""
    return risen("rdma_dropping", facts, thresholds, _DROPPED)


def connections(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports on which connections were given up within the last hour."""
    return risen("rdma_connections_lost", facts, thresholds, _CONNECTIONS)


def congested(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports that are told to slow down, or wait for credit far longer than before."""
    told: Told = {}
    tell_rises(facts, thresholds, _CONGESTION, told)
    _tell_waits(facts, thresholds, told)
    return sightings("rdma_congested", told)


def _tell_waits(facts: Facts, thresholds: Thresholds, told: Told) -> None:
    """Add the ports that wait for credit: ticks for each packet sent, against those of the 20 min before.

    How long a tick is depends on the adapter, so that a port can be held against itself alone. Where it carried less
    before than now, there is nothing to hold it against.
    """
    ticks = _rises(facts, _WAIT, SUSTAINED_WINDOW)
    if not ticks:
        return
    ticks_of_all = _rises(facts, _WAIT, _BASELINE)
    packets, packets_of_all = _rises(facts, _PORT_SENT, SUSTAINED_WINDOW), _rises(facts, _PORT_SENT, _BASELINE)
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
            told.setdefault(port_at(facts, {"device": port[0], "port": port[1]}), []).append(evidence)


def _rises(facts: Facts, metric: str, window: float) -> Mapping[tuple[str, ...], float]:
    """By device and port."""
    return {tuple(labels.values()): rise for labels, rise in facts.increases(metric, window)}


RDMA_TRAFFIC = RuleSet(
    name="RDMA traffic",
    codes=(
        FindingCode(
            name="rdma_retransmitting",
            title="RDMA port keeps sending packets again",
            severity="warning",
            role="symptom",
            meaning="For minutes answers have been missing or told of lost packets, or the other end was not ready. "
            "Bandwidth is lost, latency has long tails, and after some retries connections are given up.",
            next_step="Look at the causes listed. Without one, the loss is in the network or at the other end: read "
            "the counters of the switch, check flow control (RoCE), and compare the ports of the other nodes.",
            alert="CommwatchRdmaRetransmitting",
            opens_after=SUSTAINED_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_dropping",
            title="RDMA port keeps dropping packets",
            severity="warning",
            role="symptom",
            meaning="Packets were dropped for minutes. A network for RDMA is made not to drop any: what is lost is "
            "sent again, with a pause first.",
            next_step="See whether the link goes down or the network is congested; check flow control on both ends.",
            alert="CommwatchRdmaDropping",
            opens_after=SUSTAINED_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_connections_lost",
            title="RDMA connections were given up",
            severity="info",
            role="symptom",
            meaning="After the last retry a connection of this port ended with an error, and so did the job that used "
            "it. It also happens when the other end was stopped.",
            next_step="See whether a job was stopped or another node failed at the time; else look at the causes "
            "listed.",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_congested",
            title="RDMA port meets congestion",
            severity="info",
            role="symptom",
            meaning="The network tells the port to slow down, or grants it less credit than before. It is no fault of "
            "the node; collectives of several nodes take longer.",
            next_step="Compare with the other nodes: one that is slow to receive, or several jobs on one uplink, "
            "congest the others.",
            alert="CommwatchRdmaCongested",
            opens_after=_CONGESTED_FOR,
            closes_after=COUNT_CLOSES_AFTER,
        ),
    ),
    rules=(
        Rule(
            retransmitting,
            ("rdma_retransmitting",),
            reads=(*metrics_of(_RETRANSMISSIONS), _SENT_AGAIN, _SENT),
            details=(PORTS,),
            thresholds=(*thresholds_of(_RETRANSMISSIONS), "rdma_retransmitted_share_ratio"),
        ),
        Rule(
            dropping,
            ("rdma_dropping",),
            reads=metrics_of(_DROPPED),
            details=(PORTS,),
            thresholds=thresholds_of(_DROPPED),
        ),
        Rule(connections, ("rdma_connections_lost",), reads=metrics_of(_CONNECTIONS), details=(PORTS,)),
        Rule(
            congested,
            ("rdma_congested",),
            reads=(*metrics_of(_CONGESTION), _WAIT, _PORT_SENT),
            details=(PORTS,),
            thresholds=(*thresholds_of(_CONGESTION), "rdma_wait_rise_factor"),
        ),
    ),
    windows={
        **windows_of((*_RETRANSMISSIONS, *_DROPPED, *_CONNECTIONS, *_CONGESTION)),
        **dict.fromkeys((_SENT, _SENT_AGAIN), SUSTAINED_WINDOW),
        **dict.fromkeys((_WAIT, _PORT_SENT), _BASELINE),
    },
)
