"""Irregularities in a topology, and their meaning for users; pure."""

from __future__ import annotations

from commwatch.node.topology.findings.groups import gpu_groups, nics
from commwatch.node.topology.findings.links import below_siblings, narrowed_links, nvlink, peer_access
from commwatch.node.topology.findings.machine import FindingCode, NodeView, TopologyFinding
from commwatch.node.topology.findings.measured import contradictions
from commwatch.node.topology.findings.unknown import unknown
from commwatch.node.topology.measured import Measured
from commwatch.node.topology.model import Topology

__all__ = ["FindingCode", "TopologyFinding", "findings"]

_FINDERS = (contradictions, gpu_groups, narrowed_links, below_siblings, nvlink, peer_access, nics, unknown)
"""The weightiest first."""


def findings(topology: Topology, measured: Measured | None = None) -> tuple[TopologyFinding, ...]:
    """All findings of a machine.

    Args:
        measured: between its GPUs; None where nothing is known.
    """
    view = NodeView(topology, measured)
    return tuple(finding for find in _FINDERS for finding in find(view))
