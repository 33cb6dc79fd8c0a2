"""The profile of this node, in a few words that equal nodes share, by which a fleet finds its odd ones."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Finding
from commwatch_exporters.node.model import Node, Probe

LONGEST_VALUE: Final = 64
"""Characters of a label's value; a longer one is replaced by its digest."""


def profile_readings(
    facts: Facts, thresholds: Thresholds, findings: Sequence[Finding]
) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """The metric of the profile; what is not known has no series."""
    for scope, value in profile_of(facts.node):
        yield "commwatch_profile_info", (scope, shortened(value)), 1.0


def profile_of(node: Node) -> Iterator[tuple[str, str]]:
    """Scopes and what this node has there."""
    probes = [probe for probe, _ in node.each(Probe.info) if probe.backend != "gloo"]
    ports = node.rdma_ports
    found = {
        "driver": node.driver.driver_version,
        "cuda": node.driver.cuda_driver_version,
        "nccl": _all(probe.nccl_version for probe in probes),
        "nccl_settings": _all(probe.settings for probe in probes),
        "commwatch": node.daemon.version,
        "gpus": _counted(gpu.name for gpu in node.gpus),
        "rdma_ports": _counted(f"{port.hca_type} {port.link_layer}".strip() for port in ports),
        "rdma_firmware": _all(f"{port.hca_type} {port.firmware}".strip() for port in ports if port.firmware),
    }
    return ((scope, value) for scope, value in found.items() if value)


def shortened(value: str) -> str:
    """The value itself, or its digest."""
    if len(value) <= LONGEST_VALUE:
        return value
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:12]}"


def _all(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _counted(values: Iterable[str]) -> str:
    counts = Counter(value for value in values if value)
    return ", ".join(f"{count} {value}" for value, count in sorted(counts.items()))
