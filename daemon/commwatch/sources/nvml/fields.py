"""The counters that are read from NVML: one row each; a new counter is a row here and one in the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import pynvml

from commwatch_exporters.snapshot import Value

Collector: TypeAlias = Literal["identity", "gpu", "nvlink", "nvlink_errors", "pcie"]
Generations: TypeAlias = Literal["all", "nvlink_1_to_4", "nvlink_5_up"]
Scope: TypeAlias = Literal["device", "link", "all_links"]
"""``device``: one number for the GPU; ``link``: one for each link; ``all_links``: one number that holds for each."""

_NOT_AVAILABLE = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_NOT_AVAILABLE_32_BITS = pynvml.NVML_VALUE_NOT_AVAILABLE_uint.value


@dataclass(frozen=True, slots=True)
class FieldCounter:
    """A number that ``nvmlDeviceGetFieldValues`` gives."""

    name: str
    """NVML's own name without ``NVML_FI_DEV_``, lower case; the label ``counter`` of ``commwatch_counter_state``."""
    field: int
    """Field id. Ids above 250 were renumbered between drivers and must not be used."""
    metric: str
    collector: Collector
    scope: Scope
    generations: Generations = "all"
    scale: int = 1
    """Factor from NVML's unit to the metric's."""
    decode: Callable[[int], float] | None = None
    """For a number that is packed; the scale is 1 then."""
    answers_inactive: bool = False
    """Whether an inactive link gives it, so that a refusal there says that the driver does not know it."""


@dataclass(frozen=True, slots=True)
class CallCounter:
    """A number that an NVML function of its own gives."""

    name: str
    """NVML's own name without ``nvmlDeviceGet``; the label ``counter`` of ``commwatch_counter_state``."""
    call: Callable[..., Any]  # the binding has no types
    metric: str
    collector: Collector
    scope: Scope
    generations: Generations = "all"
    arguments: tuple[int, ...] = ()
    """Arguments after the handle and, for a link's counter, the link."""
    convert: Callable[[Any], Value] | None = None  # what the binding returns has no type
    answers_inactive: bool = False


Counter: TypeAlias = FieldCounter | CallCounter


def bit_error_ratio(packed: int) -> float:
    """A bit error ratio as NVLink 5 packs it: m × 10⁻ᵉ, exponent e in bits 0 to 7, mantissa m in bits 8 to 11.

    Exponent 255 with mantissa 15 means zero, and 238 is the floor that Blackwell shows for a sum without errors:
    from there on the ratio is 0.
    """
    exponent, mantissa = packed & 0xFF, packed >> 8 & 0xF
    return 0.0 if exponent >= 238 else float(f"{mantissa}e-{exponent}")


def _count(value: int) -> int | None:
    return None if value == _NOT_AVAILABLE else value


def _count_of_32_bits(value: int) -> int | None:
    return None if value == _NOT_AVAILABLE_32_BITS else value


def _memory_used(memory: Any) -> Value:  # the binding has no types
    """Bytes in use, of ``nvmlMemory_v2_t``; there the driver's own reserve is counted apart."""
    return int(memory.used)


def _current_mig_mode(modes: Any) -> Value:  # the binding has no types
    """1 while MIG is on; the second value says what it will be after a reset."""
    return int(modes[0])


def _utilization(rates: Any) -> float:  # a structure of the binding, which has no types
    return float(rates.gpu) / 100


def _error_field(name: str, field: int, metric: str, decode: Callable[[int], float] | None = None) -> FieldCounter:
    return FieldCounter(
        f"nvlink_count_{name}", field, f"commwatch_nvlink_{metric}", "nvlink_errors", "link", "nvlink_5_up", 1, decode
    )


def _error_kind(name: str, kind: int, metric: str) -> CallCounter:
    call = pynvml.nvmlDeviceGetNvLinkErrorCounter
    metric = f"commwatch_nvlink_{metric}"
    return CallCounter(name, call, metric, "nvlink_errors", "link", "nvlink_1_to_4", (kind,), _count)


def _pcie_call(name: str, call: Callable[..., Any], metric: str) -> CallCounter:  # the binding has no types
    return CallCounter(name, call, f"commwatch_pcie_{metric}", "pcie", "device", convert=_count_of_32_bits)


_STATE = "commwatch_nvlink_link_state"
_SPEED = "commwatch_nvlink_link_speed_bytes_per_second"
_SENT = "commwatch_nvlink_transmit_bytes_total"
_RECEIVED = "commwatch_nvlink_receive_bytes_total"

COUNTERS: Final[tuple[Counter, ...]] = (
    FieldCounter("nvlink_get_state", 165, _STATE, "nvlink", "link", answers_inactive=True),
    CallCounter("nvlink_state", pynvml.nvmlDeviceGetNvLinkState, _STATE, "nvlink", "link", answers_inactive=True),
    FieldCounter("nvlink_count_xmit_bytes", 202, _SENT, "nvlink", "link", "nvlink_5_up"),
    FieldCounter("nvlink_count_rcv_bytes", 204, _RECEIVED, "nvlink", "link", "nvlink_5_up"),
    FieldCounter("nvlink_throughput_data_tx", 138, _SENT, "nvlink", "link", scale=1024),  # KiB
    FieldCounter("nvlink_throughput_data_rx", 139, _RECEIVED, "nvlink", "link", scale=1024),  # KiB
    FieldCounter("nvlink_get_speed", 164, _SPEED, "identity", "link", scale=10**6),  # MB/s
    FieldCounter("nvlink_speed_mbps_common", 90, _SPEED, "identity", "all_links", scale=10**6),  # MB/s
    _error_kind("nvlink_error_dl_replay", 0, "replay_errors_total"),
    _error_kind("nvlink_error_dl_recovery", 1, "recovery_errors_total"),
    _error_kind("nvlink_error_dl_crc_flit", 2, "crc_flit_errors_total"),
    _error_kind("nvlink_error_dl_crc_data", 3, "crc_data_errors_total"),
    _error_kind("nvlink_error_dl_ecc_data", 4, "ecc_data_errors_total"),
    _error_field("malformed_packet_errors", 206, "malformed_packets_total"),
    _error_field("buffer_overrun_errors", 207, "buffer_overrun_errors_total"),
    _error_field("rcv_errors", 208, "receive_errors_total"),
    _error_field("rcv_remote_errors", 209, "receive_remote_errors_total"),
    _error_field("rcv_general_errors", 210, "receive_general_errors_total"),
    _error_field("local_link_integrity_errors", 211, "local_link_integrity_errors_total"),
    _error_field("xmit_discards", 212, "transmit_discards_total"),
    _error_field("link_recovery_successful_events", 213, "recoveries_successful_total"),
    _error_field("link_recovery_failed_events", 214, "recoveries_failed_total"),
    _error_field("link_recovery_events", 215, "recoveries_total"),
    _error_field("effective_errors", 219, "effective_errors_total"),
    _error_field("effective_ber", 220, "effective_bit_error_ratio", bit_error_ratio),
    _error_field("symbol_errors", 221, "symbol_errors_total"),
    _error_field("symbol_ber", 222, "symbol_bit_error_ratio", bit_error_ratio),
    FieldCounter("pcie_replay_counter", 94, "commwatch_pcie_replays_total", "pcie", "device"),
    FieldCounter("pcie_replay_rollover_counter", 95, "commwatch_pcie_replay_rollovers_total", "pcie", "device"),
    _pcie_call("curr_pcie_link_generation", pynvml.nvmlDeviceGetCurrPcieLinkGeneration, "link_generation"),
    _pcie_call("max_pcie_link_generation", pynvml.nvmlDeviceGetMaxPcieLinkGeneration, "link_generation_max"),
    _pcie_call("gpu_max_pcie_link_generation", pynvml.nvmlDeviceGetGpuMaxPcieLinkGeneration, "gpu_link_generation_max"),
    _pcie_call("curr_pcie_link_width", pynvml.nvmlDeviceGetCurrPcieLinkWidth, "link_width_lanes"),
    _pcie_call("max_pcie_link_width", pynvml.nvmlDeviceGetMaxPcieLinkWidth, "link_width_max_lanes"),
    CallCounter(
        "utilization_rates", pynvml.nvmlDeviceGetUtilizationRates, "commwatch_gpu_utilization_ratio", "gpu", "device",
        convert=_utilization,
    ),
    CallCounter(
        # The name without a version turns a function that the driver lacks into an error that is no NVMLError.
        "compute_running_processes", pynvml.nvmlDeviceGetComputeRunningProcesses_v3, "commwatch_gpu_compute_processes",
        "gpu", "device", convert=len,
    ),
    CallCounter(
        "memory_info_v2", pynvml.nvmlDeviceGetMemoryInfo, "commwatch_gpu_memory_used_bytes", "gpu", "device",
        arguments=(pynvml.nvmlMemory_v2,), convert=_memory_used,
    ),
    CallCounter(
        "compute_mode", pynvml.nvmlDeviceGetComputeMode, "commwatch_gpu_compute_mode", "gpu", "device"
    ),
    CallCounter(
        "mig_mode", pynvml.nvmlDeviceGetMigMode, "commwatch_gpu_mig_mode", "gpu", "device", convert=_current_mig_mode,
    ),
)  # fmt: skip
"""Where several rows give one metric, the first that the GPU supports is read."""

_BLACKWELL: Final = 10
_UNKNOWN_ARCHITECTURE: Final = 0xFFFFFFFF


def applies(row: Counter, architecture: int | None) -> bool:
    """Whether a counter can exist on an architecture (NVML's number; None where the driver does not say)."""
    if row.generations == "all":
        return True
    nvlink_5_up = architecture is not None and _BLACKWELL <= architecture < _UNKNOWN_ARCHITECTURE
    return nvlink_5_up == (row.generations == "nvlink_5_up")
