"""Traffic of network interfaces: drops, pauses, and what a cloud instance may send. Worth knowing, and no faults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Evidence, Match
from commwatch.findings.rules.components import interface_of
from commwatch.findings.rules.counted import SUSTAINED_OPENS_AFTER, Found, counted, matches, windows_of
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, FindingCode, Rule, RuleSet
from commwatch_exporters.catalogue.metric import SUSTAINED_SECONDS
from commwatch_exporters.node.model import Interface
from commwatch_exporters.node.parts import Column, KeyedColumn

_Pause: TypeAlias = "Column[Interface] | KeyedColumn[Interface]"
_PAUSED: tuple[_Pause, ...] = (
    Interface.pfc_receive_pause_seconds,
    Interface.global_receive_pause_seconds,
)
_PAUSING: tuple[_Pause, ...] = (
    Interface.pfc_transmit_pause_seconds,
    Interface.global_transmit_pause_seconds,
)


def paused(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Interfaces that the network stops."""
    return _pauses("ethernet_paused", _PAUSED, facts, thresholds)


def pausing(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Interfaces that stop the network."""
    return _pauses("ethernet_pausing", _PAUSING, facts, thresholds)


def _pauses(code: str, columns: Iterable[_Pause], facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    evidence_of: Found = {}
    most = thresholds.ethernet_pause_share_ratio
    for column in columns:
        for interface, priority, seconds in facts.rises_keyed(column, SUSTAINED_SECONDS):
            share = seconds / SUSTAINED_SECONDS
            if share > most:
                of = f" for priority {priority}" if priority else ""
                what = f"share of the last 2 min stopped{of}"
                evidence = Evidence(what, share, "ratio", most, "ethernet_pause_share_ratio")
                evidence_of.setdefault(interface_of(interface), []).append(evidence)
    return matches(code, evidence_of)


ETHERNET_TRAFFIC = RuleSet(
    name="Traffic of network interfaces",
    codes=(
        FindingCode(
            name="ethernet_dropping",
            title="Network interface keeps dropping packets",
            severity="info",
            role="symptom",
            quantities=("rdma_losses",),
            meaning="For minutes packets came faster than adapter or host took them. They are sent again, and jobs run "
            "slower.",
            next_step="Run commwatch topology and look for a narrow PCIe link of the adapter; then compare flow "
            "control (ethtool -a) with the switch port, and see the receive rings (ethtool -g).",
            alert="CommwatchEthernetDropping",
            opens_after=SUSTAINED_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="ethernet_paused",
            title="The network stops this interface",
            severity="info",
            role="state",
            quantities=("rdma_congestion",),
            meaning="The switch stops the interface too often: congestion or a slow node. Jobs that use it run slower.",
            next_step="None on this node. Find the congested node or uplink at the switches.",
            alert="CommwatchEthernetPaused",
            opens_after=SUSTAINED_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="ethernet_pausing",
            title="This interface stops the network",
            severity="info",
            role="symptom",
            quantities=("rdma_congestion",),
            meaning="The node stops the switch too often: it takes packets too slowly. Jobs that use it run slower.",
            next_step="Run commwatch topology and look for a narrow PCIe link of the adapter, then for a process that "
            "hangs (state D in ps).",
            alert="CommwatchEthernetPaused",
            opens_after=SUSTAINED_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="ethernet_over_allowance",
            title="Cloud instance exceeds its network allowance",
            severity="info",
            role="state",
            meaning="The cloud holds back or drops packets: the instance exceeds its bandwidth, packet rate or "
            "connections.",
            next_step="Use a larger instance type, or one with its own job network (EFA).",
            opens_after=SUSTAINED_OPENS_AFTER,
            closes_after=COUNT_CLOSES_AFTER,
        ),
    ),
    rules=(
        # Not what the kernel calls dropped: it counts packets of protocols that no one here speaks.
        counted("ethernet_traffic.dropping", "ethernet_dropping"),
        Rule(
            paused,
            ("ethernet_paused",),
            reads=_PAUSED,
            details=(Interface.info,),
            thresholds=("ethernet_pause_share_ratio",),
        ),
        Rule(
            pausing,
            ("ethernet_pausing",),
            reads=_PAUSING,
            details=(Interface.info,),
            thresholds=("ethernet_pause_share_ratio",),
        ),
        counted("ethernet_traffic.over_allowance", "ethernet_over_allowance"),
    ),
    windows={
        **windows_of("ethernet_dropping", "ethernet_over_allowance"),
        **dict.fromkeys((*_PAUSED, *_PAUSING), SUSTAINED_SECONDS),
    },
)
