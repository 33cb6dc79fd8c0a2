"""What the driver says of a GPU's place in the fabric of NVSwitches."""

from __future__ import annotations

from typing import Final

from commwatch.sources.nvml.fabric import CHECKS, fabric_values, nvml_gpu_fabric_info_v2, nvml_gpu_fabric_info_v3
from commwatch.sources.nvml.fields.row import CallReport, Counter

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
