"""Counters of the PCIe link as the GPU sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml

from commwatch.sources.nvml.fields.row import CallCounter, Counter, FieldCounter, GpmCounter

_NOT_AVAILABLE = pynvml.NVML_VALUE_NOT_AVAILABLE_uint.value


def _count(value: int) -> int | None:
    return None if value == _NOT_AVAILABLE else value


def _kilobytes(value: int) -> int | None:
    """Bytes of kilobytes; NVML does not define which, and its tools take 1,000."""
    return None if value == _NOT_AVAILABLE else value * 1000


def _field(name: str, field: int, metric: str) -> FieldCounter:
    return FieldCounter(name, field, f"commwatch_pcie_{metric}_total", "pcie", "device")


def _call(name: str, call: Callable[..., Any], metric: str) -> CallCounter:  # the binding has no types
    return CallCounter(name, call, f"commwatch_pcie_{metric}", "pcie", "device", convert=_count)


def _sampled(direction: str, number: int) -> CallCounter:
    return CallCounter(
        f"pcie_throughput_{direction}", pynvml.nvmlDeviceGetPcieThroughput,
        f"commwatch_pcie_{direction}_rate_bytes_per_second", "pcie_sampled", "device",
        arguments=(number,), convert=_kilobytes,
    )  # fmt: skip


ROWS: Final[tuple[Counter, ...]] = (
    _field("pcie_replay_counter", 94, "replays"),
    _field("pcie_replay_rollover_counter", 95, "replay_rollovers"),
    _field("pcie_l0_to_recovery_counter", 169, "recoveries"),
    _field("pcie_count_correctable_errors", 173, "correctable_errors"),
    _field("pcie_count_naks_received", 174, "naks_received"),
    _field("pcie_count_receiver_error", 175, "receiver_errors"),
    _field("pcie_count_bad_tlp", 176, "bad_tlps"),
    _field("pcie_count_naks_sent", 177, "naks_sent"),
    _field("pcie_count_bad_dllp", 178, "bad_dllps"),
    _field("pcie_count_non_fatal_error", 179, "nonfatal_errors"),
    _field("pcie_count_fatal_error", 180, "fatal_errors"),
    _field("pcie_count_unsupported_req", 181, "unsupported_requests"),
    _field("pcie_count_lcrc_error", 182, "lcrc_errors"),
    _field("pcie_count_lane_error", 183, "lane_errors"),
    _call("curr_pcie_link_generation", pynvml.nvmlDeviceGetCurrPcieLinkGeneration, "link_generation"),
    _call("max_pcie_link_generation", pynvml.nvmlDeviceGetMaxPcieLinkGeneration, "link_generation_max"),
    _call("gpu_max_pcie_link_generation", pynvml.nvmlDeviceGetGpuMaxPcieLinkGeneration, "gpu_link_generation_max"),
    _call("curr_pcie_link_width", pynvml.nvmlDeviceGetCurrPcieLinkWidth, "link_width_lanes"),
    _call("max_pcie_link_width", pynvml.nvmlDeviceGetMaxPcieLinkWidth, "link_width_max_lanes"),
    GpmCounter("gpm_metric_pcie_tx_per_sec", 20, "commwatch_pcie_transmit_rate_bytes_per_second"),
    GpmCounter("gpm_metric_pcie_rx_per_sec", 21, "commwatch_pcie_receive_rate_bytes_per_second"),
    GpmCounter("gpm_metric_pcie_tx", 255, "commwatch_pcie_transmit_bytes_total"),
    GpmCounter("gpm_metric_pcie_rx", 256, "commwatch_pcie_receive_bytes_total"),
    # Each blocks for about 20 ms: read in a process of its own, and only of GPUs without GPM.
    _sampled("transmit", pynvml.NVML_PCIE_UTIL_TX_BYTES),
    _sampled("receive", pynvml.NVML_PCIE_UTIL_RX_BYTES),
)
SAMPLED: Final = tuple(row for row in ROWS if isinstance(row, CallCounter) and row.collector == "pcie_sampled")
"""The counters that ``samples.py`` reads."""
