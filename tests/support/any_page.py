"""Pages of any numbers, on which each rule finds what it looks for sooner or later."""

from __future__ import annotations

from collections.abc import Mapping

from support.facts import NOW

LABELS: Mapping[str, tuple[str, ...]] = {
    "device": ("0000:17:00.0", "mlx5_0", "mlx5_0/1"), "parent": ("pci0000:16",), "role": ("gpu", "nic"),
    "severity": ("correctable", "fatal", "nonfatal", "harmful"), "xid": ("79",), "sxid": ("20034",),
    "message": ("fallen_off_bus",), "check": ("route_unhealthy", "partition_not_assigned"),
    "reason": ("hw_slowdown", "wrong_result", "budget"), "aspect": ("generation", "width"),
    "capability": ("nvlink",), "service": ("nvidia-fabricmanager",), "direction": ("transmit",),
    "source": ("nvml", "rdma", "model"), "counter": ("rdma_port_symbol_errors_total",), "backend": ("nccl",),
    "collector": ("rdma", "network", "nvml_gpu"), "kind": ("rdma_port", "ethernet_port", "shorted", "nic", "leaf"),
    "category": ("ib_retry", "timeout", "shm"), "element": ("GPU0",), "collective": ("all_reduce", "host_copies"),
    "expected_source": ("model", "reference"), "quantity": ("host_to_device 0000:17:00.0",),
    "link_layer": ("InfiniBand", "Ethernet"), "event": ("firmware_fatal", "health_issue"),
}  # fmt: skip
"""Values that some rule looks for; of a page each metric has the same."""
GPUS = tuple(
    {"gpu": first, "pci_bus_id": f"0000:1{first}:00.0", "peer": second, "peer_pci_bus_id": f"0000:1{second}:00.0",
     "src": first, "dst": second}
    for first, second in (("7", "8"), ("8", "9"), ("9", "7"))
)  # fmt: skip
NUMBERS = (0.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 16.0, 1e4, 1e12, NOW - 500.0)
RISES = (0.0, 1.0, 100.0, 1e3, 1e9)
