"""GPUs, NICs, switches, NUMA nodes and the paths between them."""

from commwatch.topology.bandwidth import Bandwidth, path_bandwidth
from commwatch.topology.build import build_node
from commwatch.topology.findings import TopologyFinding, findings
from commwatch.topology.model import Endpoint, Gpu, Nic, NodeTopology, Topology
from commwatch.topology.paths import Path, all_paths, nearest_nics, path

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
