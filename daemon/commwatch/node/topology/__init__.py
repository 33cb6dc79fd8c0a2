"""GPUs, NICs, switches, NUMA nodes and the paths between them."""

from commwatch.node.topology.bandwidth import Bandwidth, path_bandwidth
from commwatch.node.topology.build import build_node
from commwatch.node.topology.findings import TopologyFinding, findings
from commwatch.node.topology.model import Endpoint, Gpu, Nic, NodeTopology, Topology
from commwatch.node.topology.paths import Path, all_paths, nearest_nics, path

__all__ = [
    "Bandwidth",
    "Endpoint",
    "Gpu",
    "Nic",
    "NodeTopology",
    "Path",
    "Topology",
    "TopologyFinding",
    "all_paths",
    "build_node",
    "findings",
    "nearest_nics",
    "path",
    "path_bandwidth",
]
