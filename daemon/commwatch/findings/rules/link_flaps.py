"""Links of all kinds that go down and come back: once, which is information, or several times in an hour."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import interface_of, nvlink_of, port_of
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, HOUR, FindingCode, Quantity, Rule, RuleSet
from commwatch_exporters.node.model import Interface, NvLink, RdmaPort
from commwatch_exporters.state_words import RDMA_ACTIVE

_WHAT = "times it went down in the last hour"


def nvlinks(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """NVLinks that went down within the last hour, each by the end that saw it go down more often."""
    counted = {(link.address, link.number): (link, count) for link, count in facts.each(NvLink.flaps_recent)}
    far_ends: dict[tuple[str, str], tuple[str, str]] = {}
    for end, (link, _) in counted.items():
        far_end = (link.remote_address, link.remote_number)
        if far_end in counted:  # one end may not say where its link leads
            far_ends |= {end: far_end, far_end: end}
    for end, (link, count) in counted.items():
        far_end = far_ends.get(end, end)
        far_link, far_count = counted[far_end]
        if (-far_count, far_end) < (-count, end):
            continue
        is_up = {link.is_up, far_link.is_up} - {None} == {True}
        yield from _judged("nvlink", nvlink_of(link), count, is_up, thresholds)


def rdma_ports(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """RDMA ports that went down within the last hour, by their state, their adapter or their interface."""
    for port, count in facts.each(RdmaPort.flaps_recent):
        yield from _judged("rdma_port", port_of(port), count, port.state == RDMA_ACTIVE, thresholds)


def interfaces(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Network interfaces without RDMA that lost their link within the last hour."""
    for interface, count in facts.each(Interface.flaps_recent):
        yield from _judged("ethernet", interface_of(interface), count, interface.carrier == 1, thresholds)


def _judged(kind: str, component: Component, count: float, is_up: bool, thresholds: Thresholds) -> Iterable[Match]:
    most = thresholds.link_flaps_per_hour
    if count >= most:
        yield Match(f"{kind}_flapping", component, (Evidence(_WHAT, count, "", most, "link_flaps_per_hour"),))
    elif is_up:  # one that stays down is reported as down
        yield Match(f"{kind}_flapped", component, (Evidence(_WHAT, count),))


def _flapping(
    name: str, title: str, meaning: str, next_step: str, alert: str, *quantities: Quantity
) -> FindingCode:  # fmt: skip
    return FindingCode(
        name=name,
        title=title,
        severity="critical",
        role="fault",
        meaning=meaning,
        next_step=next_step,
        alert=alert,
        quantities=quantities,
        opens_after=0.0,
        closes_after=COUNT_CLOSES_AFTER,
        replaces=(name.replace("flapping", "flapped"),),
    )


def _flapped(name: str, title: str, *quantities: Quantity) -> FindingCode:
    return FindingCode(
        name=name,
        title=title,
        severity="info",
        role="fault",
        meaning="The link was down for a moment within the last hour, fewer than three times. Work on it waited or "
        "failed.",
        next_step="None after a single time. Three times within an hour page.",
        alert="CommwatchLinkFlapped",
        quantities=quantities,
        opens_after=0.0,
        closes_after=COUNT_CLOSES_AFTER,
    )


LINK_FLAPS = RuleSet(
    name="Flapping links",
    codes=(
        _flapping(
            "nvlink_flapping",
            "NVLink is flapping",
            "The link went down three times within an hour. Each time collectives stall or fail.",
            "Drain the node; check the kernel log for Xid 74 and 144 to 150; reset the GPU with the fabric idle. "
            "Again: call the vendor.",
            "CommwatchNvlinkDown",
        ),
        _flapping(
            "rdma_port_flapping",
            "RDMA port is flapping",
            "The link went down three times within an hour. Connections break or wait.",
            "Drain the node; clean or swap cable and module; ask whether the switch was restarted.",
            "CommwatchRdmaPortFlapping",
            "rdma_errors",
        ),
        _flapping(
            "ethernet_flapping",
            "Network interface is flapping",
            "The link went down three times within an hour. Connections stall each time.",
            "Clean or swap cable and module; ask whether the switch was restarted.",
            "CommwatchEthernetFlapping",
        ),
        _flapped("nvlink_flapped", "NVLink went down and came back"),
        _flapped("rdma_port_flapped", "RDMA port went down and came back", "rdma_errors"),
        _flapped("ethernet_flapped", "Network interface went down and came back"),
    ),
    rules=(
        Rule(
            nvlinks,
            ("nvlink_flapping", "nvlink_flapped"),
            reads=(NvLink.flaps_recent, NvLink.state, NvLink.info),
            counts=(NvLink.flaps,),
            thresholds=("link_flaps_per_hour",),
        ),
        Rule(
            rdma_ports,
            ("rdma_port_flapping", "rdma_port_flapped"),
            reads=(RdmaPort.flaps_recent, RdmaPort.state),
            counts=(RdmaPort.flaps, RdmaPort.link_downed),
            details=(RdmaPort.info,),
            thresholds=("link_flaps_per_hour",),
        ),
        Rule(
            interfaces,
            ("ethernet_flapping", "ethernet_flapped"),
            reads=(Interface.flaps_recent, Interface.carrier),
            counts=(Interface.carrier_downs, Interface.phy_link_down),
            details=(Interface.info,),
            thresholds=("link_flaps_per_hour",),
        ),
    ),
    windows=dict.fromkeys(
        (NvLink.flaps, RdmaPort.flaps, RdmaPort.link_downed, Interface.carrier_downs, Interface.phy_link_down), HOUR
    ),
)
