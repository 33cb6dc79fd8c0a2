"""Network adapters: those without a driver, and what drivers wrote into the kernel log within the last hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import ADAPTER_NAMES, adapter_of
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, HOUR, FindingCode, Rule, RuleSet
from commwatch.sources.adapter_lines import ADAPTER_EVENTS, Gravity
from commwatch_exporters.node.model import Adapter, PcieDevice

_CODES: Mapping[Gravity, str] = {
    "critical": "adapter_failed",
    "warning": "adapter_troubled",
    "info": "adapter_noted",
}


_UNBOUND_FOR = 60.0
"""Seconds: a driver that is loaded again, or an adapter that restarts, is done before."""


def of_gravity(gravity: Gravity) -> tuple[str, ...]:
    """Codes of the events of one gravity."""
    return tuple(code for code, event in ADAPTER_EVENTS.items() if event.gravity == gravity)


def events(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Adapters of which a driver reported something within the last hour; one finding for each gravity."""
    evidence_of: dict[tuple[str, Component], list[Evidence]] = {}
    for adapter, kind, count in facts.rises_keyed(Adapter.events, HOUR):
        if (event := ADAPTER_EVENTS.get(kind)) is not None:
            evidence = Evidence(f"lines of the kernel log {facts.lately(HOUR)}: {event.meaning}", count)
            evidence_of.setdefault((_CODES[event.gravity], adapter_of(facts, adapter)), []).append(evidence)
    for (code, component), evidences in evidence_of.items():
        yield Match(code, component, tuple(evidences))


def without_driver(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Adapters that their driver did not start, while it serves a like one."""
    for device, _ in facts.each(PcieDevice.info):
        if device.adapter_unbound == 1:
            adapter = adapter_of(facts, facts.node.part(Adapter, device.address))
            yield Match("adapter_without_driver", adapter, (Evidence("kernel driver", "none is bound"),))


ADAPTERS = RuleSet(
    name="Network adapters",
    codes=(
        FindingCode(
            name="adapter_failed",
            title="Network adapter has failed",
            severity="critical",
            role="fault",
            meaning="The driver reports that firmware or adapter have failed, or no longer answer. Jobs that use its "
            "ports fail.",
            next_step="Drain the node; save what dmesg and devlink health show print; once it is free, power cycle it. "
            "Again: update the firmware, then swap the adapter.",
            alert="CommwatchAdapterFailed",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="adapter_troubled",
            title="Network adapter reports trouble",
            severity="warning",
            role="fault",
            meaning="The driver reports an error of the firmware, too much heat, a fault of the cable module, or a "
            "hung queue. Jobs that use its ports may stall.",
            next_step="Run journalctl -k -g ADDRESS: it names the reason; then check cooling, cable module (ethtool "
            "-m) and firmware of the adapter.",
            alert="CommwatchAdapterTroubled",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="adapter_noted",
            title="Network adapter: a line in the kernel log",
            severity="info",
            role="state",
            meaning="The driver reports little power at the slot, a PCIe link below what the adapter can, or a reset. "
            "Many healthy nodes log this at each boot.",
            next_step="None now. Compare with the other nodes of this kind.",
            alert="CommwatchAdapterNoted",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="adapter_without_driver",
            title="Network adapter has no driver",
            severity="warning",
            role="fault",
            meaning="The adapter is on the PCI bus without a kernel driver, while a like one of the node has it. No "
            "job can use its ports.",
            next_step="Drain the node; run journalctl -k -g ADDRESS: it says why the driver did not start; once it is "
            "free, power cycle it; on repetition update the firmware, then swap the adapter. On purpose: set its "
            "driver_override.",
            alert="CommwatchAdapterWithoutDriver",
            opens_after=_UNBOUND_FOR,
        ),
    ),
    rules=(
        Rule(events, tuple(_CODES.values()), reads=(Adapter.events,), details=ADAPTER_NAMES),
        Rule(
            without_driver,
            ("adapter_without_driver",),
            reads=(PcieDevice.adapter_unbound, PcieDevice.info),
            details=ADAPTER_NAMES,
        ),
    ),
    windows={Adapter.events: HOUR},
    events=frozenset({Adapter.events}),
)
