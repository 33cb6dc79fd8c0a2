"""PCIe links that are narrower or slower than they should be."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, EvidenceUnit, Match
from commwatch.findings.rules.components import ADAPTER_NAMES, device_link_of, pcie_link_of
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch.node.pcie import is_narrow
from commwatch_exporters.node.model import Gpu, PcieDevice

_LANES: EvidenceUnit = "lanes"
_NO_UNIT: EvidenceUnit = ""

OF_HOSTS = 5.0
"""Generation that hosts of GPUs offer: a GPU that can do more runs at this on every healthy node, unless an equal one
beside it shows that this host gives more."""

POWER_CYCLE = (
    "Drain the node; once it is free, power cycle it; if that does not help, call the vendor (PCIe card: reseat it "
    "first)."
)
"""The first step for a PCIe link at fault. GPUs and adapters on a board cannot be reseated."""

_UNDER_LOAD_FOR = 60.0
"""Seconds: the generation follows the clocks of the GPU, and these need a moment to come up."""
_WELL_UNDER_LOAD_FOR = 15.0
"""Seconds: a link that is slow does not reach its generation for a moment, and the load may be over in the next one."""


def narrow(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links of GPUs with fewer lanes than were seen here, or than equal GPUs or the configuration have."""
    for gpu, lanes in facts.each(Gpu.pcie_width_lanes):
        limit = gpu.pcie_width_expected_lanes
        if is_narrow(lanes, limit, None):
            evidence = Evidence(
                "lanes in use", lanes, "lanes", limit, "the widest that was seen, or that its equals have"
            )
            yield Match("pcie_width_dropped", pcie_link_of(gpu), (evidence,))


def slow(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links of GPUs that stay below the highest generation of both ends under load."""
    for gpu, aspect, flag in facts.each_keyed(Gpu.pcie_degraded):
        if flag != 1 or aspect != "generation":
            continue
        now, most = gpu.pcie_generation, gpu.pcie_generation_max
        evidence = [Evidence("generation under load", "below that of both ends")]
        if now is not None and most is not None and now < most:
            evidence = [Evidence("generation under load", now, threshold=most, threshold_origin="GPU and slot")]
        yield Match("pcie_generation_low", pcie_link_of(gpu), tuple(evidence))


def degraded_devices(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links above adapters and switches that are narrower or slower than both ends allow."""
    for device, aspect, flag in facts.each_keyed(PcieDevice.degraded):
        if flag != 1:
            continue
        if aspect == "width":
            code, what, unit, now = "pcie_device_narrow", "lanes in use", _LANES, device.width_lanes
        else:
            code, what, unit, now = "pcie_device_slow", "generation", _NO_UNIT, device.generation
        evidence = Evidence(what, "below that of both ends" if now is None else now, unit)
        yield Match(code, device_link(facts, device), (evidence,))


def _generation_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    """Whether the GPU is under load: its link is slow when idle, and is not judged then."""
    return "generation" in facts.node.part(Gpu, component.key).pcie_degraded


def _device_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    return "generation" in facts.node.part(PcieDevice, component.key).degraded


def device_link(facts: Facts, device: PcieDevice) -> Component:
    """The link above a device: that of a GPU by its index, that of a bridge with all devices below it."""
    if device.role == "gpu":
        gpu = facts.node.part(Gpu, device.address)
        if gpu.info is not None:
            return pcie_link_of(gpu)
    below = frozenset(one.address for one in facts.node.pcie_devices if device in one.above)
    return device_link_of(facts, device, below)


def link_of_errors(facts: Facts, device: PcieDevice) -> Component:
    """The link of which a device counts errors: that below a port which faces down, else that above the device.

    Both ends of a link count what they see, and it is one link.
    """
    below = [one for one in facts.node.pcie_devices if one.port == device]
    # The functions of one device share its link; the first stands for it.
    return device_link(facts, min(below, key=lambda one: one.address, default=device))


def below_maximum(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links of GPUs that have never been as wide as both ends can, or that the slot limits."""
    most_of_equals: dict[str, float] = {}
    for gpu, most_here in facts.each(Gpu.pcie_generation_max):
        most_of_equals[gpu.name] = max(most_here, most_of_equals.get(gpu.name, 0.0))
    for gpu, _ in facts.each(Gpu.info):
        evidence = []
        # Where no width is learned yet, the one of now counts.
        learned = gpu.pcie_width_expected_lanes
        lanes = gpu.pcie_width_lanes if learned is None else learned
        device = facts.node.part(PcieDevice, gpu.address)
        most = max((one for one in (gpu.pcie_width_max_lanes, device.width_max_lanes) if one is not None), default=None)
        if lanes is not None and most is not None and lanes < most:
            evidence.append(Evidence("lanes", lanes, "lanes", most, "what the GPU can use"))
        generation, own = gpu.pcie_generation_max, gpu.pcie_gpu_generation_max
        usual = max(OF_HOSTS, most_of_equals.get(gpu.name, 0.0))
        if generation is not None and own is not None and generation < min(own, usual):
            evidence.append(Evidence("generation", generation, "", own, "what the GPU can use"))
        if evidence:
            yield Match("pcie_below_maximum", pcie_link_of(gpu), tuple(evidence))


PCIE_LINKS = RuleSet(
    name="PCIe links",
    codes=(
        FindingCode(
            name="pcie_width_dropped",
            title="PCIe link has lost lanes",
            severity="critical",
            role="fault",
            quantities=("pcie_lanes",),
            meaning="The link has fewer lanes than before, or than equal GPUs on their board, also under load. Traffic "
            "to host, adapters and GPUs without NVLink slows in proportion.",
            next_step=f"{POWER_CYCLE} Only if this was done on purpose, run commwatch inventory accept.",
            alert="CommwatchPcieWidthDropped",
        ),
        FindingCode(
            name="pcie_generation_low",
            title="PCIe link is slow under load",
            severity="warning",
            role="fault",
            quantities=("pcie_generation",),
            meaning="Under load the link stays below the generation both ends support. Each generation halves the "
            "bandwidth.",
            next_step=POWER_CYCLE,
            alert="CommwatchPcieGenerationLow",
            opens_after=_UNDER_LOAD_FOR,
            closes_after=_WELL_UNDER_LOAD_FOR,
        ),
        FindingCode(
            name="pcie_device_narrow",
            title="PCIe link of adapter or switch is narrow",
            severity="warning",
            role="fault",
            quantities=("pcie_lanes", "device_lanes"),
            meaning="Everything below this link shares fewer lanes: an adapter misses its rate, or GPUs below a "
            "switch wait.",
            next_step=f"{POWER_CYCLE} A card that was always narrow: check whether the firmware splits the slot.",
            alert="CommwatchPcieDeviceDegraded",
        ),
        FindingCode(
            name="pcie_device_slow",
            title="PCIe link of adapter or switch is slow",
            severity="warning",
            role="fault",
            quantities=("pcie_generation",),
            meaning="The link runs below the generation both ends support. Each generation halves the bandwidth of "
            "everything below.",
            next_step=POWER_CYCLE,
            alert="CommwatchPcieDeviceDegraded",
            opens_after=_UNDER_LOAD_FOR,
            closes_after=_WELL_UNDER_LOAD_FOR,
        ),
        FindingCode(
            name="pcie_below_maximum",
            title="Slot gives the GPU less than its maximum",
            severity="info",
            role="state",
            quantities=("pcie_lanes", "pcie_slot"),
            meaning="Since the first start the link has had fewer lanes or a lower generation than the GPU supports: "
            "narrow slot, or never trained fully.",
            next_step="Compare with other GPUs and the board's manual. The slot is wider: reseat or move the card.",
        ),
    ),
    rules=(
        Rule(narrow, ("pcie_width_dropped",), reads=(Gpu.pcie_width_lanes, Gpu.pcie_width_expected_lanes)),
        Rule(
            slow,
            ("pcie_generation_low",),
            reads=(Gpu.pcie_degraded,),
            details=(Gpu.pcie_generation, Gpu.pcie_generation_max),
        ),
        Rule(
            degraded_devices,
            ("pcie_device_narrow", "pcie_device_slow"),
            reads=(PcieDevice.degraded,),
            details=(PcieDevice.width_lanes, PcieDevice.generation, Gpu.info, PcieDevice.info, *ADAPTER_NAMES),
        ),
        Rule(
            below_maximum,
            ("pcie_below_maximum",),
            reads=(
                Gpu.info,
                Gpu.pcie_width_lanes,
                Gpu.pcie_width_expected_lanes,
                Gpu.pcie_width_max_lanes,
                Gpu.pcie_generation_max,
                Gpu.pcie_gpu_generation_max,
                PcieDevice.width_max_lanes,
            ),
        ),
    ),
    judged={"pcie_generation_low": _generation_judged, "pcie_device_slow": _device_judged},
)
