"""The facts of a topology that NCCL settings are judged by; pure."""

from __future__ import annotations

from itertools import combinations

from commwatch.jobs.settings.facts import Level, NodeFacts
from commwatch.jobs.settings.node_network import NodeNetwork
from commwatch.node.gpu_models import gpu_model
from commwatch.node.topology.model import Gpu, Topology
from commwatch.node.topology.paths import PathClass, nearest_nics, nvlinks_between, pci_path, switch_links

_LEVELS: dict[PathClass, Level] = {
    "NV": "NVL",
    "PIX": "PIX",
    "PXB": "PXB",
    "PHB": "PHB",
    "NODE": "PHB",  # NCCL does not distinguish host bridges of one NUMA node
    "SYS": "SYS",
}
_WITHOUT_NVLS = frozenset({"", "Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada"})
"""NVLink SHARP came with Hopper and its NVSwitches."""


def node_facts(node: Topology, network: NodeNetwork) -> NodeFacts:
    """The known facts about a machine; facts that were not read are unknown."""
    named = node.driver_read and bool(node.gpus)
    peers, unknown = _peers(node)
    return NodeFacts(
        gpus=len(node.gpus),
        gpu_models=len({gpu.name for gpu in node.gpus}) if named else None,
        peer_levels=peers,
        peers_refused=bool(node.peers_refused),
        peers_unknown=unknown,
        nvls=_nvls(node) if named else None,
        node_nvlink=any(_host(gpu) == "rack" for gpu in node.gpus) if named else None,
        grace=any(map(_host, node.gpus)) if named else None,
        nic_levels=_nic_levels(node),
        rdma_ports=network.rdma_ports,
        dual_port_adapter=_dual_port(node, network),
        peermem=network.peermem,
        dma_buf=network.dma_buf,
        interfaces=network.interfaces,
        cpu_vendor="" if node.cpu is None else node.cpu.vendor,
        virtual=network.virtual,
    )


def _host(gpu: Gpu) -> str:
    model = gpu_model(gpu.name)
    return "" if model is None else model.host


def _peers(node: Topology) -> tuple[frozenset[Level], bool]:
    """The ways between GPUs that may reach each other, and whether something between two was not read."""
    found: set[Level] = set()
    unknown = False
    for first, second in combinations(node.gpus, 2):
        pair = frozenset({first.address, second.address})
        if pair in node.peers_refused:
            continue
        links = nvlinks_between(node, first, second)
        kind: PathClass = "NV" if links and pair not in node.nvlink_refused else pci_path(node, *sorted(pair)).kind
        level = _LEVELS.get(kind)
        unknown = unknown or level is None or links is None
        # Whether PCIe is used between two GPUs is known only where NVLink and the driver's word are.
        if level is not None and links is not None:
            found.add(level)
    return frozenset(found), unknown


def _nvls(node: Topology) -> bool | None:
    known = [gpu for gpu in node.gpus if gpu.nvlinks is not None]
    if not known:
        return None
    return any(switch_links(node, gpu) and gpu.architecture not in _WITHOUT_NVLS for gpu in known)


def _nic_levels(node: Topology) -> frozenset[Level]:
    if not any(nic.rdma_devices for nic in node.nics):
        return frozenset()
    near = (nearest_nics(node, gpu) for gpu in node.gpus)
    levels = (_LEVELS.get(one.kind) for one in near if one is not None)
    return frozenset(level for level in levels if level is not None)


def _dual_port(node: Topology, network: NodeNetwork) -> bool | None:
    """Whether an adapter has two ports: one device with both, or two functions of one card."""
    if network.rdma_ports is None:
        return None
    cards = [nic.address.rpartition(".")[0] for nic in node.nics if nic.rdma_devices]
    devices = [one.device for one in network.rdma_ports]
    return len(set(cards)) < len(cards) or len(set(devices)) < len(devices)
