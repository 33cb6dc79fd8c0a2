"""RDMA ports: errors of the link, packets that are refused, and counters that are full."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import COUNT_CLOSES_AFTER, FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Evidence, Sighting
from commwatch.findings.rules.ports import (
    MINUTE,
    PORTS,
    Limit,
    Told,
    metrics_of,
    port_at,
    risen,
    sightings,
    thresholds_of,
    windows_of,
)
from commwatch.findings.rules.rule_set import HOUR, Rule, RuleSet
from commwatch_exporters.catalogue import CATALOGUE

_PACKETS = "rdma_packet_errors_per_hour"
_RECOVERIES = "commwatch_rdma_port_link_error_recovery_total"
_MARKED_BAD = "commwatch_rdma_port_receive_remote_physical_errors_total"
_ANOMALY = "commwatch_counter_anomaly"
_SATURATED = 4

_LINK = (
    Limit("commwatch_rdma_port_symbol_errors_total", "symbol errors", HOUR, "rdma_symbol_errors_per_hour", HOUR),
    Limit(_RECOVERIES, "recoveries of the link", MINUTE, "rdma_link_recoveries_per_minute", MINUTE),
    Limit(_RECOVERIES, "recoveries of the link", HOUR, "rdma_link_recoveries_per_hour", HOUR),
    Limit(
        "commwatch_rdma_port_local_link_integrity_errors_total", "times the link passed its own error threshold", HOUR
    ),
    Limit("commwatch_rdma_port_excessive_buffer_overrun_errors_total", "buffer overruns", HOUR),
    Limit("commwatch_rdma_port_receive_errors_total", "packets received with errors", HOUR, _PACKETS, HOUR),
    Limit("commwatch_rdma_icrc_errors_total", "RoCE packets with a wrong check sum", HOUR, _PACKETS, HOUR),
)
_UPSTREAM = (Limit(_MARKED_BAD, "packets that were marked bad before", HOUR, _PACKETS, HOUR),)
_REFUSED = (
    Limit("commwatch_rdma_port_transmit_constraint_errors_total", "packets not sent", HOUR, _PACKETS, HOUR),
    Limit("commwatch_rdma_port_receive_constraint_errors_total", "packets received and dropped", HOUR, _PACKETS, HOUR),
)

_SIDE_COUNTERS = frozenset({"rdma_port_transmit_wait_ticks_total", "rdma_port_vl15_dropped_total"})
"""They count congestion and management packets, and fill up on healthy ports."""


def errors(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports of which the own link damages packets, recovers, or breaks flow control."""
    return risen("rdma_errors", facts, thresholds, _LINK)


def upstream(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports that receive packets which were damaged elsewhere."""
    return risen("rdma_errors_upstream", facts, thresholds, _UPSTREAM)


def refused(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports on which a partition or rate rule refuses packets."""
    return risen("rdma_packets_refused", facts, thresholds, _REFUSED)


def saturated(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Ports with counters that stand at their greatest number: what happens from now on is not seen."""
    for code, is_side in (("rdma_counter_saturated", False), ("rdma_side_counter_saturated", True)):
        told: Told = {}
        for labels, state in facts.series(_ANOMALY):
            counter = labels["counter"]
            if labels["source"] != "rdma" or state != _SATURATED or (counter in _SIDE_COUNTERS) != is_side:
                continue
            device, _, port = labels["device"].partition("/")
            known = CATALOGUE.get(f"commwatch_{counter}")
            limit = None if known is None else known.saturates_at
            evidence = Evidence(counter, "at its greatest number" if limit is None else limit)
            told.setdefault(port_at(facts, {"device": device, "port": port}), []).append(evidence)
        yield from sightings(code, told)


RDMA_ERRORS = RuleSet(
    name="RDMA errors",
    codes=(
        FindingCode(
            name="rdma_errors",
            title="RDMA link carries errors",
            severity="warning",
            role="fault",
            meaning="The link of the port damages packets, recovers again and again, or its ends disagree on flow "
            "control. What is damaged is sent again, and all that wait for it wait longer.",
            next_step="Clean or swap cable and module, then look whether the errors stay with the port, the cable or "
            "the port of the switch.",
            alert="CommwatchRdmaErrors",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_errors_upstream",
            title="RDMA port receives packets that were damaged elsewhere",
            severity="info",
            role="state",
            meaning="Packets arrive that another link has marked as bad. The fault is in the network, not on this "
            "node's link; traffic to this node is sent again.",
            next_step="Look at the error counters of the switches on the way, and of the other nodes.",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_packets_refused",
            title="RDMA port refuses packets",
            severity="warning",
            role="fault",
            meaning="Packets are dropped because of a partition or rate rule: a job or another node uses a partition "
            "that this port is not in.",
            next_step="Compare the partition keys of the port (/sys/class/infiniband/DEVICE/ports/PORT/pkeys) with "
            "those of the other nodes, and ask the subnet manager.",
            alert="CommwatchRdmaPacketsRefused",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_counter_saturated",
            title="RDMA error counter is full",
            severity="warning",
            role="state",
            meaning="An error counter of the adapter is at its maximum. Errors did happen, and further "
            "ones are not seen by anyone.",
            next_step="Clear the counters of the port (InfiniBand: perfquery -R with the port's LID or adapter) and "
            "see which of them rise again.",
            alert="CommwatchRdmaCounterSaturated",
        ),
        FindingCode(
            name="rdma_side_counter_saturated",
            title="RDMA counter of congestion or management packets is full",
            severity="info",
            role="state",
            meaning="A counter that rises on healthy ports too is at its maximum. Congestion on this port "
            "is not seen until it is cleared.",
            next_step="Clear the counters of the port (InfiniBand: perfquery -R with the port's LID or adapter).",
        ),
    ),
    rules=(
        Rule(errors, ("rdma_errors",), reads=metrics_of(_LINK), details=(PORTS,), thresholds=thresholds_of(_LINK)),
        Rule(
            upstream,
            ("rdma_errors_upstream",),
            reads=metrics_of(_UPSTREAM),
            details=(PORTS,),
            thresholds=thresholds_of(_UPSTREAM),
        ),
        Rule(
            refused,
            ("rdma_packets_refused",),
            reads=metrics_of(_REFUSED),
            details=(PORTS,),
            thresholds=thresholds_of(_REFUSED),
        ),
        Rule(saturated, ("rdma_counter_saturated", "rdma_side_counter_saturated"), reads=(_ANOMALY,), details=(PORTS,)),
    ),
    windows=windows_of((*_LINK, *_UPSTREAM, *_REFUSED)),
)
