"""Counters of NVLink and of chip-to-chip links."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import pynvml

from commwatch.sources.nvml.fields.row import CallCounter, Collector, Counter, FieldCounter, Generations

_NOT_AVAILABLE = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_FEC_BINS = 16


def bit_error_ratio(packed: int) -> float:
    """A bit error ratio as NVLink 5 packs it: m × 10⁻ᵉ, exponent e in bits 0 to 7, mantissa m in bits 8 to 11.

    Exponent 255 with mantissa 15 means zero, and 238 is the floor that Blackwell shows for a sum without errors:
    from there on the ratio is 0.
    """
    exponent, mantissa = packed & 0xFF, packed >> 8 & 0xF
    return 0.0 if exponent >= 238 else float(f"{mantissa}e-{exponent}")


def nvml_nvlink_bandwidth_mode(handle: object) -> int:
    """Code of the bandwidth that the links are set to: 0 full, 1 off, 2 minimum, 3 half, 4 three quarters.

    Raises:
        pynvml.NVMLError: the call failed.
    """
    mode = pynvml.c_nvmlNvlinkGetBwMode_v1_t()
    pynvml.nvmlDeviceGetNvlinkBwMode(handle, ctypes.byref(mode))
    return int(mode.bwMode)


def _count(value: int) -> int | None:
    return None if value == _NOT_AVAILABLE else value


def _traffic(name: str, field: int, metric: str, generations: Generations = "all", scale: int = 1) -> FieldCounter:
    return FieldCounter(name, field, f"commwatch_nvlink_{metric}_total", "nvlink", "link", generations, scale)


def _errors(
    name: str,
    field: int,
    metric: str,
    generations: Generations = "nvlink_5_up",
    decode: Callable[[int], float] | None = None,
    lane: str | None = None,
) -> FieldCounter:
    labels = () if lane is None else (lane,)
    return FieldCounter(
        name, field, f"commwatch_nvlink_{metric}", "nvlink_errors", "link", generations, decode=decode, labels=labels
    )


def _error_kind(name: str, kind: int, metric: str) -> CallCounter:
    call: Any = pynvml.nvmlDeviceGetNvLinkErrorCounter  # the binding has no types
    metric = f"commwatch_nvlink_{metric}"
    return CallCounter(name, call, metric, "nvlink_errors", "link", "nvlink_1_to_4", (kind,), _count)


def _c2c(name: str, field: int, metric: str, scale: int = 1) -> FieldCounter:
    collector: Collector = "gpu"
    return FieldCounter(name, field, f"commwatch_c2c_{metric}", collector, "c2c_link", scale=scale)


_STATE = "commwatch_nvlink_link_state"
_SPEED = "commwatch_nvlink_link_speed_bytes_per_second"
_KIB = 1024

ROWS: Final[tuple[Counter, ...]] = (
    FieldCounter("nvlink_get_state", 165, _STATE, "nvlink", "link", answers_inactive=True),
    CallCounter("nvlink_state", pynvml.nvmlDeviceGetNvLinkState, _STATE, "nvlink", "link", answers_inactive=True),
    _traffic("nvlink_count_xmit_bytes", 202, "transmit_bytes", "nvlink_5_up"),
    _traffic("nvlink_count_rcv_bytes", 204, "receive_bytes", "nvlink_5_up"),
    _traffic("nvlink_throughput_data_tx", 138, "transmit_bytes", scale=_KIB),
    _traffic("nvlink_throughput_data_rx", 139, "receive_bytes", scale=_KIB),
    _traffic("nvlink_throughput_raw_tx", 140, "transmit_raw_bytes", scale=_KIB),
    _traffic("nvlink_throughput_raw_rx", 141, "receive_raw_bytes", scale=_KIB),
    _traffic("nvlink_count_xmit_packets", 201, "transmit_packets", "nvlink_5_up"),
    _traffic("nvlink_count_rcv_packets", 203, "receive_packets", "nvlink_5_up"),
    FieldCounter("nvlink_get_power_state", 167, "commwatch_nvlink_link_low_power", "nvlink", "link"),
    FieldCounter("nvlink_get_speed", 164, _SPEED, "identity", "link", scale=10**6),  # MB/s
    FieldCounter("nvlink_speed_mbps_common", 90, _SPEED, "identity", "all_links", scale=10**6),  # MB/s
    FieldCounter(
        "nvswitch_connected_link_count", 147, "commwatch_nvlink_switch_links", "identity", "device"
    ),
    FieldCounter("nvlink_remote_nvlink_id", 146, "commwatch_nvlink_info", "link_info", "link"),
    CallCounter(
        "nvlink_bw_mode", nvml_nvlink_bandwidth_mode, "commwatch_nvlink_bandwidth_mode", "identity", "device",
        "nvlink_5_up",
    ),
    # One batched call for all links is tried before a call for each link and kind.
    _errors("nvlink_error_dl_replay", 161, "replay_errors_total", "nvlink_1_to_4"),
    _errors("nvlink_error_dl_recovery", 162, "recovery_errors_total", "nvlink_1_to_4"),
    _errors("nvlink_error_dl_crc", 163, "crc_flit_errors_total", "nvlink_1_to_4"),
    _error_kind("nvlink_error_counter_dl_replay", 0, "replay_errors_total"),
    _error_kind("nvlink_error_counter_dl_recovery", 1, "recovery_errors_total"),
    _error_kind("nvlink_error_counter_dl_crc_flit", 2, "crc_flit_errors_total"),
    _error_kind("nvlink_error_counter_dl_crc_data", 3, "crc_data_errors_total"),
    _error_kind("nvlink_error_counter_dl_ecc_data", 4, "ecc_data_errors_total"),
    _errors("nvlink_count_malformed_packet_errors", 206, "malformed_packets_total"),
    _errors("nvlink_count_buffer_overrun_errors", 207, "buffer_overrun_errors_total"),
    _errors("nvlink_count_rcv_errors", 208, "receive_errors_total"),
    _errors("nvlink_count_rcv_remote_errors", 209, "receive_remote_errors_total"),
    _errors("nvlink_count_rcv_general_errors", 210, "receive_general_errors_total"),
    _errors("nvlink_count_local_link_integrity_errors", 211, "local_link_integrity_errors_total"),
    _errors("nvlink_count_xmit_discards", 212, "transmit_discards_total"),
    _errors("nvlink_count_link_recovery_successful_events", 213, "recoveries_successful_total"),
    _errors("nvlink_count_link_recovery_failed_events", 214, "recoveries_failed_total"),
    _errors("nvlink_count_link_recovery_events", 215, "recoveries_total"),
    _errors("nvlink_count_effective_errors", 219, "effective_errors_total"),
    _errors("nvlink_count_effective_ber", 220, "effective_bit_error_ratio", decode=bit_error_ratio),
    _errors("nvlink_count_symbol_errors", 221, "symbol_errors_total"),
    _errors("nvlink_count_symbol_ber", 222, "symbol_bit_error_ratio", decode=bit_error_ratio),
    _errors("nvlink_count_raw_errors_lane0", 289, "raw_errors_total", lane="0"),
    _errors("nvlink_count_raw_errors_lane1", 290, "raw_errors_total", lane="1"),
    _errors("nvlink_count_raw_ber_lane0_v2", 291, "lane_raw_bit_error_ratio", decode=bit_error_ratio, lane="0"),
    _errors("nvlink_count_raw_ber_lane1_v2", 292, "lane_raw_bit_error_ratio", decode=bit_error_ratio, lane="1"),
    _errors("nvlink_count_raw_ber_v2", 293, "raw_bit_error_ratio", decode=bit_error_ratio),
    _errors("nvlink_plr_xmit_blocks", 294, "plr_blocks_total"),
    _errors("nvlink_plr_xmit_retry_blocks", 295, "plr_retry_blocks_total"),
    *(
        FieldCounter(
            f"nvlink_count_fec_history_{number}", 235 + number, "commwatch_nvlink_fec_corrected_total",
            "nvlink_errors", "link", "nvlink_5_up", labels=(str(number),),
        )
        for number in range(_FEC_BINS)
    ),
    FieldCounter("c2c_link_count", 170, "commwatch_c2c_links", "gpu", "device"),
    _c2c("c2c_link_get_status", 171, "link_up"),
    _c2c("c2c_link_get_max_bw", 172, "link_speed_bytes_per_second", scale=10**6),  # MB/s
    _c2c("c2c_link_error_intr", 231, "crc_errors_total"),
    _c2c("c2c_link_error_replay", 232, "replays_total"),
    _c2c("c2c_link_error_replay_b2b", 233, "replays_back_to_back_total"),
    _c2c("c2c_link_power_state", 234, "low_power"),
)  # fmt: skip

C2C_LINK_COUNT: Final = 170
"""Field with the number of chip-to-chip links; the others exist only where it is above 0."""
