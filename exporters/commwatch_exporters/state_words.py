"""One word for each state that a metric gives as a number: for findings, page, terminal, logs and dashboards alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GPU_STATES: Final[Mapping[int, str]] = {
    0: "ok", 1: "not answering", 2: "lost", 3: "reset required", 4: "missing",
    5: "not listed by the driver",
}  # fmt: skip
"""``commwatch_gpu_state``."""

RECOVERY_ACTIONS: Final[Mapping[int, str]] = {
    0: "nothing", 1: "GPU reset", 2: "node reboot", 3: "drain P2P", 4: "drain and reset", 5: "recover the IMEX domain",
    6: "bus reset", 7: "system reboot",
}  # fmt: skip
"""``commwatch_gpu_recovery_action``, NVML field 230."""
RECOVERY_REQUIRED: Final = frozenset({1, 2, 3, 4, 6, 7})
"""Recovery actions of the driver for a GPU that cannot be used, or whose traffic cannot: a reset, a reboot or a
drain."""

NVLINK_STATES: Final[Mapping[int, str]] = {
    0: "inactive", 1: "active", 2: "sleep", 3: "active with traffic disabled",
}  # fmt: skip
"""``commwatch_nvlink_link_state``, NVML field 165."""
NVLINK_UP: Final = frozenset({1, 2})
"""States of a link that carries traffic; one that sleeps wakes by itself."""

NVLINK_BANDWIDTH_MODES: Final[Mapping[int, str]] = {
    0: "full", 1: "off", 2: "minimum", 3: "half", 4: "three quarters",
}  # fmt: skip
"""``commwatch_nvlink_bandwidth_mode``."""

FABRIC_STATES: Final[Mapping[int, str]] = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
"""``commwatch_fabric_state``: how far a GPU is with joining its fabric."""
FABRIC_JOINING: Final = frozenset({1, 2})
"""Those of a GPU that has not joined yet."""

FABRIC_HEALTH: Final[Mapping[int, str]] = {1: "healthy", 2: "unhealthy", 3: "limited capacity"}
"""``commwatch_fabric_health``."""

FABRIC_CONFIGURATIONS: Final[Mapping[int, str]] = {
    1: "correct", 2: "wrong system GUID", 3: "wrong chassis serial number", 4: "no partition",
    5: "insufficient NVLinks", 6: "incompatible GPU firmware", 7: "invalid location", 8: "invalid state of the GPU",
}  # fmt: skip
"""``commwatch_fabric_incorrect_configuration``."""

P2P_STATES: Final[Mapping[int, str]] = {
    0: "ok", 1: "chipset", 2: "GPU", 3: "topology", 4: "a setting of the driver", 5: "not supported", 6: "unknown",
}  # fmt: skip
"""``commwatch_gpu_p2p_status``: 0, or why a GPU does not reach another one."""

RDMA_STATES: Final[Mapping[int, str]] = {
    0: "no change", 1: "down", 2: "initialising", 3: "armed", 4: "active", 5: "deferred",
}  # fmt: skip
"""``commwatch_rdma_port_state``."""
RDMA_ACTIVE: Final = 4
"""The only state of a port that carries traffic."""

RDMA_PHYSICAL_STATES: Final[Mapping[int, str]] = {
    1: "sleep", 2: "polling", 3: "disabled", 4: "training", 5: "link up", 6: "error recovery", 7: "test",
}  # fmt: skip
"""``commwatch_rdma_port_phys_state``."""
RDMA_LINK_UP: Final = 5
RDMA_DISABLED: Final = 3
"""An InfiniBand port that was switched off; of RoCE every port without a link, whoever took it away."""

ROCE_ROUTED: Final = ("roce_v2_ipv4", "roce_v2_ipv6")
"""Kinds of GIDs that carry an IP address."""

COUNTER_ANOMALIES: Final[Mapping[int, str]] = {2: "blank", 3: "stale", 4: "saturated"}
"""``commwatch_counters_anomaly``: why a counter cannot be trusted."""

DRIVER_FAULTS: Final[Mapping[str, tuple[str, str]]] = {
    "library_mismatch": (
        "its library and its kernel module are of different versions (NVML: LIB_RM_VERSION_MISMATCH)",
        "drain the node; once it is free, reboot it or reload the modules: the driver was upgraded under a running "
        "module"),
    "no_driver": (
        "no kernel module of it answers (NVML: DRIVER_NOT_LOADED, UNINITIALIZED or LIBRARY_NOT_FOUND)",
        "run modprobe nvidia; if it fails, the kernel has no module (dkms status), Secure Boot refused it (mokutil "
        "--sb-state), or nouveau has taken the GPUs (lsmod)"),
    "no_permission": (
        "it refuses commwatch (NVML: NO_PERMISSION)",
        "run ls -l /dev/nvidia* and compare the rights with user, groups and sandbox of commwatch's unit or container"),
    "no_gpu": (
        "it lists no GPU, although GPUs are on the PCI bus",
        "drain the node; once it is free, reboot it; on repetition the driver may be too old or a firmware may not "
        "load: install a matching driver"),
    "unreadable": (
        "NVML fails as it is opened",
        "drain the node and run nvidia-bug-report.sh; once it is free, reboot it"),
    "calls_fail": (
        "it opens, and every call about every GPU fails",
        "run nvidia-smi: if it works on the host, commwatch's container lost its devices (systemctl daemon-reload), so "
        "start it again; else drain the node; once it is free, reboot it"),
    "no_answer": (
        "no call about any GPU returns, or the process that makes the calls ends",
        "drain the node; kill no process in state D (see ps); if the driver stays silent, power cycle the node once "
        "no job runs there"),
}  # fmt: skip
"""``commwatch_driver_unusable`` by reason: what is so, and what cures it."""


def word_of(words: Mapping[int, str], code: float) -> str:
    """The word for a state; ``unknown (7)`` for one that has none."""
    return words.get(int(code), f"unknown ({code:g})")
