"""What a topology does not show."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.node.topology.findings.machine import NodeView, TopologyFinding, have, named
from commwatch.node.topology.model import NodeTopology
from commwatch.node.topology.paths import all_paths, numa_of
from commwatch.sources.files import is_pci_address

_TRUST_PROVIDER = (
    "In a virtual machine trust the topology file of the provider: NCCL reads it from NCCL_TOPO_FILE; without it NCCL "
    "chooses rings by a tree that does not exist."
)


def unknown(view: NodeView) -> Iterator[TopologyFinding]:
    node = view.node
    if node.driver_note and view.ends:
        yield TopologyFinding(
            "nvlink_unknown",
            view.labels(view.ends),
            f"The driver was not read ({node.driver_note}).",
            "NVLink is unknown, and GPUs are numbered in PCI order: the classes shown are those of PCIe alone.",
        )
    silent_links = [end for end in view.ends if view.gpu(end).index is not None and view.gpu(end).nvlinks is None]
    if node.driver_read and silent_links:
        names = view.labels(silent_links)
        yield TopologyFinding(
            "nvlink_unknown",
            names,
            f"Whether {named(names)} {have(silent_links)} active NVLinks was not read.",
            "With MIG enabled the driver calls all links inactive, and the GPU has no peers; else it gave no answer. "
            "The classes shown are those of PCIe alone.",
        )
    lone = [view.gpu(end).address for end in view.ends if view.gpu(end).index is None]
    if lone:
        yield TopologyFinding(
            "gpu_without_index",
            tuple(lone),
            f"On the PCI bus, but not among the driver's GPUs: {', '.join(lone)}.",
            "It is lost, bound to another driver (passed through to a virtual machine), or did not answer.",
        )
    lost = [view.label(end) for end in view.ends if view.gpu(end).address not in node.devices]
    if lost:
        yield TopologyFinding(
            "gpu_without_path",
            tuple(lost),
            f"The driver has {named(lost)}, but the PCI tree of sysfs does not show that.",
            "The PCIe paths are not known. Is --path.sysfs that of this machine?",
        )
    flat = [end for end in view.ends if _is_flat(node, view.gpu(end).address)]
    if flat and len(flat) == len(view.ends):
        yield TopologyFinding(
            "tree_flat",
            view.labels(flat),
            "No port stands above any GPU: this is the flat PCI tree of a virtual machine, not that of the hardware.",
            _TRUST_PROVIDER,
        )
    ends = view.topology.endpoints(view.number)
    silent = [way for way in all_paths(view.topology, ends) if way.kind == "?" and "NUMA" in way.pci.note]
    if silent:
        # The ends whose own NUMA node is missing; the other end of such a way may be known.
        names = view.labels(end for end in ends if numa_of(node, view.topology.part(end).address) is None)
        yield TopologyFinding(
            "numa_unknown",
            names,
            f"The firmware gives no NUMA node for the buses of {named(names)}, so NODE and SYS cannot be told apart.",
            f"On a machine with one socket this is NODE. {_TRUST_PROVIDER}",
        )


def _is_flat(node: NodeTopology, address: str) -> bool:
    """Whether a device sits on a host bridge itself; a card in a slot always has a root port above it."""
    device = node.devices.get(address)
    return device is not None and not is_pci_address(device.parent)
