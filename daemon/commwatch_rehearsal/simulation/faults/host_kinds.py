"""Faults of network adapters, PCIe errors, the kernel log and services."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch_rehearsal.simulation.aer_errors import ERRORS, SEVERITIES
from commwatch_rehearsal.simulation.faults.checks import counter_of_port, error_of_severity
from commwatch_rehearsal.simulation.faults.fault import Kind
from commwatch_rehearsal.simulation.faults.values import RATE, one_of, optional, whole_number
from commwatch_rehearsal.simulation.rdma_counters import COUNTER_NAMES

ADAPTER_LINES: Mapping[str, str] = {
    "firmware_fatal": "poll_health:825:(pid 0): Fatal error 1 detected",
    "health_issue": "print_health_info:430:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",
    "module_hot": "Port module event[error]: module 0, Cable error, High Temperature",
    "slot_power_low": "mlx5_pcie_event:299:(pid 2701): Detected insufficient power on the PCIe slot (27W).",
}
"""Messages of mlx5_core, after its name and the address."""

AER: Mapping[str, Kind] = {
    "pcie_aer": Kind(
        "pci",
        "a device (`gpu`, `nic`, or `device` with its PCI address) and the port above it report and log errors at "
        f"`rate`; `severity`: {', '.join(SEVERITIES)}; `error` as the kernel names it: `RxErr`, `BadTLP`, "
        "`CmpltTO`, ...",
        "nic: ens1np0, severity: correctable, error: BadTLP, rate: 10/s",
        {"severity": one_of(*SEVERITIES), "error": one_of(*ERRORS), "rate": RATE},
        problems=error_of_severity,
    )
}

RDMA: Mapping[str, Kind] = {
    "rdma_port_down": Kind(
        "rdma",
        "the port is down, with the interface of a RoCE port, and `link_downed` is one more; a flap: `for: 3s`. "
        "Without `port`: all ports of the device, here and below",
        "device: mlx5_0, for: 20s",
        preset="h100x8ndr",
    ),
    "rdma_port_not_set_up": Kind(
        "rdma",
        "the link of an InfiniBand port is up, and no subnet manager sets the port up: it is initialising",
        "device: mlx5_0, for: 10m",
        preset="h100x8ndr",
    ),
    "rdma_errors": Kind(
        "rdma",
        "a `counter` (a file in `counters` or `hw_counters`) moves at `rate`",
        "device: mlx5_0, counter: symbol_error, rate: 10/min",
        {"counter": one_of(*COUNTER_NAMES), "rate": RATE},
        problems=counter_of_port,
        preset="h100x8ndr",
    ),
    "rdma_saturated": Kind(
        "rdma",
        "a `counter` is at its maximum",
        "device: mlx5_0, counter: excessive_buffer_overrun_errors",
        {"counter": one_of(*COUNTER_NAMES)},
        problems=counter_of_port,
        preset="h100x8ndr",
    ),
    "rdma_congestion": Kind(
        "rdma",
        "at `rate`: `port_xmit_wait` (InfiniBand), or packets with a congestion mark, notifications sent and handled "
        "(RoCE)",
        "device: mlx5_0, rate: 500/s",
        {"rate": RATE},
        preset="h100x8ndr",
    ),
    "rdma_read_error": Kind(
        "rdma", "no counter of the port can be read", "device: mlx5_0, for: 1m", preset="h100x8ndr"
    ),
    "rdma_counter_reset": Kind("rdma", "the counters begin at 0 again, once", "device: mlx5_0", preset="h100x8ndr"),
}

HOST: Mapping[str, Kind] = {
    "kernel_log_unreadable": Kind("node", "the kernel log cannot be read", "for: 1m"),
    "adapter_event": Kind(
        "pci",
        "the driver of an adapter logs an `event` once, or at `rate`: " + ", ".join(ADAPTER_LINES),
        "nic: mlx5_0, event: firmware_fatal",
        {"event": one_of(*ADAPTER_LINES), "rate": optional(RATE, 0.0)},
        preset="h100x8ndr",
    ),
    "sxid": Kind(
        "nvswitch",
        "the driver logs this `sxid` of an NVSwitch (from 0) once, or at `rate`, of its `link` (0), with a `severity` "
        "(Non-fatal): Fatal, Non-fatal",
        "nvswitch: 0, sxid: 12028, link: 30",
        {
            "sxid": whole_number(10000, 99999),
            "severity": optional(one_of("Fatal", "Non-fatal"), "Non-fatal"),
            "rate": optional(RATE, 0.0),
        },
    ),
    "service_stopped": Kind(
        "node",
        "the process of a `service` is gone: `nv-fabricmanager` or `nvidia-persistenced`",
        "service: nv-fabricmanager",
        {"service": one_of("nv-fabricmanager", "nvidia-persistenced")},
    ),
}
