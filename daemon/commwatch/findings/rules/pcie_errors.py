"""Errors on PCIe links: packets sent again, links retrained, and what devices report (AER)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import COUNT_CLOSES_AFTER, FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.components import pcie_link_of
from commwatch.findings.rules.pcie import DEVICES, GPUS, link_of_errors
from commwatch.findings.rules.rule_set import HOUR, Rule, RuleSet
from commwatch.node.capacity import pcie_transfers_per_second

_REPLAYS = "commwatch_pcie_replays_total"
_ROLLOVERS = "commwatch_pcie_replay_rollovers_total"
_AER = "commwatch_pcie_aer_errors_total"
_AER_ROOT = "commwatch_pcie_aer_root_port_errors_total"
_GENERATION_MAX = "commwatch_pcie_link_generation_max"
_WIDTH = "commwatch_pcie_link_width_lanes"
_DEVICE_GENERATION_MAX = "commwatch_pcie_device_link_generation_max"
_DEVICE_WIDTH = "commwatch_pcie_device_link_width_lanes"
_NVML: Mapping[str, str] = {
    "fatal": "commwatch_pcie_fatal_errors_total",
    "nonfatal": "commwatch_pcie_nonfatal_errors_total",
}
"""By severity."""

_LOST: Mapping[str, str] = {"fatal": "pcie_fatal", "nonfatal": "pcie_nonfatal"}
"""Codes of what was not corrected, by severity."""

_Told: TypeAlias = tuple[str, Component, Evidence]
"""Code, link, and one fact."""

_RATE_WINDOW = 300.0
"""Seconds over which errors are counted that a healthy link may have: detection class B."""


def _floor(generation: float | None, lanes: float | None, thresholds: Thresholds) -> float | None:
    """Errors that a link may have in the window; None where it is not known what the link is.

    Bits per second of all lanes, times the bit error ratio that is allowed, rounded up for each minute.
    """
    transfers = None if generation is None else pcie_transfers_per_second(generation)
    if transfers is None or not lanes:
        return None
    per_minute = math.ceil(round(transfers * lanes * 60.0 * thresholds.pcie_bit_error_ratio_max, 6))
    return per_minute * _RATE_WINDOW / 60.0


def replays(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links of GPUs that send more packets again than the allowed bit error ratio makes them, or had to retrain."""
    for labels, count in facts.increases(_REPLAYS, _RATE_WINDOW):
        address = labels["pci_bus_id"]
        floor = _floor(
            facts.value(_GENERATION_MAX, pci_bus_id=address),
            facts.value(_WIDTH, pci_bus_id=address),
            thresholds,
        )
        if floor is not None and count > floor:
            evidence = Evidence("replays in the last 5 min", count, "", floor, "pcie_bit_error_ratio_max")
            yield Sighting("pcie_replays", pcie_link_of(labels), (evidence,))
    for labels, count in facts.increases(_ROLLOVERS, HOUR):
        evidence = Evidence("retrainings after replays in the last hour", count)
        yield Sighting("pcie_retrained", pcie_link_of(labels), (evidence,))


def reported(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Errors that devices reported: fatal and not fatal ones always, corrected ones above the floor of their link."""
    told: dict[tuple[str, Component], list[Evidence]] = {}
    for code, component, evidence in (*_not_corrected(facts), *_corrected(facts, thresholds)):
        told.setdefault((code, component), []).append(evidence)
    fatal = frozenset[str]().union(*(component.parts for code, component in told if code == "pcie_fatal"))
    for (code, component), evidences in told.items():
        yield Sighting(code, component, tuple(evidences))
    yield from _below_root_ports(facts, fatal)


def _not_corrected(facts: Facts) -> Iterable[_Told]:
    """What was not corrected, by the devices' own reports (AER) and by the GPUs' own counts (NVML)."""
    for labels, count in facts.increases(_AER, HOUR):
        severity, device, role = labels["severity"], labels["device"], labels["role"]
        if severity in _LOST:
            what = f"{severity} errors in the last hour, reported by {device} ({role.replace('_', ' ')})"
            yield _LOST[severity], link_of_errors(facts, device, role), Evidence(what, count)
    for severity, metric in _NVML.items():
        for labels, count in facts.increases(metric, HOUR):
            what = f"{severity} errors in the last hour, counted by the GPU"
            yield _LOST[severity], pcie_link_of(labels), Evidence(what, count)


def _corrected(facts: Facts, thresholds: Thresholds) -> Iterable[_Told]:
    for labels, count in facts.increases(_AER, _RATE_WINDOW):
        if labels["severity"] != "correctable":
            continue
        device, role = labels["device"], labels["role"]
        floor = _floor(
            facts.value(_DEVICE_GENERATION_MAX, device=device),
            facts.value(_DEVICE_WIDTH, device=device),
            thresholds,
        )
        if floor is not None and count > floor:
            what = f"corrected errors in the last 5 min, reported by {device} ({role.replace('_', ' ')})"
            evidence = Evidence(what, count, "", floor, "pcie_bit_error_ratio_max")
            yield "pcie_corrected", link_of_errors(facts, device, role), evidence


def _below_root_ports(facts: Facts, fatal: Collection[str]) -> Iterable[Sighting]:
    """Fatal errors that only the root port tells of: the device below cannot any more."""
    for labels, count in facts.increases(_AER_ROOT, HOUR):
        if labels["severity"] != "fatal":
            continue
        link = link_of_errors(facts, labels["device"], "root_port")
        if link.parts.isdisjoint(fatal):
            evidence = Evidence(f"fatal errors in the last hour, told by root port {labels['device']}", count)
            yield Sighting("pcie_fatal", link, (evidence,))


PCIE_ERRORS = RuleSet(
    name="PCIe errors",
    codes=(
        FindingCode(
            name="pcie_replays",
            title="PCIe link sends too many packets again",
            severity="warning",
            role="fault",
            meaning="More bits are damaged than the specification allows. Bandwidth is lost to what is sent again, and "
            "such a link often falls back to fewer lanes or a lower generation.",
            next_step="Reseat card, riser or cable; if the replays go on, swap the card with another slot to see which "
            "of the two is at fault.",
            alert="CommwatchPcieReplays",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="pcie_retrained",
            title="PCIe link had to retrain",
            severity="warning",
            role="fault",
            meaning="The same packet failed again and again until the link was retrained. Traffic stood still "
            "meanwhile.",
            next_step="As for replays: reseat, and find out whether card or slot is at fault.",
            alert="CommwatchPcieRetrained",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="pcie_fatal",
            title="Fatal PCIe error",
            severity="critical",
            role="fault",
            meaning="A device or the port above it reported an error after which the link cannot be trusted. What used "
            "it has failed or will.",
            next_step="Drain the node, save the kernel log, and power cycle; on repetition have device and slot looked "
            "at.",
            alert="CommwatchPcieFatal",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="pcie_nonfatal",
            title="Uncorrected PCIe error",
            severity="warning",
            role="fault",
            meaning="A packet was lost for good and the link went on. The transfer it belonged to failed or was done "
            "again.",
            next_step="Read the kind of error in commwatch_pcie_aer_named_errors_total and the kernel log. A single "
            "unsupported request can come from software; others are hardware.",
            alert="CommwatchPcieNonfatal",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="pcie_corrected",
            title="PCIe link corrects too many errors",
            severity="warning",
            role="fault",
            meaning="More errors were corrected than the bit error ratio of the specification makes. Nothing was lost "
            "but time; the link may be about to fall back.",
            next_step="Reseat card, riser or cable; read the kind of error in commwatch_pcie_aer_named_errors_total.",
            alert="CommwatchPcieCorrected",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
    ),
    rules=(
        Rule(
            replays,
            ("pcie_replays", "pcie_retrained"),
            reads=(_REPLAYS, _GENERATION_MAX, _WIDTH, _ROLLOVERS),
            thresholds=("pcie_bit_error_ratio_max",),
        ),
        Rule(
            reported,
            ("pcie_fatal", "pcie_nonfatal", "pcie_corrected"),
            reads=(_AER, _AER_ROOT, *_NVML.values(), _DEVICE_GENERATION_MAX, _DEVICE_WIDTH, DEVICES),
            details=(GPUS,),
            thresholds=("pcie_bit_error_ratio_max",),
        ),
    ),
    windows={
        _REPLAYS: _RATE_WINDOW,
        _ROLLOVERS: HOUR,
        _AER: HOUR,
        _AER_ROOT: HOUR,
        **dict.fromkeys(_NVML.values(), HOUR),
    },
)
