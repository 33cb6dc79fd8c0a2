"""Links of all kinds that go down and come back: once, which is information, or several times in an hour."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match, Severity
from commwatch.findings.rules.components import gpu_of, interface_of, port_of
from commwatch.findings.rules.nvlink import ends_of, link_at_switch, of_all_gpus
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, HOUR, FindingCode, Quantity, Rule, RuleSet
from commwatch.node.down_links import FarEnds, grouped
from commwatch_exporters.node.model import Interface, NvLink, RdmaPort
from commwatch_exporters.state_words import RDMA_ACTIVE

_WHAT = "times it went down in the last hour"
_SWAP = "Drain the node; once it is free, clean or swap cable and module, unless the switch was restarted."


def nvlinks(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """NVLinks that went down within the last hour: one for each part they make up.

    The end that saw a single link go down more often reports it.
    """
    counted = {(link.address, link.number): (link, count) for link, count in facts.each(NvLink.flaps_recent)}
    if not counted:
        return
    known = ends_of(facts)
    # One end may not say where its link leads.
    gpus = {**{far: near for near, far in known.gpus.items() if {near, far} <= counted.keys()}, **known.gpus}
    expected = {(link.address, link.number): link for link, flag in facts.each(NvLink.expected) if flag == 1}
    expected |= {end: link for end, (link, _) in counted.items()}
    often = {end for end, (_, count) in counted.items() if count >= thresholds.link_flaps_per_hour}
    often |= {gpus[end] for end in often if gpus.get(end) in counted}
    for together in (often, counted.keys() - often):
        for fault in grouped(expected, together, FarEnds(known.switches, gpus)):
            links = [counted[one] for one in fault.links]
            link, count = max(links, key=lambda one: one[1])
            is_up = {one.is_up for one, _ in links} - {None} == {True}
            numbers = f"links {', '.join(fault.numbers)}"
            if fault.kind == "link":
                yield from _judged("nvlink", link_at_switch(link, fault.switch), count, is_up, thresholds)
            elif fault.kind == "gpu":
                gpu = next(one.gpu for (address, _), one in expected.items() if address == fault.place)
                yield from _judged("nvlink", gpu_of(gpu), count, is_up, thresholds, numbers)
            else:
                component = of_all_gpus(fault.place, frozenset(address for address, _ in fault.links))
                yield from _judged("nvlink", component, count, is_up, thresholds, f"{numbers} of all GPUs")


def rdma_ports(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """RDMA ports that went down within the last hour, by their state, their adapter or their interface."""
    for port, count in facts.each(RdmaPort.flaps_recent):
        yield from _judged("rdma_port", port_of(port), count, port.state == RDMA_ACTIVE, thresholds)


def interfaces(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Network interfaces without RDMA that lost their link within the last hour."""
    for interface, count in facts.each(Interface.flaps_recent):
        yield from _judged("ethernet", interface_of(interface), count, interface.carrier == 1, thresholds)


def _judged(
    kind: str, component: Component, count: float, is_up: bool, thresholds: Thresholds, detail: str = ""
) -> Iterable[Match]:
    most = thresholds.link_flaps_per_hour
    if count >= most:
        evidence = Evidence(_WHAT, count, "", most, "link_flaps_per_hour")
        yield Match(f"{kind}_flapping", component, (evidence,), detail)
    elif is_up:  # one that stays down is reported as down
        yield Match(f"{kind}_flapped", component, (Evidence(_WHAT, count),), detail)


def _flapping(
    name: str, title: str, meaning: str, next_step: str, alert: str, severity: Severity, *quantities: Quantity
) -> FindingCode:  # fmt: skip
    return FindingCode(
        name=name,
        title=title,
        severity=severity,
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
        meaning="The link was down for a moment within the last hour, fewer than three times. Jobs on it waited or "
        "failed.",
        next_step="None now. Three times within an hour have an alert of their own.",
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
            "Drain the node; once it is free, run commwatch pause and reset the GPU. Again: call the vendor.",
            "CommwatchNvlinkDown",
            "critical",
        ),
        _flapping(
            "rdma_port_flapping",
            "RDMA port is flapping",
            "The link went down three times within an hour. Jobs that use it stall or fail each time.",
            _SWAP,
            "CommwatchRdmaPortFlapping",
            "critical",
            "rdma_errors",
        ),
        _flapping(
            "ethernet_flapping",
            "Network interface is flapping",
            "The link went down three times within an hour. Jobs that use it stall or fail each time.",
            _SWAP,
            "CommwatchEthernetFlapping",
            "warning",
        ),
        _flapped("nvlink_flapped", "NVLink went down and came back"),
        _flapped("rdma_port_flapped", "RDMA port went down and came back", "rdma_errors"),
        _flapped("ethernet_flapped", "Network interface went down and came back"),
    ),
    rules=(
        Rule(
            nvlinks,
            ("nvlink_flapping", "nvlink_flapped"),
            reads=(NvLink.flaps_recent, NvLink.state, NvLink.info, NvLink.expected),
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
