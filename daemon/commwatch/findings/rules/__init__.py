"""The rules of each family of metrics; a new finding is a code and a function in the family's file."""

from __future__ import annotations

from commwatch.findings.rules.adapters import ADAPTERS
from commwatch.findings.rules.cluster import CLUSTER
from commwatch.findings.rules.daemon import DAEMON
from commwatch.findings.rules.driver import DRIVER
from commwatch.findings.rules.ethernet import ETHERNET
from commwatch.findings.rules.ethernet_traffic import ETHERNET_TRAFFIC
from commwatch.findings.rules.fabric import FABRIC
from commwatch.findings.rules.gpu import GPU
from commwatch.findings.rules.inventory import INVENTORY
from commwatch.findings.rules.job_stuck import JOB_STUCK
from commwatch.findings.rules.job_use import JOB_USE
from commwatch.findings.rules.jobs import JOBS
from commwatch.findings.rules.kernel import KERNEL
from commwatch.findings.rules.link_flaps import LINK_FLAPS
from commwatch.findings.rules.nvlink import NVLINK
from commwatch.findings.rules.nvlink_errors import NVLINK_ERRORS
from commwatch.findings.rules.pairs import PAIRS
from commwatch.findings.rules.pcie import PCIE_LINKS
from commwatch.findings.rules.pcie_errors import PCIE_ERRORS
from commwatch.findings.rules.probe import PROBE
from commwatch.findings.rules.rdma import RDMA_PORTS
from commwatch.findings.rules.rdma_errors import RDMA_ERRORS
from commwatch.findings.rules.rdma_reach import RDMA_REACH
from commwatch.findings.rules.rdma_traffic import RDMA_TRAFFIC
from commwatch.findings.rules.rule_set import RuleSet
from commwatch.findings.rules.settings import SETTINGS

RULE_SETS: tuple[RuleSet, ...] = (
    INVENTORY,
    DRIVER,
    GPU,
    FABRIC,
    NVLINK,
    NVLINK_ERRORS,
    PCIE_LINKS,
    PCIE_ERRORS,
    KERNEL,
    ADAPTERS,
    RDMA_PORTS,
    RDMA_REACH,
    RDMA_ERRORS,
    RDMA_TRAFFIC,
    ETHERNET,
    ETHERNET_TRAFFIC,
    LINK_FLAPS,
    PROBE,
    PAIRS,
    CLUSTER,
    JOBS,
    JOB_STUCK,
    JOB_USE,
    SETTINGS,
    DAEMON,
)
"""In the order of the documentation."""
