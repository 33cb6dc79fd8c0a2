"""RDMA ports: errors of the link, packets that are refused, and counters that are full."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Evidence, Match
from commwatch.findings.rules.components import port_of
from commwatch.findings.rules.counted import Found, counted, matches, windows_of
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, FindingCode, Rule, RuleSet
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.node.model import RdmaPort, SourceCounter

_SATURATED = 4

_SIDE_COUNTERS = frozenset({"rdma_port_transmit_wait_ticks_total", "rdma_port_vl15_dropped_total"})
"""They count congestion and management packets, and fill up on healthy ports."""


def saturated(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Ports with counters at their highest number: further events are not counted."""
    for code, is_side in (("rdma_counter_saturated", False), ("rdma_side_counter_saturated", True)):
        evidence_of: Found = {}
        for one, state in facts.each(SourceCounter.anomaly):
            counter = one.counter
            if one.source != "rdma" or state != _SATURATED or (counter in _SIDE_COUNTERS) != is_side:
                continue
            device, _, number = one.device.partition("/")
            port = facts.node.part(RdmaPort, device, number)
            known = CATALOGUE.get(f"commwatch_{counter}")
            limit = None if known is None else known.saturates_at
            evidence = Evidence(counter, "at its greatest number" if limit is None else limit)
            evidence_of.setdefault(port_of(port), []).append(evidence)
        yield from matches(code, evidence_of)


RDMA_ERRORS = RuleSet(
    name="RDMA errors",
    codes=(
        FindingCode(
            name="rdma_errors",
            title="RDMA link carries errors",
            severity="warning",
            role="fault",
            quantities=("rdma_errors",),
            meaning="The link damages packets, recovers repeatedly, or its ends disagree on flow control. Jobs go on; "
            "lost packets are sent again.",
            next_step="Drain the node; once it is free, clean or swap cable and module; see whether errors follow "
            "cable or switch port. Wrong checksums: a sender or switch.",
            alert="CommwatchRdmaErrors",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_errors_upstream",
            title="RDMA port receives packets damaged elsewhere",
            severity="info",
            role="state",
            quantities=("rdma_errors",),
            meaning="Another link marked the packets as bad: the network is at fault, not this link.",
            next_step="Check error counters of switches on the path and of other nodes.",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_packets_refused",
            title="RDMA port refuses packets",
            severity="warning",
            role="fault",
            quantities=("rdma_errors",),
            meaning="A partition or rate rule drops packets: the port is not in their partition. Jobs that "
            "need its connections fail.",
            next_step="Run cat /sys/class/infiniband/DEVICE/ports/PORT/pkeys/* here and on an equal node; if these "
            "partition keys differ, correct them in the subnet manager.",
            alert="CommwatchRdmaPacketsRefused",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="rdma_counter_saturated",
            title="RDMA error counter is saturated",
            severity="warning",
            role="state",
            quantities=("rdma_errors",),
            meaning="An error counter is at its maximum. Further errors are not seen; jobs go on.",
            next_step="Run perfquery -R -C DEVICE -P PORT (InfiniBand), which clears the counters of the port, and see "
            "which of them rise again.",
            alert="CommwatchRdmaCounterSaturated",
        ),
        FindingCode(
            name="rdma_side_counter_saturated",
            title="RDMA congestion or management counter is saturated",
            severity="info",
            role="state",
            meaning="A counter that rises on healthy ports too is at its maximum. Congestion is invisible.",
            next_step="Clear the port's counters (perfquery -R -C DEVICE -P PORT).",
        ),
    ),
    rules=(
        counted("rdma_errors.errors", "rdma_errors"),
        counted("rdma_errors.upstream", "rdma_errors_upstream"),
        counted("rdma_errors.refused", "rdma_packets_refused"),
        Rule(
            saturated,
            ("rdma_counter_saturated", "rdma_side_counter_saturated"),
            reads=(SourceCounter.anomaly,),
            details=(RdmaPort.info,),
        ),
    ),
    windows=windows_of("rdma_errors", "rdma_errors_upstream", "rdma_packets_refused"),
)
