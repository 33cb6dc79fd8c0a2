"""Gaps in the knowledge of a topology."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.node.topology.bandwidth import is_emulated
from commwatch.node.topology.findings.machine import NodeView, TopologyFinding, have, labels, named
from commwatch.node.topology.model import PcieLink, Topology
from commwatch.node.topology.paths import all_paths, chain, numa_of, uplink
from commwatch.sources.files import is_pci_address

_TRUST_PROVIDER = (
    "In a virtual machine trust the topology file of the provider: NCCL reads it from NCCL_TOPO_FILE; without it NCCL "
    "chooses rings by a tree that does not exist."
)


def unknown(view: NodeView) -> Iterator[TopologyFinding]:
    node = view.node
    if node.driver_note and node.gpus:
        yield TopologyFinding(
            "nvlink_unknown",
            labels(node.gpus),
            f"The driver was not read ({node.driver_note}).",
            "NVLink is unknown, and GPUs are numbered in PCI order: the classes shown are those of PCIe alone.",
        )
    silent_links = [gpu for gpu in node.gpus if gpu.index is not None and gpu.nvlinks is None]
    if node.driver_read and silent_links:
        names = labels(silent_links)
        yield TopologyFinding(
            "nvlink_unknown",
            names,
            f"Whether {named(names)} {have(silent_links)} active NVLinks was not read.",
            "With MIG enabled the driver calls all links inactive, and the GPU has no peers; else it gave no answer. "
            "The classes shown are those of PCIe alone.",
        )
    lone = [gpu.address for gpu in node.gpus if gpu.index is None]
    if lone:
        yield TopologyFinding(
            "gpu_without_index",
            tuple(lone),
            f"On the PCI bus, but not among the driver's GPUs: {', '.join(lone)}.",
            "It is lost, bound to another driver (passed through to a virtual machine), or did not answer.",
        )
    lost = [gpu.label for gpu in node.gpus if gpu.address not in node.devices]
    if lost:
        yield TopologyFinding(
            "gpu_without_path",
            tuple(lost),
            f"The driver has {named(lost)}, but the PCI tree of sysfs does not show that.",
            "The PCIe paths are not known. Is --path.sysfs that of this machine?",
        )
    flat = [gpu for gpu in node.gpus if _is_flat(node, gpu.address)]
    if flat and len(flat) == len(node.gpus):
        yield TopologyFinding(
            "tree_flat",
            labels(flat),
            "No port stands above any GPU: this is the flat PCI tree of a virtual machine, not that of the hardware.",
            _TRUST_PROVIDER,
        )
    emulated = {end: link for end in node.ends if (link := _emulated_above(node, end.address)) is not None}
    if emulated:
        kinds = sorted({f"gen {link.generation_max} x{link.lanes_max}" for link in emulated.values()})
        yield TopologyFinding(
            "link_emulated",
            labels(emulated),
            f"NCCL takes a PCIe link above {named(labels(emulated))} for one below 1 GB/s ({named(kinds)}), as the "
            "emulated switches of virtual machines say of themselves, and plans its rings by it.",
            "What the link carries is not known. Give NCCL the true tree with NCCL_TOPO_FILE; clouds bring one for "
            "each type of machine.",
        )
    silent = [way for way in all_paths(node, node.ends) if way.kind == "?" and "NUMA" in way.pci.note]
    if silent:
        # The ends whose own NUMA node is missing; the other end of such a way may be known.
        names = labels(end for end in node.ends if numa_of(node, end.address) is None)
        yield TopologyFinding(
            "numa_unknown",
            names,
            f"The firmware gives no NUMA node for the buses of {named(names)}, so NODE and SYS cannot be told apart.",
            f"On a machine with one socket this is NODE. {_TRUST_PROVIDER}",
        )


def _emulated_above(node: Topology, address: str) -> PcieLink | None:
    """The first emulated link from a device up to its host bridge; None without any."""
    above = (node.devices[one] for one in chain(node, address) if one in node.devices)
    links = (uplink(node, device) for device in above)
    return next((link for link in links if link is not None and is_emulated(node, link)), None)


def _is_flat(node: Topology, address: str) -> bool:
    """Whether a device sits on a host bridge itself; a card in a slot always has a root port above it."""
    device = node.devices.get(address)
    return device is not None and not is_pci_address(device.parent)
