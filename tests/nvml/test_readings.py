"""What the source reads of a GPU: for each kind of answer of the driver, the series and values that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import pytest

from commwatch_exporters.snapshot import Value
from nvml.harness import Opened
from nvml.library import NOT_SUPPORTED, UINT, ULONGLONG, FakeGpu, blackwell, hopper, packed

Driver: TypeAlias = "Callable[..., Opened]"
A = ("0", "0000:17:00.0")
EVENT = "nvmlDeviceGetCurrentClocksEventReasons"
REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting",
)  # fmt: skip
PCIE_ERRORS = {
    169: "recoveries", 173: "correctable_errors", 174: "naks_received", 175: "receiver_errors", 176: "bad_tlps",
    177: "naks_sent", 178: "bad_dllps", 179: "nonfatal_errors", 180: "fatal_errors", 181: "unsupported_requests",
    182: "lcrc_errors", 183: "lane_errors",
}  # fmt: skip


def field(gpu: FakeGpu, numbers: Mapping[int, int], form: int = ULONGLONG, links: Iterable[int] = (0,)) -> FakeGpu:
    """The GPU with numbers by field, the same for each link."""
    gpu.fields |= {(number, link): packed(form, value) for number, value in numbers.items() for link in links}
    return gpu


def without(gpu: FakeGpu, *fields: int) -> FakeGpu:
    """The GPU of an older driver, which does not know these fields of any link."""
    gpu.fields = {key: answer for key, answer in gpu.fields.items() if key[0] not in fields}
    return gpu


def numbered(numbers: Mapping[tuple[str | int, ...], int], **answers: object) -> FakeGpu:
    """A GPU whose functions give these numbers."""
    return FakeGpu(numbers=dict(numbers), **answers)  # type: ignore[arg-type]  # of any of its fields


def superchip(links: int) -> FakeGpu:
    """A GPU with links to a CPU; the driver would answer for more than there are."""
    gpu = field(hopper(1), {170: links}, UINT)
    field(gpu, {171: 1, 172: 50_000, 234: 0}, UINT, range(5))
    for link in range(5):
        field(gpu, {number: number + link for number in (231, 232, 233)}, links=(link,))
    return gpu


def remote(gpu: FakeGpu) -> FakeGpu:
    """Whose first link says its number at the far end."""
    field(gpu, {146: 14, 147: 2}, UINT).fields[146, 1] = NOT_SUPPORTED
    return gpu


def common_speed(gpu: FakeGpu) -> FakeGpu:
    """Whose driver has one speed for all links, of which one is down."""
    gpu.link_states[1] = 0
    return field(without(gpu, 164), {90: 25_781}, UINT)


LANES = {289: 5, 290: 6, 291: 1 << 8 | 6, 292: 2 << 8 | 6, 293: 3 << 8 | 6, 294: 1000, 295: 10}
RAW = ("nvlink_transmit_raw_bytes_total", "nvlink_receive_raw_bytes_total")

NO_SERIES = "no series"

ROWS: dict[str, tuple[FakeGpu, str, dict[str, Value | str], tuple[str, ...]]] = {
    "state and bytes of each link, KiB at the driver": (hopper(2), "nvlink", {
        "nvlink_link_state 0": 1, "nvlink_link_state 1": 1,
        "nvlink_transmit_bytes_total 0": 1000 * 1024, "nvlink_transmit_bytes_total 1": 1001 * 1024,
        "nvlink_receive_bytes_total 0": 2000 * 1024, "nvlink_receive_bytes_total 1": 2001 * 1024,
    }, ()),
    "NVLink 5 by its own fields, bytes already": (blackwell(1), "nvlink", {
        "nvlink_link_state 0": 1, "nvlink_transmit_bytes_total 0": 5000, "nvlink_receive_bytes_total 0": 6000,
    }, ()),
    "NVLink 5 by the old fields where the driver lacks its own": (without(blackwell(1), 202, 204), "nvlink", {
        "nvlink_transmit_bytes_total 0": 1024,
    }, ()),
    "packets of NVLink 5": (field(blackwell(1), {201: 11, 203: 12}), "nvlink", {
        "nvlink_transmit_packets_total 0": 11, "nvlink_receive_packets_total 0": 12,
    }, ()),
    "raw bytes where they are asked for, KiB as well": (field(hopper(1), {140: 3, 141: 4}), "nvlink", {
        "nvlink_transmit_raw_bytes_total 0": 3 * 1024, "nvlink_receive_raw_bytes_total 0": 4 * 1024,
    }, RAW),
    "the power state where it is asked for": (field(hopper(1), {167: 1}, UINT), "nvlink", {
        "nvlink_link_low_power 0": 1,
    }, ("nvlink_link_low_power",)),
    "errors by kind, those that the GPU has": (hopper(1), "nvlink_errors", {
        "nvlink_replay_errors_total 0": 0, "nvlink_recovery_errors_total 0": 10, "nvlink_crc_flit_errors_total 0": 20,
        "nvlink_crc_data_errors_total": NO_SERIES, "nvlink_ecc_data_errors_total": NO_SERIES,
    }, ()),
    "kinds that have no field of their own": (
        FakeGpu(link_states=[1], error_kinds={(0, 3): 33, (0, 4): 44}), "nvlink_errors", {
            "nvlink_crc_data_errors_total 0": 33, "nvlink_ecc_data_errors_total 0": 44,
    }, ()),
    "errors of NVLink 5, each row of the table; the zero of a ratio is 0": (blackwell(1), "nvlink_errors", {
        "nvlink_malformed_packets_total 0": 206, "nvlink_buffer_overrun_errors_total 0": 207,
        "nvlink_receive_errors_total 0": 208, "nvlink_receive_remote_errors_total 0": 209,
        "nvlink_receive_general_errors_total 0": 210, "nvlink_local_link_integrity_errors_total 0": 211,
        "nvlink_transmit_discards_total 0": 212, "nvlink_recoveries_successful_total 0": 213,
        "nvlink_recoveries_failed_total 0": 214, "nvlink_recoveries_total 0": 215,
        "nvlink_effective_errors_total 0": 219, "nvlink_effective_bit_error_ratio 0": 3e-14,
        "nvlink_symbol_errors_total 0": 221, "nvlink_symbol_bit_error_ratio 0": 0,
        "nvlink_replay_errors_total": NO_SERIES,
    }, ()),
    "errors before correction have a lane": (field(blackwell(1), LANES), "nvlink_errors", {
        "nvlink_raw_errors_total 0 0": 5, "nvlink_raw_errors_total 0 1": 6,
        "nvlink_lane_raw_bit_error_ratio 0 0": 1e-6, "nvlink_lane_raw_bit_error_ratio 0 1": 2e-6,
        "nvlink_raw_bit_error_ratio 0": 3e-6, "nvlink_plr_blocks_total 0": 1000, "nvlink_plr_retry_blocks_total 0": 10,
    }, ("nvlink_lane_raw_bit_error_ratio",)),
    "sixteen bins of error correction": (
        field(blackwell(2), {235 + number: 10 * number for number in range(16)}, links=(0, 1)), "nvlink_errors",
        {f"nvlink_fec_corrected_total {link} {number}": 10 * number for number in range(16) for link in (0, 1)},
        ("nvlink_fec_corrected_total",),
    ),
    "PCIe link and counters": (hopper(), "pcie", {
        "pcie_link_generation": 4, "pcie_link_generation_max": 5, "pcie_gpu_link_generation_max": 6,
        "pcie_link_width_lanes": 8, "pcie_link_width_max_lanes": 16, "pcie_replays_total": 7,
        "pcie_replay_rollovers_total": 0, **{f"pcie_{name}_total": NO_SERIES for name in PCIE_ERRORS.values()},
    }, ()),
    "PCIe errors, each field its metric": (
        field(hopper(), {number: number for number in PCIE_ERRORS}, UINT), "pcie",
        {f"pcie_{name}_total": number for number, name in PCIE_ERRORS.items()}, (),
    ),
    "links to a CPU, as many as it says": (superchip(2), "gpu", {
        "c2c_links": 2, "c2c_link_up 0": 1, "c2c_link_up 1": 1, "c2c_link_speed_bytes_per_second 0": 50_000_000_000,
        "c2c_link_speed_bytes_per_second 1": 50_000_000_000, "c2c_crc_errors_total 0": 231,
        "c2c_crc_errors_total 1": 232, "c2c_replays_total 0": 232, "c2c_replays_total 1": 233,
        "c2c_replays_back_to_back_total 0": 233, "c2c_replays_back_to_back_total 1": 234, "c2c_low_power 0": 0,
        "c2c_low_power 1": 0,
    }, ()),
    "no CPU beside it": (superchip(0), "gpu", {
        "c2c_links": 0, "c2c_link_up": NO_SERIES, "c2c_crc_errors_total": NO_SERIES, "c2c_low_power": NO_SERIES,
    }, ()),
    "clocks, temperature, power and energy in base units": (
        field(field(numbered({
            ("nvmlDeviceGetClockInfo", 1): 1980, ("nvmlDeviceGetClockInfo", 2): 2619,
            ("nvmlDeviceGetTemperatureV",): 61, ("nvmlDeviceGetPowerUsage",): 700_001,
            ("nvmlDeviceGetEnforcedPowerLimit",): 700_000, ("nvmlDeviceGetPerformanceState",): 2,
        }, memory=(5 * 2**30, 80 * 2**30)), {83: 123_456_789}), {230: 2}, UINT), "gpu", {
            "gpu_utilization_ratio": 0, "gpu_busy": 0, "gpu_memory_used_bytes": 5 * 2**30,
            "gpu_memory_size_bytes": 80 * 2**30, "gpu_sm_clock_hertz": 1_980_000_000,
            "gpu_memory_clock_hertz": 2_619_000_000, "gpu_temperature_celsius": 61, "gpu_power_watts": 700.001,
            "gpu_power_limit_watts": 700.0, "gpu_energy_joules_total": 123_456.789, "gpu_recovery_action": 2,
            "gpu_performance_state": 2, "gpu_clocks_event_reason": NO_SERIES,
    }, ()),
    "the temperature of older drivers": (numbered({("nvmlDeviceGetTemperature", 0): 44}), "gpu", {
        "gpu_temperature_celsius": 44,
    }, ()),
    "nanoseconds under a limit, of policies that accuse somebody": (
        field(FakeGpu(), {number: number * 10**9 + 1 for number in range(74, 82)}), "gpu",
        {f"gpu_performance_limited_seconds_total {name}": float(f"{number}.000000001") for number, name in (
            (74, "power"), (75, "thermal"), (76, "sync_boost"), (77, "board_limit"), (79, "reliability"))}, (),
    ),
    "who may use a GPU": (numbered({("nvmlDeviceGetComputeMode",): 3}, processes=2), "processes", {
        "gpu_compute_processes": 2, "gpu_compute_mode": 3,
    }, ()),
    "whether a GPU is split by MIG": (FakeGpu(mig=1), "gpu", {"gpu_mig_mode": 1}, ()),
    "identity; what the board lacks is an empty label": (hopper(2), "identity", {
        "gpu_info GPU-1  NVIDIA Test Hopper": 1, "nvlink_links": 2,
        "nvlink_info 0 4.0 switch 0000:0a:00.0 ": 1, "nvlink_info 1 4.0 switch 0000:0a:00.0 ": 1,
        "nvlink_link_speed_bytes_per_second 0": 26_562_000_000, "nvlink_link_speed_bytes_per_second 1": 26_562_000_000,
        "software_info 580.95.05 13.580.95.05 13.0": 1, "nvlink_bandwidth_mode": NO_SERIES,
    }, ()),
    "where a link leads, with the number there": (remote(hopper(2)), "identity", {
        "nvlink_info 0 4.0 switch 0000:0a:00.0 14": 1, "nvlink_info 1 4.0 switch 0000:0a:00.0 ": 1,
        "nvlink_switch_links": 2,
    }, ()),
    "the common speed, of the links that run": (common_speed(hopper(2)), "identity", {
        "nvlink_link_speed_bytes_per_second 0": 25_781_000_000, "nvlink_link_speed_bytes_per_second 1": None,
        "counters_state nvml nvlink_get_speed": 1,
        "counters_state nvml nvlink_speed_mbps_common": 0,
    }, ()),
    "the bandwidth mode, of Blackwell": (
        numbered({("nvmlDeviceGetNvlinkBwMode",): 3}, architecture=10), "identity", {"nvlink_bandwidth_mode": 3}, (),
    ),
    "no bandwidth mode before": (
        numbered({("nvmlDeviceGetNvlinkBwMode",): 3}, architecture=9), "identity", {"nvlink_bandwidth_mode": NO_SERIES},
        (),
    ),
    "counters of links to a CPU are unsupported where there is none": (superchip(0), "identity", {
        "counters_state nvml c2c_link_get_status": 1, "counters_state nvml c2c_link_count": 0,
    }, ()),
    "persistence mode": (numbered({("nvmlDeviceGetPersistenceMode",): 1}), "identity", {"gpu_persistence_mode": 1}, ()),
    "what nobody asked for is tried all the same": (field(hopper(1), {140: 3, 141: 4, 167: 1}), "identity", {
        "counters_state nvml nvlink_throughput_raw_tx": 0, "counters_state nvml nvlink_get_power_state": 0,
    }, ()),
    "what nobody asked for is not read": (field(hopper(1), {140: 3, 141: 4, 167: 1}), "nvlink", {
        **dict.fromkeys(RAW, NO_SERIES), "nvlink_link_low_power": NO_SERIES, "nvlink_link_state 0": 1,
    }, ()),
    **{f"performance state {told}": (
        numbered({("nvmlDeviceGetPerformanceState",): told}), "gpu", {"gpu_performance_state": state}, ())
       for told, state in ((0, 0), (15, 15), (32, None))},
    **{f"the reason {reason}, whatever other bits are set": (
        numbered({(EVENT,): 1 << 40 | 1 << 9 | 1 << bit}), "gpu",
        {f"gpu_clocks_event_reason {name}": int(name == reason) for name in REASONS}, ())
       for bit, reason in enumerate(REASONS)},
}  # fmt: skip
"""GPU, collector, series with their values, and metrics that are asked for.

A series is named by its metric and its labels beside those of the GPU. Of a metric that is named all series are.
"""


@pytest.mark.parametrize(("gpu", "collector", "expected", "asked_for"), ROWS.values(), ids=ROWS)
def test_what_the_driver_answers_becomes_series(
    driver: Driver, gpu: FakeGpu, collector: str, expected: dict[str, Value | str], asked_for: tuple[str, ...]
) -> None:
    """In base units, under labels of the catalogue, and nothing fails."""
    opened = driver(gpu, opt_in=frozenset(f"commwatch_{name}" for name in asked_for)).open()

    batch = opened.collect(collector)
    read = opened.read(collector)

    labels = {key: key[1:] if key[1:3] != A else key[3:] for key in read}
    found = {" ".join((key[0], *labels[key])): value for key, value in read.items()}
    named = {key.split()[0] for key in expected} - {"counters_state"}
    shown = {key: value for key, value in found.items() if key.split()[0] in named or key in expected}
    assert shown == {key: value for key, value in expected.items() if value != NO_SERIES}
    assert batch.absences == []
