"""A GPU's place in the fabric of NVSwitches: the structure that the driver fills, and its numbers."""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from commwatch.sources.nvml.fields.row import CallReport, Counter
from commwatch_exporters.snapshot import Value

COMPLETED: Final = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED


@dataclass(frozen=True, slots=True)
class Check:
    """Two bits of the health mask: 0 not checked, 1 true, 2 false."""

    name: str
    """The fault, as the label ``check`` names it."""
    shift: int
    fault: int
    """Which of 1 and 2 is the fault: for a thing that should be there it is 2."""


_TRUE, _FALSE = 1, 2

CHECKS: Final = (
    Check("degraded_bandwidth", pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, _TRUE),
    Check("route_recovery", pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, _TRUE),
    Check("route_unhealthy", pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, _TRUE),
    Check("access_timeout_recovery", pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, _TRUE),
    # A partition that is assigned and a fabric manager that is connected are as it should be.
    Check("partition_not_assigned", pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_PARTITION_ASSIGNED, _FALSE),
    Check("fabric_manager_disconnected", pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_GFM_STATE, _FALSE),
)

_TWO_BITS = 0x3
_CONFIGURATION_SHIFT = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
_CONFIGURATION_MASK = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION


def nvml_gpu_fabric_info_v3(handle: object) -> Any:  # a structure of the binding, which has no types
    """``nvmlDeviceGetGpuFabricInfoV`` with the structure that has a health summary.

    Raises:
        pynvml.NVMLError: the call failed; a driver that does not know the structure refuses its version.
    """
    return _filled(handle, pynvml.c_nvmlGpuFabricInfo_v3_t())


def nvml_gpu_fabric_info_v2(handle: object) -> Any:  # a structure of the binding, which has no types
    """``nvmlDeviceGetGpuFabricInfoV`` with the structure that has a health mask and no summary.

    Raises:
        pynvml.NVMLError: the call failed.
    """
    return _filled(handle, pynvml.c_nvmlGpuFabricInfo_v2_t())


def _filled(handle: object, info: Any) -> Any:  # a structure of the binding, which has no types
    # The binding passes its argument on as it is, so it must be a reference already.
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info


def fabric_values(info: Any) -> tuple[Value, ...]:  # a structure of the binding, which has no types
    """State, status, health summary, incorrect configuration, and each of ``CHECKS``; None for what it does not say.

    The status is the result of joining the fabric, so it counts only once that has completed.
    """
    mask = int(info.healthMask)
    configuration = mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK
    return (
        int(info.state),
        int(info.status) if info.state == COMPLETED else None,
        # 0 says that the driver gives no verdict, as on the H100 80GB HBM3: no fault.
        getattr(info, "healthSummary", 0) or None,
        configuration or None,
        *(_fault(check, mask) for check in CHECKS),
    )


def _fault(check: Check, mask: int) -> int | None:
    bits = mask >> check.shift & _TWO_BITS
    return int(bits == check.fault) if bits in (_TRUE, _FALSE) else None


def fabric_labels(info: Any) -> tuple[str, str] | None:  # a structure of the binding, which has no types
    """Cluster UUID, empty where the GPU is in no cluster, and clique; None until the GPU has joined the fabric."""
    if info.state != COMPLETED:
        return None
    raw = bytes(info.clusterUuid)
    return str(uuid.UUID(bytes=raw)) if any(raw) else "", str(info.cliqueId)


_SERIES = (
    ("commwatch_fabric_state", ()),
    ("commwatch_fabric_status", ()),
    ("commwatch_fabric_health", ()),
    ("commwatch_fabric_incorrect_configuration", ()),
    *(("commwatch_fabric_fault", (check.name,)) for check in CHECKS),
)

ROWS: Final[tuple[Counter, ...]] = (
    CallReport("gpu_fabric_info_v3", nvml_gpu_fabric_info_v3, _SERIES, "fabric", fabric_values),
    CallReport("gpu_fabric_info_v2", nvml_gpu_fabric_info_v2, _SERIES, "fabric", fabric_values),
)
