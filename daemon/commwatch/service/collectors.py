"""Which collectors there are, what each reads, and which process serves it; a new collector is a row here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """A reader: the worker process behind some sources."""

    name: str
    sources: tuple[str, ...]
    holds_driver: bool = False
    """It keeps a driver's device files open: its collectors rest during maintenance, and what hangs in it counts
    among the stuck processes of the node."""
    needs_driver: bool = False
    """What it is told comes from those that hold a driver: its collectors rest during maintenance too."""


@dataclass(frozen=True, slots=True)
class CollectorPlan:
    """A group of counters with a cadence of its own."""

    name: str
    """As on the metrics: ``nvml_nvlink``."""
    source: str
    key: str
    """As the source calls it: ``nvlink``."""
    interval: str = "interval"
    """The setting of the source's section that holds its cadence."""
    only_for: tuple[str, ...] = ()
    """Runs only where the configuration asks for one of these metrics; empty: always."""


READERS: Final = (
    ReaderPlan("nvml", ("nvml",), holds_driver=True),
    ReaderPlan("rdma", ("rdma", "ethtool")),
    ReaderPlan("host", ("network", "pci", "services", "kernel_log")),
    ReaderPlan("jobs", ("nccl_logs",)),
    ReaderPlan("settings", ("nccl_settings",), needs_driver=True),
)

COLLECTORS: Final = (
    CollectorPlan("nvml_identity", "nvml", "identity", "identity_interval"),
    CollectorPlan("nvml_gpu", "nvml", "gpu", "gpu_interval"),
    CollectorPlan("nvml_processes", "nvml", "processes", "processes_interval"),
    CollectorPlan("nvml_nvlink", "nvml", "nvlink", "nvlink_interval"),
    CollectorPlan("nvml_nvlink_errors", "nvml", "nvlink_errors", "nvlink_errors_interval"),
    CollectorPlan("nvml_pcie", "nvml", "pcie", "pcie_interval"),
    CollectorPlan(
        "nvml_pcie_sampled",
        "nvml",
        "pcie_sampled",
        "pcie_sampled_interval",
        (
            "commwatch_pcie_sampled_transmit_rate_bytes_per_second",
            "commwatch_pcie_sampled_receive_rate_bytes_per_second",
        ),
    ),
    CollectorPlan("nvml_gpm", "nvml", "gpm", "gpm_interval"),
    CollectorPlan("nvml_fabric", "nvml", "fabric", "fabric_interval"),
    CollectorPlan("nvml_events", "nvml", "events", "events_interval"),
    CollectorPlan("nvml_p2p", "nvml", "p2p", "p2p_interval"),
    CollectorPlan("network", "network", "network"),
    CollectorPlan("pci", "pci", "pci"),
    CollectorPlan("pci_aer", "pci", "aer", "aer_interval"),
    CollectorPlan("services", "services", "services"),
    CollectorPlan("rdma", "rdma", "rdma"),
    CollectorPlan("ethtool", "ethtool", "ethtool"),
    CollectorPlan("kernel_log", "kernel_log", "kernel_log"),
    CollectorPlan("nccl_logs", "nccl_logs", "nccl_logs"),
    CollectorPlan("nccl_settings", "nccl_settings", "nccl_settings"),
)
