"""Errors on PCIe links: packets sent again, links retrained, and what devices report (AER)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import ADAPTER_NAMES, pcie_link_of
from commwatch.findings.rules.pcie import POWER_CYCLE, link_of_errors
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, HOUR, FindingCode, Rule, RuleSet
from commwatch.node.capacity import pcie_transfers_per_second
from commwatch_exporters.node.model import Gpu, PcieDevice
from commwatch_exporters.node.parts import Column

_NVML: Mapping[str, Column[Gpu]] = {"fatal": Gpu.pcie_fatal_errors, "nonfatal": Gpu.pcie_nonfatal_errors}
"""By severity."""

_LOST: Mapping[str, str] = {"fatal": "pcie_fatal", "nonfatal": "pcie_nonfatal"}
"""Codes of what was not corrected, by severity."""

_Found: TypeAlias = tuple[str, Component, str, Evidence]
"""Code, link, PCI address of the device that reports it, and one fact."""

_READ_THE_LOG = (
    "Run journalctl -k -g ADDRESS: it names the error. After any but a single UnsupReq, which software can cause: "
    f"{POWER_CYCLE}"
)

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


def replays(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links of GPUs that send more packets again than the allowed bit error ratio makes them, or had to retrain."""
    for gpu, count in facts.rises(Gpu.pcie_replays, _RATE_WINDOW, within=True):
        floor = _floor(gpu.pcie_generation_max, gpu.pcie_width_lanes, thresholds)
        if floor is not None and count > floor:
            evidence = Evidence(f"replays {facts.lately(_RATE_WINDOW)}", count, "", floor, "pcie_bit_error_ratio_max")
            yield Match("pcie_replays", pcie_link_of(gpu), (evidence,))
    for gpu, count in facts.rises(Gpu.pcie_replay_rollovers, HOUR):
        evidence = Evidence(f"retrainings after replays {facts.lately(HOUR)}", count)
        yield Match("pcie_retrained", pcie_link_of(gpu), (evidence,))


def reported(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Errors that devices reported: fatal and not fatal ones always, corrected ones above the floor of their link."""
    evidence_of: dict[tuple[str, Component], list[Evidence]] = {}
    reporter_of: dict[tuple[str, Component], str] = {}
    for code, component, address, evidence in (*_not_corrected(facts), *_corrected(facts, thresholds)):
        evidence_of.setdefault((code, component), []).append(evidence)
        reporter_of.setdefault((code, component), address)
    fatal = frozenset[str]().union(*(component.parts for code, component in evidence_of if code == "pcie_fatal"))
    for (code, component), evidences in evidence_of.items():
        # The kernel names the error with the device that reports it, which may be the port above the link.
        next_step = _READ_THE_LOG.replace("ADDRESS", reporter_of[code, component]) if code == "pcie_nonfatal" else ""
        yield Match(code, component, tuple(evidences), next_step=next_step)
    yield from _below_root_ports(facts, fatal)


def _not_corrected(facts: Facts) -> Iterable[_Found]:
    """Uncorrected errors, by the devices' own reports (AER) and by the GPUs' own counts (NVML)."""
    for device, severity, count in facts.rises_keyed(PcieDevice.aer_errors, HOUR):
        if severity in _LOST:
            what = f"{severity} errors {facts.lately(HOUR)}, reported by {_named(device)}"
            yield _LOST[severity], link_of_errors(facts, device), device.address, Evidence(what, count)
    for severity, column in _NVML.items():
        for gpu, count in facts.rises(column, HOUR):
            what = f"{severity} errors {facts.lately(HOUR)}, counted by the GPU"
            yield _LOST[severity], pcie_link_of(gpu), gpu.address, Evidence(what, count)


def _named(device: PcieDevice) -> str:
    return f"{device.address} ({device.role.replace('_', ' ')})"


def _corrected(facts: Facts, thresholds: Thresholds) -> Iterable[_Found]:
    for device, severity, count in facts.rises_keyed(PcieDevice.aer_errors, _RATE_WINDOW):
        if severity != "correctable":
            continue
        floor = _floor(device.generation_max, device.width_lanes, thresholds)
        if floor is not None and count > floor:
            what = f"corrected errors {facts.lately(_RATE_WINDOW)}, reported by {_named(device)}"
            evidence = Evidence(what, count, "", floor, "pcie_bit_error_ratio_max")
            yield "pcie_corrected", link_of_errors(facts, device), device.address, evidence


def _below_root_ports(facts: Facts, fatal: Collection[str]) -> Iterable[Match]:
    """Fatal errors that only the root port reports: the device below cannot any more."""
    for port, severity, count in facts.rises_keyed(PcieDevice.aer_root_port_errors, HOUR):
        if severity != "fatal":
            continue
        link = link_of_errors(facts, PcieDevice(facts.node, {**port.labels, "role": port.role or "root_port"}))
        if link.parts.isdisjoint(fatal):
            evidence = Evidence(f"fatal errors {facts.lately(HOUR)}, reported by root port {port.address}", count)
            yield Match("pcie_fatal", link, (evidence,))


PCIE_ERRORS = RuleSet(
    name="PCIe errors",
    codes=(
        FindingCode(
            name="pcie_replays",
            title="PCIe link sends too many packets again",
            severity="warning",
            role="fault",
            meaning="More bits are damaged than the specification allows. Jobs go on; the link may lose lanes or "
            "speed.",
            next_step=POWER_CYCLE,
            alert="CommwatchPcieReplays",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="pcie_retrained",
            title="PCIe link had to retrain",
            severity="warning",
            role="fault",
            meaning="A packet failed repeatedly until the link retrained. Its traffic waited meanwhile; jobs go on.",
            next_step=POWER_CYCLE,
            alert="CommwatchPcieRetrained",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="pcie_fatal",
            title="Fatal PCIe error",
            severity="critical",
            role="fault",
            meaning="A device or the port above it reported a fatal error. Jobs that use this link have failed or will "
            "fail.",
            next_step="Drain the node; once it is free, run nvidia-bug-report.sh, then power cycle it. Again: have "
            "device and slot inspected.",
            alert="CommwatchPcieFatal",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
            is_event=True,
        ),
        FindingCode(
            name="pcie_nonfatal",
            title="Uncorrected PCIe error",
            severity="warning",
            role="fault",
            meaning="A packet was lost and the link is still up. A job whose transfer was lost may fail.",
            next_step=_READ_THE_LOG,
            alert="CommwatchPcieNonfatal",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="pcie_corrected",
            title="PCIe link corrects too many errors",
            severity="warning",
            role="fault",
            meaning="More errors were corrected than the specification explains. Jobs go on; the link may lose lanes "
            "or speed.",
            next_step=POWER_CYCLE,
            alert="CommwatchPcieCorrected",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
    ),
    rules=(
        Rule(
            replays,
            ("pcie_replays", "pcie_retrained"),
            reads=(Gpu.pcie_replays, Gpu.pcie_generation_max, Gpu.pcie_width_lanes, Gpu.pcie_replay_rollovers),
            thresholds=("pcie_bit_error_ratio_max",),
        ),
        Rule(
            reported,
            ("pcie_fatal", "pcie_nonfatal", "pcie_corrected"),
            reads=(
                PcieDevice.aer_errors,
                PcieDevice.aer_root_port_errors,
                *_NVML.values(),
                PcieDevice.generation_max,
                PcieDevice.width_lanes,
                PcieDevice.info,
            ),
            details=(Gpu.info, *ADAPTER_NAMES),
            thresholds=("pcie_bit_error_ratio_max",),
        ),
    ),
    windows={
        Gpu.pcie_replays: _RATE_WINDOW,
        Gpu.pcie_replay_rollovers: HOUR,
        PcieDevice.aer_errors: HOUR,
        PcieDevice.aer_root_port_errors: HOUR,
        **dict.fromkeys(_NVML.values(), HOUR),
    },
)
