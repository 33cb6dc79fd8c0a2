"""Network interfaces: those that are down, gone or slow, and that damage packets."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import ALL_READ, Facts, all_read
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import interface_of
from commwatch.findings.rules.counted import Found, columns_of, counted, matches
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, HOUR, FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import Interface

_STABLE = "the fastest that was stable here"

# Not all that the kernel calls errors: it counts packets that are longer than the MTU among them.
_ERRORS = {
    Interface.receive_crc_errors: "packets received with a wrong checksum",
    Interface.phy_crc_errors: "packets with a wrong checksum at the port",
    Interface.phy_symbol_errors: "packets dropped for errors of the coding",
    Interface.phy_pcs_symbol_errors: "symbol errors that were not mended",
}
_MODULE_FAULTS = frozenset({"bus_stuck", "high_temperature", "shorted"})

_DOWN_FOR = 60.0
"""Seconds: a switch that is restarted, or a link that trains, is back before."""
_BITS = 8.0


def down(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Interfaces that had a link in this boot, or for the learning time, or whose bond has another, and have none."""
    for interface, _ in facts.each(Interface.expected):
        # One that is switched off says nothing of its link.
        if interface.carrier == 0:
            yield Match("ethernet_down", interface_of(interface), (Evidence("link", "none"),))


def missing(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Interfaces that had a link for the learning time and are not on the node now."""
    if not all_read(facts, "network", "ethernet_port"):
        return
    for interface, _ in facts.each(Interface.expected):
        signs = (interface.info, interface.carrier, interface.carrier_changes)
        if all(sign is None for sign in signs):
            yield Match("ethernet_missing", interface_of(interface), (Evidence("interface", "not on this node"),))


def slow(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Interfaces that run below the speed that was stable here."""
    for interface, expected in facts.each(Interface.speed_expected_bytes_per_second):
        speed = interface.speed_bytes_per_second
        if speed is not None and speed < expected:
            evidence = Evidence("speed", speed, "bytes_per_second", expected, _STABLE)
            yield Match("ethernet_slow", interface_of(interface), (evidence,))


def errors(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Interfaces with more damaged packets than the bit error ratio of the standard makes."""
    evidence_of: Found = {}
    for column, what in _ERRORS.items():
        for interface, count in facts.rises(column, HOUR):
            speed = interface.speed_bytes_per_second or interface.speed_expected_bytes_per_second
            if speed is None:
                continue
            most = speed * _BITS * HOUR * thresholds.ethernet_bit_error_ratio_max
            if count > most:
                evidence = Evidence(f"{what} in the last hour", count, "", most, "ethernet_bit_error_ratio_max")
                evidence_of.setdefault(interface_of(interface), []).append(evidence)
    return matches("ethernet_errors", evidence_of)


def module(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Interfaces of which the cable module reported a fault within the last hour."""
    evidence_of: Found = {}
    for interface, kind, count in facts.rises_keyed(Interface.module_events, HOUR):
        if kind in _MODULE_FAULTS:
            evidence = Evidence(f"events of the module in the last hour: {kind.replace('_', ' ')}", count)
            evidence_of.setdefault(interface_of(interface), []).append(evidence)
    return matches("ethernet_module_fault", evidence_of)


def _speed_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    """Whether the interface has a speed: without a link it has none."""
    return facts.node.part(Interface, component.key).speed_bytes_per_second is not None


def _missing_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    return all_read(facts, "network", "ethernet_port")


ETHERNET = RuleSet(
    name="Network interfaces",
    codes=(
        FindingCode(
            name="ethernet_down",
            title="Network interface has no link",
            severity="warning",
            role="fault",
            meaning="An interface that had a link, or whose bond has another, has none. Jobs that use it fail or hang, "
            "unless it has another path.",
            next_step="Drain the node; check cable, module and switch port. Only if this was done on purpose, run "
            "commwatch inventory accept.",
            alert="CommwatchEthernetDown",
            opens_after=_DOWN_FOR,
        ),
        FindingCode(
            name="ethernet_missing",
            title="Network interface is gone",
            severity="info",
            role="state",
            meaning="An interface that had a link is gone: moved to a container, or its adapter fell off the bus.",
            next_step="Check lspci. Only if this was done on purpose, run commwatch inventory accept.",
            opens_after=_DOWN_FOR,
        ),
        FindingCode(
            name="ethernet_slow",
            title="Network interface runs below its speed",
            severity="warning",
            role="fault",
            meaning="The link came up below the speed that was stable here. Jobs that use it run slower.",
            next_step="Drain the node; once it is free, set the link down and up; if it stays slow, swap cable and "
            "module. Only if this was done on purpose, run commwatch inventory accept.",
            alert="CommwatchEthernetSlow",
        ),
        FindingCode(
            name="ethernet_errors",
            title="Network interface receives damaged packets",
            severity="warning",
            role="fault",
            meaning="More packets are damaged than the link's specification allows. Jobs go on; lost packets are sent "
            "again.",
            next_step="Drain the node; once it is free, clean or swap cable and module; see whether errors follow "
            "cable or switch port.",
            alert="CommwatchEthernetErrors",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="ethernet_module_fault",
            title="Cable module reports a fault",
            severity="warning",
            role="fault",
            meaning="The cable module was too hot, shorted, or did not answer. Jobs go on, but such links lose packets "
            "and fail.",
            next_step="Too hot: run ethtool -m for the module's temperature, and check the fans. Else drain the node; "
            "once it is free, reseat the module, then swap it.",
            alert="CommwatchEthernetModuleFault",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="ethernet_pause_storm",
            title="Adapter sends a pause storm",
            severity="warning",
            role="fault",
            meaning="The adapter sent pause frames for long: the host probably accepted packets too slowly. Other "
            "nodes, and jobs over them, may wait for it; then packets drop.",
            next_step="Run commwatch topology and look for a narrow PCIe link of the adapter, then for a process that "
            "hangs (state D in ps); if it goes on, drain the node.",
            alert="CommwatchEthernetPauseStorm",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
    ),
    rules=(
        Rule(down, ("ethernet_down",), reads=(Interface.expected, Interface.carrier), details=(Interface.info,)),
        Rule(
            missing,
            ("ethernet_missing",),
            reads=(Interface.expected, Interface.info, Interface.carrier, Interface.carrier_changes, *ALL_READ),
        ),
        Rule(
            slow,
            ("ethernet_slow",),
            reads=(Interface.speed_bytes_per_second, Interface.speed_expected_bytes_per_second),
            details=(Interface.info,),
        ),
        Rule(
            errors,
            ("ethernet_errors",),
            reads=(*_ERRORS, Interface.speed_bytes_per_second, Interface.speed_expected_bytes_per_second),
            details=(Interface.info,),
            thresholds=("ethernet_bit_error_ratio_max",),
        ),
        Rule(module, ("ethernet_module_fault",), reads=(Interface.module_events,), details=(Interface.info,)),
        counted("ethernet.storms", "ethernet_pause_storm"),
    ),
    windows=dict.fromkeys((Interface.module_events, *_ERRORS, *columns_of("ethernet_pause_storm")), HOUR),
    judged={"ethernet_slow": _speed_judged, "ethernet_missing": _missing_judged},
)
