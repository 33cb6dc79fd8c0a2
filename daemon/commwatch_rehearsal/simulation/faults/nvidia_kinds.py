"""Faults of GPUs, their links and their driver."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch_rehearsal.simulation.faults.checks import needs_nvlink_5, needs_switches
from commwatch_rehearsal.simulation.faults.fault import Kind
from commwatch_rehearsal.simulation.faults.values import (
    GENERATION,
    LANES,
    RATE,
    RATIO,
    SHARE,
    VALUE,
    VARIABLE,
    one_of,
    optional,
    whole_number,
)

PACKET_COUNTERS: Mapping[str, int] = {
    "malformed": 206,
    "buffer_overrun": 207,
    "receive": 208,
    "receive_remote": 209,
    "receive_general": 210,
    "link_integrity": 211,
    "transmit_discards": 212,
}
"""Error counter of NVLink 5 and its NVML field."""

PCIE_COUNTERS: Mapping[str, int] = {
    "recoveries": 169,
    "correctable": 173,
    "naks_received": 174,
    "receiver": 175,
    "bad_tlps": 176,
    "naks_sent": 177,
    "bad_dllps": 178,
    "nonfatal": 179,
    "fatal": 180,
    "unsupported_requests": 181,
    "lcrc": 182,
    "lane": 183,
    "replay_rollovers": 95,
}
"""PCIe error counter of a GPU and its NVML field."""

FABRIC_CHECKS = (
    "bandwidth",
    "route_recovery",
    "route",
    "access_timeout",
    "configuration",
    "partition",
    "connection",
    "registration",
)
"""Possible faults of the fabric: bits of the health mask, and a registration that does not complete."""

THROTTLE_REASONS: Mapping[str, int] = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}
"""Why clocks are lower than they could be, and the bit of the mask."""

RECOVERY_ACTIONS: Mapping[str, int] = {"gpu_reset": 1, "node_reboot": 2, "drain_p2p": 3, "drain_and_reset": 4}
"""Recovery actions of the driver, and their codes in NVML field 230."""

DRIVER_ERRORS: Mapping[str, int] = {
    "version_mismatch": 18,
    "not_loaded": 9,
    "no_permission": 4,
    "unknown": 999,
    "no_gpu": 0,
}
"""Why a driver cannot be used, and what NVML answers as it is opened; ``no_gpu``: it opens and counts no GPU."""

CALL_ERRORS: Mapping[str, int] = {
    "unknown": 999, "no_permission": 4, "timeout": 10, "irq_issue": 11, "operating_system": 17, "in_use": 19,
    "memory": 20, "insufficient_resources": 23, "not_ready": 27, "invalid_state": 29,
}  # fmt: skip
"""Answers of each call on a GPU, and their codes."""

_USES = tuple(f"{part}_utilization" for part in ("gpu", "nvlink", "pcie", "rdma", "ethernet"))
JOB_PHASES: Mapping[str, Mapping[str, float]] = {
    name: dict(zip(("power", *_USES), shares, strict=True))
    for name, shares in {
        "compute": (0.95, 1.0, 0.0, 0.005, 0.0, 0.0),
        "communicate": (0.6, 1.0, 0.6, 0.02, 0.4, 0.0),
        "checkpoint": (0.2, 0.0, 0.0, 0.1, 0.0, 0.3),
        "compile": (0.17, 0.0, 0.0, 0.0, 0.0, 0.0),
        "evaluate": (0.65, 0.97, 0.0, 0.005, 0.0, 0.0),
        "data_stall": (0.18, 0.0, 0.0, 0.0, 0.0, 0.0),
        "hang": (0.2, 1.0, 0.0, 0.0, 0.0, 0.0),
    }.items()
}
"""The numbers of a job in each phase, in place of its own. ``hang``: the kernels of a collective spin, as reported
of an H100 that takes 100 to 150 of 700 W; of other models it is not known."""

NVLINK: Mapping[str, Kind] = {
    "nvlink_down": Kind(
        "link",
        "the link and its other end on a GPU are inactive; the GPU raises Xid 74, or 149 with NVLink 5",
        "gpu: 3, link: 5",
    ),
    "nvlink_slow": Kind(
        "link",
        "the link carries `factor` of its traffic; probes wait for it",
        "gpu: 3, link: 5, factor: 0.4",
        {"factor": SHARE},
    ),
    "nvls_lost": Kind(
        "node",
        "the NVSwitches no longer sum (NVLink SHARP): large all-reduces over all GPUs run in rings",
        "",
        problems=needs_switches,
    ),
    "nvlink_crc": Kind(
        "link",
        "CRC errors at `rate`; with NVLink 5 packets received with errors",
        "gpu: 0, link: 2, rate: 200/s",
        {"rate": RATE},
    ),
    "nvlink_recovery": Kind(
        "link", "successful link recoveries at `rate`", "gpu: 0, link: 2, rate: 6/h", {"rate": RATE}
    ),
    "nvlink_replay": Kind(
        "link",
        "replays at `rate`; with NVLink 5 blocks sent again by the physical layer",
        "gpu: 0, link: 2, rate: 1/min",
        {"rate": RATE},
    ),
    "nvlink_recovery_failed": Kind(
        "link", "one recovery fails and the link is down, as with `nvlink_down`", "gpu: 3, link: 5"
    ),
    "nvlink_bit_errors": Kind(
        "link",
        "NVLink 5: symbol errors at `rate`, bit error ratios `raw` and `effective`, corrected symbols in the high bins",
        "gpu: 0, link: 2, rate: 100/s, effective: 2e-11",
        {"rate": optional(RATE, 100.0), "raw": optional(RATIO, 3e-5), "effective": optional(RATIO, 2e-11)},
        problems=needs_nvlink_5,
        preset="b200x8",
    ),
    "nvlink_packet_errors": Kind(
        "link",
        f"NVLink 5: errors at `rate`; `counter`: {', '.join(PACKET_COUNTERS)}",
        "gpu: 0, link: 2, counter: malformed, rate: 1/min",
        {"counter": one_of(*PACKET_COUNTERS), "rate": RATE},
        problems=needs_nvlink_5,
        preset="b200x8",
    ),
    "p2p_broken": Kind(
        "gpu", "the driver refuses peer access over NVLink to and from this GPU; its links are active", "gpu: 2"
    ),
    "fabric_unhealthy": Kind(
        "gpu",
        f"the driver reports the fabric as unhealthy; `check` (bandwidth): {', '.join(FABRIC_CHECKS)}",
        "gpu: 2, check: bandwidth",
        {"check": optional(one_of(*FABRIC_CHECKS), "bandwidth")},
        problems=needs_switches,
    ),
}

PCIE: Mapping[str, Kind] = {
    "pcie_width": Kind("gpu", "at most `lanes` lanes: 1, 2, 4, 8 or 16", "gpu: 1, lanes: 8", {"lanes": LANES}),
    "pcie_generation": Kind(
        "gpu", "at most this `generation`, under load too", "gpu: 1, generation: 3", {"generation": GENERATION}
    ),
    "pcie_replay": Kind("gpu", "replays at `rate`", "gpu: 1, rate: 5/s", {"rate": RATE}),
    "pcie_errors": Kind(
        "gpu",
        f"errors at the GPU's end at `rate`; `counter` (correctable): {', '.join(PCIE_COUNTERS)}. Receiver, LCRC and "
        "NAK errors count as correctable too",
        "gpu: 1, counter: bad_tlps, rate: 5/s",
        {"counter": optional(one_of(*PCIE_COUNTERS), "correctable"), "rate": RATE},
    ),
}

GPU: Mapping[str, Kind] = {
    "gpu_lost": Kind(
        "gpu",
        'every call on this GPU returns "GPU is lost"; `/sys` shows an unknown speed and 63 lanes; Xid 79',
        "gpu: 6",
    ),
    "gpu_reset_required": Kind("gpu", 'every call on this GPU returns "reset required"', "gpu: 6"),
    "gpu_calls_fail": Kind(
        "gpu",
        f"a `share` (1) of the calls on this GPU fails; `error` (unknown): {', '.join(CALL_ERRORS)}",
        "gpu: 6, error: unknown",
        {"error": optional(one_of(*CALL_ERRORS), "unknown"), "share": optional(SHARE, 1.0)},
    ),
    "gpu_missing": Kind(
        "gpu",
        "the node reboots without this card, and later GPUs move one index down; at the end it reboots with it",
        "gpu: 2",
    ),
    "gpu_not_started": Kind(
        "gpu",
        "the node reboots and the driver cannot start this card (RmInitAdapter failed): it is on the PCI bus, bound to "
        "the driver and not listed, and later GPUs move one index down; at the end it reboots with it",
        "gpu: 2",
    ),
    "gpu_unbound": Kind(
        "gpu",
        "the card is on the PCI bus and unbound from the driver, which lists it no more, and later GPUs move one index "
        "down; at the end it is bound again",
        "gpu: 2, for: 1m",
    ),
    "gpu_throttled": Kind(
        "gpu",
        f"clocks are lowered; `reason` (hw_thermal): {', '.join(THROTTLE_REASONS)}",
        "gpu: 4, reason: hw_thermal",
        {"reason": optional(one_of(*THROTTLE_REASONS), "hw_thermal")},
    ),
    "recovery_needed": Kind(
        "gpu",
        f"the driver requests a recovery; `action` (gpu_reset): {', '.join(RECOVERY_ACTIONS)}; Xid 154",
        "gpu: 4, action: gpu_reset",
        {"action": optional(one_of(*RECOVERY_ACTIONS), "gpu_reset")},
    ),
    "xid": Kind(
        "gpu",
        "this Xid once, or at `rate`; with `severity` Fatal (usual) its line says so, whatever the number",
        "gpu: 4, xid: 94, for: 1m",
        {
            "xid": whole_number(1, 999),
            "severity": optional(one_of("usual", "Fatal"), "usual"),
            "rate": optional(RATE, 0.0),
        },
    ),
    "mig_enabled": Kind("gpu", "the GPU is split by MIG: its NVLinks are reported down", "gpu: 0"),
    "job": Kind(
        "gpus",
        "a process keeps the GPU busy for `gpu_utilization` (0.97) of the time and sends, in each direction, "
        "`nvlink_utilization` (0.2) of the rate of each link and `pcie_utilization` (0.02) over PCIe; the node "
        "`rdma_utilization` (0.02) of each RDMA port and `ethernet_utilization` (0) of each interface; the GPU draws "
        "`power` (0.9) of its limit; without `gpu`: all GPUs",
        "nvlink_utilization: 0.25",
        {
            "power": optional(SHARE, 0.9),
            "gpu_utilization": optional(SHARE, 0.97),
            "nvlink_utilization": optional(SHARE, 0.2),
            "pcie_utilization": optional(SHARE, 0.02),
            "rdma_utilization": optional(SHARE, 0.02),
            "ethernet_utilization": optional(SHARE, 0.0),
        },
    ),
    "job_phase": Kind(
        "gpus",
        f"the `job` on this GPU is in a `phase`: {', '.join(JOB_PHASES)}; it draws `power` of its limit, if not what "
        "the phase does; without `gpu`: on all GPUs",
        "phase: hang",
        {"phase": one_of(*JOB_PHASES), "power": optional(SHARE, 0.0)},
    ),
    "nccl_setting": Kind(
        "gpus",
        "the `job` on this GPU has `variable` with `value` in its environment; without `gpu`: on all GPUs. Its process "
        "is replaced as the fault begins or ends",
        "variable: NCCL_BUFFSIZE, value: 65536",
        {"variable": VARIABLE, "value": VALUE},
    ),
}

DRIVER: Mapping[str, Kind] = {
    "driver_hang": Kind(
        "gpu",
        "the next call on this GPU does not return before the fault ends or the daemon is gone; only SIGKILL reaches "
        "its thread",
        "gpu: 0, for: 5m",
    ),
    "driver_reload": Kind(
        "node",
        'the driver is unloaded: open sessions return "uninitialized", new ones "driver not loaded"; at the end all '
        "GPU counters begin at 0",
        "for: 30s",
    ),
    "driver_unusable": Kind(
        "node",
        'open sessions return "uninitialized", and NVML cannot be opened; `error` (version_mismatch): '
        f"{', '.join(DRIVER_ERRORS)}. With `no_gpu` it opens without a GPU, though all are on the bus",
        "error: version_mismatch, for: 10m",
        {"error": optional(one_of(*DRIVER_ERRORS), "version_mismatch")},
    ),
    "confidential_computing": Kind("node", "confidential computing is on: GPM returns nothing", "at: 0s"),
    "counter_reset": Kind("gpus", "the counters of this GPU begin at 0 again, once; without `gpu`: of all", "gpu: 4"),
    "counter_blank": Kind(
        "gpus",
        "the traffic counters of the NVLinks return `value` (zero): zero, or ones (all bits set), despite traffic",
        "gpu: 4, value: zero",
        {"value": optional(one_of("zero", "ones"), "zero")},
    ),
    "counter_stale": Kind("gpus", "the traffic counters of NVLink and PCIe stand still despite traffic", "gpu: 4"),
}
