"""PCIe links that are narrower or slower than they should be."""

from __future__ import annotations

import math
from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, EvidenceUnit, Sighting
from commwatch.findings.rules.components import device_link_of, pcie_link_of
from commwatch.findings.rules.rule_set import Rule, RuleSet
from commwatch.node.pcie import is_narrow
from commwatch.node.pcie_tree import Node, port_above

_WIDTH = "commwatch_pcie_link_width_lanes"
_WIDTH_EXPECTED = "commwatch_pcie_link_width_expected_lanes"
_WIDTH_MAX = "commwatch_pcie_link_width_max_lanes"
_GENERATION = "commwatch_pcie_link_generation"
_GENERATION_MAX = "commwatch_pcie_link_generation_max"
_GENERATION_OF_GPU = "commwatch_pcie_gpu_link_generation_max"
_DEGRADED = "commwatch_pcie_link_degraded"
_DEVICE_WIDTH = "commwatch_pcie_device_link_width_lanes"
_DEVICE_WIDTH_MAX = "commwatch_pcie_device_link_width_max_lanes"
_DEVICE_GENERATION = "commwatch_pcie_device_link_generation"
_DEVICE_DEGRADED = "commwatch_pcie_device_link_degraded"
DEVICES = "commwatch_pcie_device_info"
GPUS = "commwatch_gpu_info"

_LANES: EvidenceUnit = "lanes"
_NO_UNIT: EvidenceUnit = ""

_UNDER_LOAD_FOR = 60.0
"""Seconds: the generation follows the clocks of the GPU, and these need a moment to come up."""


def narrow(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links of GPUs with fewer lanes than were stable here."""
    learned = _by_gpu(facts, _WIDTH_EXPECTED)
    for labels, lanes in facts.series(_WIDTH):
        limit = learned.get(labels["pci_bus_id"])
        if is_narrow(lanes, limit, None):
            evidence = Evidence("lanes in use", lanes, "lanes", limit, "the widest that was stable here")
            yield Sighting("pcie_width_dropped", pcie_link_of(labels), (evidence,))


def _by_gpu(facts: Facts, metric: str) -> dict[str, float]:
    """A number of each GPU by its PCI address."""
    return {labels["pci_bus_id"]: value for labels, value in facts.series(metric)}


def slow(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links of GPUs that stay below the highest generation of both ends under load."""
    for labels, flag in facts.series(_DEGRADED):
        if flag != 1 or labels["aspect"] != "generation":
            continue
        address = labels["pci_bus_id"]
        now = facts.value(_GENERATION, pci_bus_id=address)
        most = facts.value(_GENERATION_MAX, pci_bus_id=address)
        evidence = [Evidence("generation under load", "below that of both ends")]
        if now is not None and most is not None and now < most:
            evidence = [Evidence("generation under load", now, threshold=most, threshold_origin="GPU and slot")]
        yield Sighting("pcie_generation_low", pcie_link_of(labels), tuple(evidence))


def degraded_devices(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links above adapters and switches that are narrower or slower than both ends allow."""
    for labels, flag in facts.series(_DEVICE_DEGRADED):
        if flag != 1:
            continue
        device, role = labels["device"], labels["role"]
        if labels["aspect"] == "width":
            code, what, unit = "pcie_device_narrow", "lanes in use", _LANES
            now = facts.value(_DEVICE_WIDTH, device=device)
        else:
            code, what, unit = "pcie_device_slow", "generation", _NO_UNIT
            now = facts.value(_DEVICE_GENERATION, device=device)
        evidence = Evidence(what, "below that of both ends" if now is None else now, unit)
        yield Sighting(code, device_link(facts, device, role), (evidence,))


def _generation_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    """Whether the GPU is under load: its link is slow when idle, and then nothing is said of it."""
    return facts.value(_DEGRADED, pci_bus_id=component.key, aspect="generation") is not None


def _device_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    return facts.value(_DEVICE_DEGRADED, device=component.key, aspect="generation") is not None


def device_link(facts: Facts, device: str, role: str) -> Component:
    """The link above a device: that of a GPU by its index, that of a bridge with all that stands below it."""
    if role == "gpu":
        for labels, _ in facts.series(GPUS):
            if labels["pci_bus_id"] == device:
                return pcie_link_of(labels)
    nodes = facts.derived(_nodes)
    below, found = frozenset[str](), frozenset({device})
    while found:
        below |= found
        found = frozenset(one for one, node in nodes.items() if node.parent in found) - below
    return device_link_of({"device": device, "role": role}, below)


def link_of_errors(facts: Facts, device: str, role: str) -> Component:
    """The link of which a device counts errors: that below a port which faces down, else that above the device.

    Both ends of a link count what they see, and it is one link.
    """
    nodes = facts.derived(_nodes)
    below = [one for one in nodes if nodes[one].parent == device and port_above(one, nodes) == device]
    # The functions of one device share its link; the first stands for it.
    lower = min(below, default=device)
    return device_link(facts, lower, nodes[lower].role if lower in nodes else role)


def _nodes(facts: Facts) -> dict[str, Node]:
    """The devices on paths of communication by PCI address."""
    infos = facts.series(DEVICES)
    return {labels["device"]: Node(labels["role"], labels["parent"]) for labels, _ in infos}


def below_maximum(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links of GPUs that have never been as wide as both ends can, or that the slot limits."""
    # Where no width is learned yet, the one of now counts.
    lanes = _by_gpu(facts, _WIDTH) | _by_gpu(facts, _WIDTH_EXPECTED)
    both = _by_gpu(facts, _WIDTH_MAX)
    alone = {labels["device"]: most for labels, most in facts.series(_DEVICE_WIDTH_MAX)}
    generations = _by_gpu(facts, _GENERATION_MAX)
    own = _by_gpu(facts, _GENERATION_OF_GPU)
    for labels, _ in facts.series(GPUS):
        address = labels["pci_bus_id"]
        evidence = []
        most = max(both.get(address, -math.inf), alone.get(address, -math.inf))
        if lanes.get(address, math.inf) < most:
            evidence.append(Evidence("lanes", lanes[address], "lanes", most, "what the GPU can use"))
        if generations.get(address, math.inf) < own.get(address, -math.inf):
            evidence.append(Evidence("generation", generations[address], "", own[address], "what the GPU can use"))
        if evidence:
            yield Sighting("pcie_below_maximum", pcie_link_of(labels), tuple(evidence))


PCIE_LINKS = RuleSet(
    name="PCIe links",
    codes=(
        FindingCode(
            name="pcie_width_dropped",
            title="PCIe link has lost lanes",
            severity="critical",
            role="fault",
            meaning="The link runs on fewer lanes than were stable here. Copies to the host, and traffic to adapters "
            "and to GPUs without NVLink, lose bandwidth in proportion. Width does not fall in idle.",
            next_step="Drain the node and reboot, which trains the link again; if the lanes stay away, reseat card, "
            "riser or cable. Moved on purpose: commwatch inventory accept.",
            alert="CommwatchPcieWidthDropped",
        ),
        FindingCode(
            name="pcie_generation_low",
            title="PCIe link is slow under load",
            severity="warning",
            role="fault",
            meaning="The GPU works, and its link stays at a lower generation than both ends can do. Each generation "
            "less halves the bandwidth.",
            next_step="Look for correctable errors on this link: it may have fallen back because of them. Reseat the "
            "card, and check the generation set in the firmware.",
            alert="CommwatchPcieGenerationLow",
            opens_after=_UNDER_LOAD_FOR,
        ),
        FindingCode(
            name="pcie_device_narrow",
            title="PCIe link of an adapter or switch uses fewer lanes than both ends can",
            severity="warning",
            role="fault",
            meaning="All that stands below this link shares fewer lanes: a network adapter does not reach its rate, or "
            "the GPUs below a switch wait for each other.",
            next_step="Reseat card, riser or cable; look whether the firmware splits the slot.",
            alert="CommwatchPcieDeviceDegraded",
        ),
        FindingCode(
            name="pcie_device_slow",
            title="PCIe link of an adapter or switch is slow",
            severity="warning",
            role="fault",
            meaning="The link runs at a lower generation than both ends can do. Each generation less halves the "
            "bandwidth of all that stands below it.",
            next_step="Look for correctable errors on this link, reseat the card, and check the generation set in the "
            "firmware.",
            alert="CommwatchPcieDeviceDegraded",
            opens_after=_UNDER_LOAD_FOR,
        ),
        FindingCode(
            name="pcie_below_maximum",
            title="The slot gives the GPU less than it can use",
            severity="info",
            role="state",
            meaning="From the first start on, the link has had fewer lanes or a lower generation than the GPU can use. "
            "It may be the slot, or a link that has never trained to its full width.",
            next_step="Compare with the node's other GPUs and with the board's manual; a card in a slot that should be "
            "wider wants to be reseated or moved. Else nothing need be done.",
        ),
    ),
    rules=(
        Rule(narrow, ("pcie_width_dropped",), reads=(_WIDTH, _WIDTH_EXPECTED)),
        Rule(slow, ("pcie_generation_low",), reads=(_DEGRADED,), details=(_GENERATION, _GENERATION_MAX)),
        Rule(
            degraded_devices,
            ("pcie_device_narrow", "pcie_device_slow"),
            reads=(_DEVICE_DEGRADED,),
            details=(_DEVICE_WIDTH, _DEVICE_GENERATION, GPUS, DEVICES),
        ),
        Rule(
            below_maximum,
            ("pcie_below_maximum",),
            reads=(GPUS, _WIDTH, _WIDTH_EXPECTED, _WIDTH_MAX, _DEVICE_WIDTH_MAX, _GENERATION_MAX, _GENERATION_OF_GPU),
        ),
    ),
    judged={"pcie_generation_low": _generation_judged, "pcie_device_slow": _device_judged},
)
