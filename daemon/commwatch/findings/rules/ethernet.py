"""Network interfaces: those that are down, gone or slow, that lose their link, and that damage packets."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import COUNT_CLOSES_AFTER, FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.components import interface_of
from commwatch.findings.rules.ports import (
    ALL_READ,
    INTERFACES,
    Limit,
    Told,
    all_read,
    interface_at,
    metrics_of,
    risen,
    sightings,
)
from commwatch.findings.rules.rule_set import HOUR, Rule, RuleSet

_EXPECTED = "commwatch_ethernet_expected"
_CARRIER = "commwatch_ethernet_carrier"
_SPEED = "commwatch_ethernet_speed_bytes_per_second"
_SPEED_EXPECTED = "commwatch_ethernet_speed_expected_bytes_per_second"
_STABLE = "the fastest that was stable here"
_CHANGES = "commwatch_ethernet_carrier_changes_total"
_DOWNS = "commwatch_ethernet_phy_link_down_total"
_MODULE = "commwatch_ethernet_module_events_total"

_ERRORS = {
    "commwatch_ethernet_receive_errors_total": "packets received with errors",
    "commwatch_ethernet_receive_crc_errors_total": "packets received with a wrong checksum",
    "commwatch_ethernet_phy_crc_errors_total": "packets with a wrong checksum at the port",
    "commwatch_ethernet_phy_symbol_errors_total": "packets dropped for errors of the coding",
    "commwatch_ethernet_phy_pcs_symbol_errors_total": "symbol errors that were not mended",
}
_MODULE_FAULTS = frozenset({"bus_stuck", "high_temperature", "shorted"})
_STORMS = (Limit("commwatch_ethernet_pause_storms_total", "long pauses sent", HOUR),)

_DOWN_FOR = 60.0
"""Seconds: a switch that is restarted, or a link that trains, is back before."""
_BITS = 8.0


def down(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Interfaces that had a link for the learning time and have none now."""
    for labels, _ in facts.series(_EXPECTED):
        # One that is switched off says nothing of its link.
        if facts.value(_CARRIER, **labels) == 0:
            yield Sighting("ethernet_down", interface_at(facts, labels), (Evidence("link", "none"),))


def missing(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Interfaces that had a link for the learning time and are not on the node now."""
    if not all_read(facts, "network", "ethernet_port"):
        return
    signs = (INTERFACES, _CARRIER, _CHANGES)
    here = {labels["device"] for metric in signs for labels, _ in facts.series(metric)}
    for labels, _ in facts.series(_EXPECTED):
        if labels["device"] not in here:
            yield Sighting("ethernet_missing", interface_of(labels), (Evidence("interface", "not on this node"),))


def flapping(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Interfaces that lost their link several times in an hour."""
    downs: dict[Component, float] = {}
    # A loss and a return are two changes.
    for metric, changes in ((_DOWNS, 1), (_CHANGES, 2)):
        for labels, count in facts.increases(metric, HOUR):
            interface = interface_at(facts, labels)
            downs[interface] = max(count // changes, downs.get(interface, 0.0))
    most = thresholds.ethernet_link_downs_per_hour
    for interface, count in downs.items():
        if count > most:
            what = "times the link was lost in the last hour"
            evidence = Evidence(what, count, "", most, "ethernet_link_downs_per_hour")
            yield Sighting("ethernet_flapping", interface, (evidence,))


def slow(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Interfaces that run below the speed that was stable here."""
    for labels, expected in facts.series(_SPEED_EXPECTED):
        speed = facts.value(_SPEED, **labels)
        if speed is not None and speed < expected:
            evidence = Evidence("speed", speed, "bytes_per_second", expected, _STABLE)
            yield Sighting("ethernet_slow", interface_at(facts, labels), (evidence,))


def errors(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Interfaces with more damaged packets than the bit error ratio of the standard makes."""
    told: Told = {}
    for metric, what in _ERRORS.items():
        for labels, count in facts.increases(metric, HOUR):
            speed = facts.value(_SPEED, **labels) or facts.value(_SPEED_EXPECTED, **labels)
            if speed is None:
                continue
            most = speed * _BITS * HOUR * thresholds.ethernet_bit_error_ratio_max
            if count > most:
                evidence = Evidence(f"{what} in the last hour", count, "", most, "ethernet_bit_error_ratio_max")
                told.setdefault(interface_at(facts, labels), []).append(evidence)
    return sightings("ethernet_errors", told)


def module(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Interfaces of which the cable module reported a fault within the last hour."""
    told: Told = {}
    for labels, count in facts.increases(_MODULE, HOUR):
        kind = labels["kind"]
        if kind in _MODULE_FAULTS:
            evidence = Evidence(f"events of the module in the last hour: {kind.replace('_', ' ')}", count)
            told.setdefault(interface_at(facts, {"device": labels["device"]}), []).append(evidence)
    return sightings("ethernet_module_fault", told)


def storms(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Interfaces that stopped the network for long within the last hour."""
    return risen("ethernet_pause_storm", facts, thresholds, _STORMS)


def _speed_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    """Whether the interface has a speed: without a link it has none."""
    return facts.value(_SPEED, device=component.key) is not None


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
            meaning="An interface that had a link for the learning time has none. What goes over it alone is cut off: "
            "jobs of several nodes that use it, storage, or the start of jobs.",
            next_step="Look at cable, module and the port of the switch. Unplugged on purpose: commwatch inventory "
            "accept.",
            alert="CommwatchEthernetDown",
            opens_after=_DOWN_FOR,
        ),
        FindingCode(
            name="ethernet_missing",
            title="Network interface is gone",
            severity="info",
            role="state",
            meaning="An interface that had a link for the learning time is not on the node any more. It may have been "
            "handed to a container, or its adapter fell off the bus.",
            next_step="Look for the adapter with lspci. Handed away or renamed on purpose: commwatch inventory accept.",
            opens_after=_DOWN_FOR,
        ),
        FindingCode(
            name="ethernet_flapping",
            title="Network interface loses its link again and again",
            severity="warning",
            role="fault",
            meaning="The link was lost several times within an hour. Connections over it stall each time.",
            next_step="Clean or swap cable and module; ask whether the switch or the driver was restarted.",
            alert="CommwatchEthernetFlapping",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="ethernet_slow",
            title="Network interface runs below its speed",
            severity="warning",
            role="fault",
            meaning="The link has come up with a lower speed than was stable here. A job runs at the speed of its "
            "slowest node.",
            next_step="Bring the link down and up; if it stays slow, swap cable and module, then try another port of "
            "the switch. Changed on purpose: commwatch inventory accept.",
            alert="CommwatchEthernetSlow",
        ),
        FindingCode(
            name="ethernet_errors",
            title="Network interface receives damaged packets",
            severity="warning",
            role="fault",
            meaning="More packets are damaged than the link was made for. They are lost: TCP slows down, RoCE sends "
            "again.",
            next_step="Clean or swap cable and module, then look whether the errors stay with the port, the cable or "
            "the port of the switch.",
            alert="CommwatchEthernetErrors",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="ethernet_module_fault",
            title="Cable module reports a fault",
            severity="warning",
            role="fault",
            meaning="The module of the cable was too hot, shorted, or did not answer. Links on such modules lose "
            "packets and fail.",
            next_step="Look at the module's temperature (ethtool -m), reseat it, then swap it.",
            alert="CommwatchEthernetModuleFault",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="ethernet_pause_storm",
            title="Adapter stopped the network for long",
            severity="warning",
            role="fault",
            meaning="The adapter sent pauses without an end because the host did not take its packets. All who share "
            "the switch port's buffers wait; after a while the adapter drops packets instead.",
            next_step="Look for a process that hangs, for a narrow or slow PCIe link of the adapter, and at the kernel "
            "log.",
            alert="CommwatchEthernetPauseStorm",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
    ),
    rules=(
        Rule(down, ("ethernet_down",), reads=(_EXPECTED, _CARRIER), details=(INTERFACES,)),
        Rule(missing, ("ethernet_missing",), reads=(_EXPECTED, INTERFACES, _CARRIER, _CHANGES, *ALL_READ)),
        Rule(
            flapping,
            ("ethernet_flapping",),
            reads=(_DOWNS, _CHANGES),
            details=(INTERFACES,),
            thresholds=("ethernet_link_downs_per_hour",),
        ),
        Rule(slow, ("ethernet_slow",), reads=(_SPEED, _SPEED_EXPECTED), details=(INTERFACES,)),
        Rule(
            errors,
            ("ethernet_errors",),
            reads=(*_ERRORS, _SPEED, _SPEED_EXPECTED),
            details=(INTERFACES,),
            thresholds=("ethernet_bit_error_ratio_max",),
        ),
        Rule(module, ("ethernet_module_fault",), reads=(_MODULE,), details=(INTERFACES,)),
        Rule(storms, ("ethernet_pause_storm",), reads=metrics_of(_STORMS), details=(INTERFACES,)),
    ),
    windows=dict.fromkeys((_DOWNS, _CHANGES, _MODULE, *_ERRORS, *metrics_of(_STORMS)), HOUR),
    judged={"ethernet_slow": _speed_judged, "ethernet_missing": _missing_judged},
)
