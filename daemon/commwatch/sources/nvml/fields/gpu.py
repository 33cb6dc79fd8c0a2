"""Counters of the GPU itself: use, clocks, temperature, power, modes and what the driver asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml

from commwatch.sources.nvml.fields.row import CallCounter, CallReport, Counter, FieldCounter
from commwatch_exporters.snapshot import Value

CLOCKS_EVENT_REASONS: Final = (
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
)
"""Bits of nvmlClocksEventReasons by NVML's names; bits without a name there are left out."""


def clocks_event_reasons(mask: int) -> tuple[int, ...]:
    """1 or 0 for each of ``CLOCKS_EVENT_REASONS``."""
    return tuple(int(bool(mask & bit)) for bit, _ in CLOCKS_EVENT_REASONS)


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / 10**9


def _thousandth(value: int) -> float:
    return value / 1000


def _hertz(megahertz: int) -> int:
    return megahertz * 10**6


def _memory(memory: Any) -> tuple[Value, Value]:  # the binding has no types
    """Bytes in use and in all, of ``nvmlMemory_v2_t``; there the driver's own reserve is counted apart."""
    return int(memory.used), int(memory.total)


def _current_mig_mode(modes: Any) -> Value:  # the binding has no types
    """1 while MIG is on; the second value is the mode after a reset."""
    return int(modes[0])


def _performance_state(state: int) -> Value:
    """0 to 15; None for NVML_PSTATE_UNKNOWN, which is 32."""
    return None if state == pynvml.NVML_PSTATE_UNKNOWN else state


def _utilization(rates: Any) -> float:  # a structure of the binding, which has no types
    return float(rates.gpu) / 100


def _reasons(name: str, call: Callable[..., Any]) -> CallReport:  # the binding has no types
    series = tuple(("commwatch_gpu_clocks_event_reason", (reason,)) for _, reason in CLOCKS_EVENT_REASONS)
    return CallReport(name, call, series, "gpu", clocks_event_reasons)


def _policy(name: str, field: int) -> FieldCounter:
    metric = "commwatch_gpu_performance_limited_seconds_total"
    return FieldCounter(f"perf_policy_{name}", field, metric, "gpu", "device", decode=_seconds, labels=(name,))


def _clock(name: str, number: int) -> CallCounter:
    return CallCounter(
        f"clock_info_{name}", pynvml.nvmlDeviceGetClockInfo, f"commwatch_gpu_{name}_clock_hertz", "gpu", "device",
        arguments=(number,), convert=_hertz,
    )  # fmt: skip


_TEMPERATURE = "commwatch_gpu_temperature_celsius"
_OF_CORE = (pynvml.NVML_TEMPERATURE_GPU,)

ROWS: Final[tuple[Counter, ...]] = (
    CallCounter(
        "utilization_rates", pynvml.nvmlDeviceGetUtilizationRates, "commwatch_gpu_utilization_ratio", "gpu", "device",
        convert=_utilization,
    ),
    CallReport(
        "memory_info_v2", pynvml.nvmlDeviceGetMemoryInfo,
        (("commwatch_gpu_memory_used_bytes", ()), ("commwatch_gpu_memory_size_bytes", ())), "gpu", _memory,
        arguments=(pynvml.nvmlMemory_v2,),
    ),
    _reasons("current_clocks_event_reasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons),
    _reasons("current_clocks_throttle_reasons", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons),
    CallCounter(
        "performance_state", pynvml.nvmlDeviceGetPerformanceState, "commwatch_gpu_performance_state", "gpu", "device",
        convert=_performance_state,
    ),
    _clock("sm", pynvml.NVML_CLOCK_SM),
    _clock("memory", pynvml.NVML_CLOCK_MEM),
    CallCounter("temperature_v", pynvml.nvmlDeviceGetTemperatureV, _TEMPERATURE, "gpu", "device", arguments=_OF_CORE),
    CallCounter("temperature", pynvml.nvmlDeviceGetTemperature, _TEMPERATURE, "gpu", "device", arguments=_OF_CORE),
    CallCounter(
        "power_usage", pynvml.nvmlDeviceGetPowerUsage, "commwatch_gpu_power_watts", "gpu", "device",
        convert=_thousandth,
    ),
    CallCounter(
        "enforced_power_limit", pynvml.nvmlDeviceGetEnforcedPowerLimit, "commwatch_gpu_power_limit_watts", "gpu",
        "device", convert=_thousandth,
    ),
    FieldCounter(
        "total_energy_consumption", 83, "commwatch_gpu_energy_joules_total", "gpu", "device", decode=_thousandth
    ),
    # Left out: 78 (low utilisation), 80 and 81 (sums of the others over a kind of clock), which are no fault.
    _policy("power", 74),
    _policy("thermal", 75),
    _policy("sync_boost", 76),
    _policy("board_limit", 77),
    _policy("reliability", 79),
    FieldCounter("get_gpu_recovery_action", 230, "commwatch_gpu_recovery_action", "gpu", "device"),
    CallCounter(
        # The name without a version turns a function that the driver lacks into an error that is no NVMLError.
        "compute_running_processes", pynvml.nvmlDeviceGetComputeRunningProcesses_v3, "commwatch_gpu_compute_processes",
        "processes", "device", convert=len,
    ),
    CallCounter(
        "compute_mode", pynvml.nvmlDeviceGetComputeMode, "commwatch_gpu_compute_mode", "processes", "device"
    ),
    CallCounter(
        "mig_mode", pynvml.nvmlDeviceGetMigMode, "commwatch_gpu_mig_mode", "gpu", "device",
        convert=_current_mig_mode,
    ),
    CallCounter(
        "persistence_mode", pynvml.nvmlDeviceGetPersistenceMode, "commwatch_gpu_persistence_mode", "identity", "device"
    ),
)  # fmt: skip
