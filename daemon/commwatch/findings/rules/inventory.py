"""Parts that the node lacks by its configuration, its board, its GPUs' product or their equals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import gpu_of
from commwatch.findings.rules.rule_set import FindingCode, Quantity, Rule, RuleSet
from commwatch_exporters.node.model import ExpectedParts, Gpu, Inventory

KINDS: Mapping[str, str] = {
    "gpu": "GPUs",
    "nvlink": "NVLinks",
    "pcie_lane": "PCIe lanes of the GPUs",
    "rdma_port": "RDMA ports",
    "ethernet_port": "Ethernet ports",
}
_PORTS = frozenset({"rdma_port", "ethernet_port"})
_ASPECTS: Mapping[str, str] = {
    "nvlinks": "NVLinks",
    "lanes": "PCIe lanes",
    "generation": "PCIe generations",
    "adapters": "network adapters behind its PCIe switch",
}
QUANTITIES: Mapping[str, Quantity] = {
    "gpu": "gpus",
    "nvlink": "nvlinks",
    "pcie_lane": "pcie_lanes",
    "rdma_port": "rdma_port_count",
    "rdma_links": "rdma_port_state",
    "nvlinks": "nvlinks",
    "lanes": "pcie_lanes",
    "generation": "pcie_generation",
}
"""Subject of a finding of the whole node, by the key of its component: a kind of parts, or an aspect of them."""
_LINKS_OF_PRODUCT = (
    "Check that the fabric manager runs, for a virtual machine on the host, and in a rack the NVLink switches; drain "
    "the node; once it is free, power cycle it. Only if this was done on purpose, run commwatch inventory accept."
)
BY_CONFIGURATION = "expected by the configuration"
"""Evidence of parts for which no known board asks, so that the configuration itself may be wrong."""


def never_seen(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Parts that configuration or board expect and that no reading showed; what one did has other rules."""
    for parts, number in facts.each(Inventory.never_seen):
        if number > 0:
            words = KINDS.get(parts.kind, parts.kind)
            code = "ports_never_seen" if parts.kind in _PORTS else "parts_never_seen"
            lacking = [
                Evidence(f"{words} that {gpu_of(gpu).words} lacks", less)
                for gpu, kind, less in facts.each_keyed(Gpu.never_seen)
                if kind == parts.kind
            ]
            evidence = (Evidence(f"{words} never seen", number), *_asked_for(facts, parts), *lacking)
            yield Match(code, Component("node", parts.kind, words), evidence)


def gpus_below_equals(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs that have less than the others of their model on this node, from the first day on."""
    found: dict[Gpu, list[Evidence]] = {}
    for gpu, aspect, less in facts.each_keyed(Gpu.below_equals):
        if less > 0:
            found.setdefault(gpu, []).append(Evidence(f"{_ASPECTS.get(aspect, aspect)} less than its equals", less))
    for gpu, evidence in found.items():
        yield Match("gpu_below_equals", gpu_of(gpu), tuple(evidence))


def below_product(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs with less than GPUs of their name have, from the first reading on: all of them as one, by aspect."""
    found: dict[str, dict[Gpu, float]] = {}
    for gpu, aspect, less in facts.each_keyed(Gpu.below_product):
        if less > 0:
            found.setdefault(aspect, {})[gpu] = less
    for aspect, gpus in found.items():
        words = _ASPECTS.get(aspect, aspect)
        evidence = [Evidence(f"{words} that {gpu_of(gpu).words} lacks", less) for gpu, less in gpus.items()]
        name = f"{words} of {len(gpus)} GPUs" if len(gpus) > 1 else f"{words} of {gpu_of(next(iter(gpus))).name}"
        parts = frozenset(gpu.address for gpu in gpus)
        next_step = _LINKS_OF_PRODUCT if aspect == "nvlinks" else ""
        yield Match("gpu_below_product", Component("node", aspect, name, parts), tuple(evidence), next_step=next_step)


def _asked_for(facts: Facts, parts: Inventory) -> Iterable[Evidence]:
    if parts.expected is not None:
        is_board = facts.node.part(ExpectedParts, parts.kind, "board").info == 1
        yield Evidence("expected by the board" if is_board else BY_CONFIGURATION, parts.expected)


INVENTORY = RuleSet(
    name="Inventory",
    codes=(
        FindingCode(
            name="parts_never_seen",
            title="Expected parts were never seen",
            severity="critical",
            role="fault",
            quantities=("gpus", "nvlinks", "pcie_lanes"),
            meaning="No reading of this boot has shown all the GPUs, NVLinks or PCIe lanes that inventory.expected or "
            "the board requires. Jobs that use all GPUs of the node fail or run slower.",
            next_step="Drain the node. Once it is free: for NVLinks run commwatch pause and reset the GPU, then reboot "
            "with the fabric manager running; for GPUs and lanes power cycle it, then call the vendor (PCIe card: "
            "reseat it first). inventory.expected wrong: correct it.",
            alert="CommwatchPartsNeverSeen",
        ),
        FindingCode(
            name="ports_never_seen",
            title="Expected ports were never up",
            severity="warning",
            role="fault",
            quantities=("rdma_port_count",),
            meaning="inventory.expected requires more RDMA or Ethernet ports than this boot has shown. No job can use "
            "what is missing.",
            next_step="Run rdma link and ip link: a port that lacks there, or is down, is the missing one; then check "
            "its adapter, cable and driver. inventory.expected wrong: correct it.",
            alert="CommwatchPortsNeverSeen",
        ),
        FindingCode(
            name="gpu_below_equals",
            title="GPU has less than its equals",
            severity="warning",
            role="fault",
            quantities=("nvlinks", "pcie_lanes", "pcie_slot"),
            meaning="The GPU has had fewer NVLinks, PCIe lanes or network adapters, or a lower PCIe generation, than "
            "its equals in all of this boot. Collectives run at the weakest GPU's speed.",
            next_step="Drain the node; once it is free, power cycle it. Again: call the vendor (commwatch topology "
            "shows the slots). Only if the node was built so, run commwatch inventory accept.",
            alert="CommwatchStaticAsymmetry",
        ),
        FindingCode(
            name="gpu_below_product",
            title="GPUs have less than their product",
            severity="warning",
            role="fault",
            quantities=("nvlinks", "pcie_lanes", "pcie_generation"),
            meaning="GPUs on a board have fewer PCIe lanes or NVLinks, or a lower PCIe generation, than GPUs of their "
            "name have, and not by their slot. Host traffic or collectives slow in proportion.",
            next_step="Drain the node; for NVLinks check that the fabric manager runs; once it is free, power cycle "
            "it; if that does not help, check the firmware's PCIe settings, in a virtual machine those of the host. "
            "Only if this was done on purpose, run commwatch inventory accept.",
            alert="CommwatchGpuBelowProduct",
        ),
    ),
    rules=(
        Rule(
            never_seen,
            ("parts_never_seen", "ports_never_seen"),
            reads=(Inventory.never_seen,),
            details=(Inventory.expected, ExpectedParts.info, Gpu.never_seen),
        ),
        Rule(gpus_below_equals, ("gpu_below_equals",), reads=(Gpu.below_equals,)),
        Rule(below_product, ("gpu_below_product",), reads=(Gpu.below_product,)),
    ),
)
