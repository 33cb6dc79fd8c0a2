"""The inventory that the configuration asks for: parts that were not there from the first day on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.rule_set import Rule, RuleSet
from commwatch_exporters.node.model import Inventory

_WORDS: Mapping[str, str] = {
    "gpu": "GPUs",
    "nvlink": "NVLinks",
    "pcie_lane": "PCIe lanes of the GPUs",
    "rdma_port": "RDMA ports",
    "ethernet_port": "Ethernet ports",
}
_PORTS = frozenset({"rdma_port", "ethernet_port"})


def never_seen(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Parts that are expected by configuration and were never here; of those that were, other rules say which."""
    for parts, number in facts.each(Inventory.never_seen):
        if number > 0:
            words = _WORDS.get(parts.kind, parts.kind)
            code = "ports_never_seen" if parts.kind in _PORTS else "parts_never_seen"
            evidence = (Evidence(f"{words} never seen", number), *_asked_for(parts))
            yield Sighting(code, Component("node", parts.kind, words), evidence)


def _asked_for(parts: Inventory) -> Iterable[Evidence]:
    if parts.expected is not None:
        yield Evidence("expected by the configuration", parts.expected)


INVENTORY = RuleSet(
    name="Inventory",
    codes=(
        FindingCode(
            name="parts_never_seen",
            title="Parts that the configuration expects were never here",
            severity="critical",
            role="fault",
            meaning="The node has fewer GPUs, NVLinks or PCIe lanes than inventory.expected asks for, and has had so "
            "since the daemon first looked: what was never here cannot be named by its own finding.",
            next_step="Run commwatch inventory and commwatch topology: look at the GPU with fewer links or lanes than "
            "the others. If the node was built so, correct inventory.expected.",
            alert="CommwatchPartsNeverSeen",
        ),
        FindingCode(
            name="ports_never_seen",
            title="Ports that the configuration expects were never up",
            severity="warning",
            role="fault",
            meaning="Fewer RDMA or Ethernet ports than inventory.expected asks for have been up since the daemon first "
            "looked: a cable, a switch port or a driver was missing from the start.",
            next_step="Look for the port that is not active (rdma link, ip link), at its cable and at its switch port. "
            "If the node was built so, correct inventory.expected.",
            alert="CommwatchPortsNeverSeen",
        ),
    ),
    rules=(
        Rule(
            never_seen,
            ("parts_never_seen", "ports_never_seen"),
            reads=(Inventory.never_seen,),
            details=(Inventory.expected,),
        ),
    ),
)
