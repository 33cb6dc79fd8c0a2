"""Functions of the simulated driver library about a GPU's clocks, heat, power and place in the fabric."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commwatch_rehearsal.simulation.abi import (
    ARGUMENT_VERSION_MISMATCH,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    Argument,
    integer,
    store,
    target,
)
from commwatch_rehearsal.simulation.call import Call
from commwatch_rehearsal.simulation.presets.parts import NVLINK_5

_HOPPER, _BLACKWELL = 9, 10
_FABRIC_VERSIONS = {2: 0x02000024, 3: 0x03000028}
_TEMPERATURE_VERSION = _BANDWIDTH_MODE_VERSION = 0x0100000C
_IN_PROGRESS, _COMPLETED = 2, 3
_TRUE, _FALSE = 1, 2
_HEALTH_BITS = {"bandwidth": 0, "route_recovery": 2, "route": 4, "access_timeout": 6}
"""Two bits each: 1 true (bad), 2 false."""
_CONFIGURATION_SHIFT, _CONFIGURATION_NONE, _CONFIGURATION_SYSTEM_GUID = 8, 1, 2
_PARTITION_SHIFT, _CONNECTION_SHIFT = 12, 14
_PARTITION_DRIVER = 595
"""The first driver branch that reports whether a partition is assigned."""
_HEALTHY, _UNHEALTHY, _LIMITED_CAPACITY = 1, 2, 3
_BANDWIDTH_MODE_FULL = 0
_TEMPERATURE_SENSOR_GPU = 0
_CLOCKS_MHZ = {0: (345, 1980), 1: (345, 1980), 2: (2619, 2619), 3: (765, 1560)}
"""Graphics, SM, memory and video clock, idle and under work."""
_HIGHEST_STATE, _IDLE_STATE = 0, 8
"""Performance states under work and without."""
_THROTTLED_MHZ = 780
_DURABLE_EVENTS = 0x8 | 0x1 | 0x2
"""Xid and ECC events: what a data centre GPU can announce."""


def _clock(call: Call, kind: Argument, clock: Argument) -> int:
    number = integer(kind)
    if number not in _CLOCKS_MHZ:
        return INVALID_ARGUMENT
    idle, busy = _CLOCKS_MHZ[number]
    condition = call.condition
    memory = number == 2
    if condition.clock_reasons & ~1 and not memory:
        busy = min(busy, _THROTTLED_MHZ)
    return store(clock, busy if condition.busy else idle)


def _temperature(call: Call, sensor: Argument, temperature: Argument) -> int:
    if integer(sensor) != _TEMPERATURE_SENSOR_GPU:
        return INVALID_ARGUMENT
    return store(temperature, call.condition.temperature_celsius)


def _temperature_v(call: Call, argument: Argument) -> int:
    filled = target(argument)
    if filled.version != _TEMPERATURE_VERSION:
        return ARGUMENT_VERSION_MISMATCH
    if integer(filled.sensorType) != _TEMPERATURE_SENSOR_GPU:
        return INVALID_ARGUMENT
    filled.temperature = call.condition.temperature_celsius
    return SUCCESS


def _performance_state(call: Call, state: Argument) -> int:
    return store(state, _HIGHEST_STATE if call.condition.busy else _IDLE_STATE)


def _bandwidth_mode(call: Call, argument: Argument) -> int:
    if call.model.architecture < _BLACKWELL or call.model.nvlink is None:
        return NOT_SUPPORTED
    filled = target(argument)
    if filled.version != _BANDWIDTH_MODE_VERSION:
        return ARGUMENT_VERSION_MISMATCH
    filled.bIsBest, filled.bwMode = 1, _BANDWIDTH_MODE_FULL
    return SUCCESS


def _fabric(call: Call, argument: Argument) -> int:
    """Versions 2 and 3; only GPUs on switches register with a fabric."""
    nvlink = call.model.nvlink
    if call.model.architecture < _HOPPER or nvlink is None or nvlink.remote != "switch":
        return NOT_SUPPORTED
    filled = target(argument)
    if filled.version not in _FABRIC_VERSIONS.values():
        return ARGUMENT_VERSION_MISMATCH
    checks = call.condition.fabric_checks
    for place in range(len(filled.clusterUuid)):
        # Only multi-node fabrics have a cluster.
        filled.clusterUuid[place] = 0
    filled.status, filled.cliqueId = SUCCESS, 0
    filled.state = _IN_PROGRESS if "registration" in checks else _COMPLETED
    blackwell = nvlink.version >= NVLINK_5
    filled.healthMask = _health_mask(checks, int(call.hardware.preset.driver_version.split(".")[0]))
    if filled.version == _FABRIC_VERSIONS[3]:
        # H100 answers 0, "not supported", whatever the health is.
        filled.healthSummary = _summary(checks) if blackwell else 0
    return SUCCESS


def _health_mask(checks: frozenset[str], driver_branch: int) -> int:
    mask = 0
    for check, shift in _HEALTH_BITS.items():
        mask |= (_TRUE if check in checks else _FALSE) << shift
    wrong = "configuration" in checks
    mask |= (_CONFIGURATION_SYSTEM_GUID if wrong else _CONFIGURATION_NONE) << _CONFIGURATION_SHIFT
    if driver_branch >= _PARTITION_DRIVER:
        mask |= (_FALSE if "partition" in checks else _TRUE) << _PARTITION_SHIFT
        mask |= (_FALSE if "connection" in checks else _TRUE) << _CONNECTION_SHIFT
    return mask


def _summary(checks: frozenset[str]) -> int:
    if checks == {"bandwidth"}:
        return _LIMITED_CAPACITY
    return _UNHEALTHY if checks else _HEALTHY


def _pcie_throughput(call: Call, direction: Argument, rate: Argument) -> int:
    """KB/s, as a real driver measures in 20 ms; this one does not wait for it. Not of a GPU that is split (MIG)."""
    condition = call.condition
    if condition.mig:
        return NOT_SUPPORTED
    flow = condition.pcie_transmit if integer(direction) == 0 else condition.pcie_receive
    return store(rate, int(flow.rate / 1000))


HEALTH_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "nvmlDeviceGetCurrentClocksEventReasons": lambda call, mask: store(mask, call.condition.clock_reasons),
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda call, mask: store(mask, call.condition.clock_reasons),
    "nvmlDeviceGetPerformanceState": _performance_state,
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetTemperature": _temperature,
    "nvmlDeviceGetTemperatureV": _temperature_v,
    "nvmlDeviceGetPowerUsage": lambda call, power: store(power, round(call.condition.power_watts * 1000)),
    "nvmlDeviceGetEnforcedPowerLimit": lambda call, power: store(power, call.model.power_limit_watts * 1000),
    "nvmlDeviceGetNvlinkBwMode": _bandwidth_mode,
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlDeviceGetPcieThroughput": _pcie_throughput,
    "nvmlDeviceGetSupportedEventTypes": lambda _call, types: store(types, _DURABLE_EVENTS),
}
"""Function by symbol; each takes the call and what follows the handle, and returns a code."""
