"""The inventory that the configuration, or the rest of the node, asks for: what lacked from the first day on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.components import gpu_of, port_of
from commwatch.findings.rules.rule_set import Rule, RuleSet
from commwatch_exporters.node.model import Gpu, Inventory, RdmaPort
from commwatch_exporters.state_words import RDMA_STATES, word_of

_WORDS: Mapping[str, str] = {
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
_PORT_FOR = 60.0
"""Seconds: after a boot a link trains and waits for its subnet manager."""


def never_seen(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Parts that configuration or board expect and that were never here; of those that were, other rules say which."""
    for parts, number in facts.each(Inventory.never_seen):
        if number > 0:
            words = _WORDS.get(parts.kind, parts.kind)
            code = "ports_never_seen" if parts.kind in _PORTS else "parts_never_seen"
            evidence = (Evidence(f"{words} never seen", number), *_asked_for(parts))
            yield Sighting(code, Component("node", parts.kind, words), evidence)


def gpus_below_equals(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """GPUs that have less than the others of their model on this node, from the first day on."""
    found: dict[Gpu, list[Evidence]] = {}
    for gpu, aspect, less in facts.each_keyed(Gpu.below_equals):
        if less > 0:
            found.setdefault(gpu, []).append(Evidence(f"{_ASPECTS.get(aspect, aspect)} less than its equals", less))
    for gpu, evidence in found.items():
        yield Sighting("gpu_below_equals", gpu_of(gpu), tuple(evidence))


def ports_below_equals(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """RDMA ports that were never up, while all others of their kind are."""
    for port, less in facts.each(RdmaPort.below_equals):
        if less > 0:
            state = "not active" if port.state is None else word_of(RDMA_STATES, port.state)
            yield Sighting("port_below_equals", port_of(port), (Evidence("state", state),))


def _asked_for(parts: Inventory) -> Iterable[Evidence]:
    if parts.expected is not None:
        yield Evidence("expected by the configuration or the board", parts.expected)


INVENTORY = RuleSet(
    name="Inventory",
    codes=(
        FindingCode(
            name="parts_never_seen",
            title="Expected parts were never seen",
            severity="critical",
            role="fault",
            meaning="The node never had all GPUs, NVLinks or PCIe lanes that inventory.expected or its board requires.",
            next_step="Run commwatch inventory and commwatch topology: find the GPU with fewer links or lanes. Built "
            "so: set inventory.expected.",
            alert="CommwatchPartsNeverSeen",
        ),
        FindingCode(
            name="ports_never_seen",
            title="Expected ports were never up",
            severity="warning",
            role="fault",
            meaning="inventory.expected requires more RDMA or Ethernet ports than were ever up.",
            next_step="Check the inactive port (rdma link, ip link), its cable, driver and switch port. Built so: "
            "correct inventory.expected.",
            alert="CommwatchPortsNeverSeen",
        ),
        FindingCode(
            name="gpu_below_equals",
            title="GPU has less than its equals",
            severity="warning",
            role="fault",
            meaning="Since the first start the GPU has had fewer NVLinks, PCIe lanes or network adapters, or a lower "
            "PCIe generation, than its equals. Collectives run at the weakest GPU's speed.",
            next_step="Compare with commwatch topology; reset the GPU, reboot, reseat card, riser or adapter. Built "
            "so: commwatch inventory accept.",
            alert="CommwatchStaticAsymmetry",
        ),
        FindingCode(
            name="port_below_equals",
            title="RDMA port is down, its equals are up",
            severity="warning",
            role="fault",
            meaning="Since the first start the port has been down while all others of its model are up. NCCL leaves "
            "it out.",
            next_step="Check cable, module and switch port. Port not used: commwatch inventory accept.",
            alert="CommwatchStaticAsymmetry",
            opens_after=_PORT_FOR,
        ),
    ),
    rules=(
        Rule(
            never_seen,
            ("parts_never_seen", "ports_never_seen"),
            reads=(Inventory.never_seen,),
            details=(Inventory.expected,),
        ),
        Rule(gpus_below_equals, ("gpu_below_equals",), reads=(Gpu.below_equals,)),
        Rule(
            ports_below_equals,
            ("port_below_equals",),
            reads=(RdmaPort.below_equals,),
            details=(RdmaPort.state, RdmaPort.info),
        ),
    ),
)
